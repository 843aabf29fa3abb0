"""The texts of report.html and of a region's live page, such as captions, notes and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from trialfleet.errors import join_names
from trialfleet.workflows import formatting as f
from trialfleet.workflows.facts.models.approval import without_command
from trialfleet.workflows.facts.runs.failed_attempts import SEE
from trialfleet.workflows.formatting import usd
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.views.report.chart_data import PAIR_TRIALS, SCATTER_TRIALS, Pair, Pictures
from trialfleet.workflows.views.report.groups import find_group
from trialfleet.workflows.views.report.page_tables import FULL_MEANS, FULL_TRAINING
from trialfleet.workflows.views.report.report_numbers import (
    median_gain,
    report_decimals,
    time_saved,
)
from trialfleet.workflows.views.report.report_types import (
    Comparison,
    Importance,
    RegionReport,
    Report,
)
from trialfleet.workflows.views.report.scales import Scale
from trialfleet.workflows.views.report.timeline import Timeline

ERROR_LENGTH = 3000
MOST_FAILURES = 20
MOST_TEACHERS = 6
TRIALS_NAMED = 12


def header(report: Report) -> list[tuple[str, str, str]]:
    """Return the key numbers at the top of the page, each as a label, a value and a note."""
    regions = report.regions
    tuned = sum(row.stage == Stage.TUNED for row in regions)
    published = sum(row.stage == Stage.PUBLISHED for row in regions)
    kept = sum(row.stage == Stage.KEPT for row in regions)
    gains = [row.report.gain for row in regions if row.report.gain is not None]
    better = sum(gain > 0 for gain in gains)
    left = f"{report.failed:,} failed" if report.failed else "none failed"
    trials = f"of {report.budget_trials:,} · {left}"
    waited = _paused(report.paused_seconds) or "from start to finish"
    middle, unit = _median_gain(report)
    helped = f"{unit}{better} of {len(gains)} {'' if unit else 'regions '}better"
    return [
        ("Regions tuned", f"{tuned:,}", f"of {f.count_text(len(regions), 'region')}")
        if tuned
        else (
            "Models published",
            f"{published:,}",
            f"of {f.count_text(len(regions), 'region')}"
            + (f" · {kept:,} not current" if kept else ""),
        ),
        ("Trials completed", f"{report.complete:,}", trials),
        (f"Median gain, {report.report_metric}", middle, helped if gains else "nothing to compare"),
        (
            "Wall time",
            f.duration(report.wall_seconds),
            waited if report.finished else "the run has not ended",
        ),
        ("Compute time", f.duration(report.compute_seconds), f"sum over all jobs{_lost(report)}"),
        *([("Cost", f"{usd(report.usd)} USD", "of all jobs")] if report.usd is not None else []),
    ]


def _lost(report: Report) -> str:
    share = report.lost_share or 0.0
    return f" · {share:.0%} lost" if share >= 0.01 else ""


def _median_gain(report: Report) -> tuple[str, str]:
    """Return the median of the regions' gains as text, and the words that follow it.

    The words say of what value the median is a percentage. They are "" if it is not in percent.
    """
    gain, is_percent = median_gain(report)
    if gain is None or not is_percent:
        return f.signed_number(gain, report_decimals(report)), ""
    return f"{f.signed_number(gain, 0 if abs(gain) >= 10 else 1)}%", "of default · "


def subtitle(report: Report) -> str:
    """Return the line under the study's name, with the run's id, the objective and a time."""
    objective = f"{report.direction} {report.metric}"
    when = (
        f"finished {_moment(report.finished)}"
        if report.finished
        else f"planned {_moment(report.created)}"
    )
    return f"Run {report.run} · {objective} · {when}"


@dataclass(frozen=True)
class Trouble:
    """A problem, the regions that have it, and the command that helps the first one, or None."""

    reason: str
    command: str | None
    regions: list[RegionReport]


def attention(report: Report) -> list[Trouble]:
    """Return each problem with the regions that have it, the most frequent problem first."""
    found: dict[str, Trouble] = {}
    for row in report.regions:
        for reason, command in _troubles(row):
            found.setdefault(reason, Trouble(reason, command, [])).regions.append(row)
    return sorted(found.values(), key=lambda trouble: -len(trouble.regions))


def _troubles(row: RegionReport) -> Iterator[tuple[str, str | None]]:
    """Yield each of a region's problems with the command that helps, or None."""
    if reason := _problem(row):
        yield reason, row.why_command
    elif row.worse is not None:
        yield f"tuned settings are worse than default by {row.report.metric}", None
    for words in filter(None, (row.model_note, *row.warnings)):
        yield without_command(words), row.why_command


def _problem(row: RegionReport) -> str:
    if row.reason:
        return f"{row.stage}: {row.reason.partition(SEE)[0]}"
    if find_group(row) == "failed":
        return f"{row.stage}: {row.finished} of {row.budget} trials have ended"
    if row.all_failed > row.done:
        return f"{row.all_failed} of {row.done + row.all_failed} trials failed"
    return ""


def previous_runs_text(row: RegionReport) -> str:
    """Return a sentence on the previous runs from which the optimiser learned, or ""."""
    if not row.taught:
        return ""
    named = list(row.taught.items())[:MOST_TEACHERS]
    return (
        "Learned from previous runs; their weights in the optimiser's model at the last trial: "
        + ", ".join(f"{name} {weight:.2f}" for name, weight in named)
        + ". 1 uses all of a run's results, 0 none."
    )


def region_log(row: RegionReport) -> str:
    """Return the path of the log to read first after a failure, or ""."""
    if not row.all_failed and row.stage != Stage.FAILED:
        return ""
    found = (each.partition(SEE)[2] for each in (row.reason, str(row.cause or "")) if each)
    return next(filter(None, found), "")


def facts(report: Report, row: RegionReport) -> Iterator[tuple[str, str, str]]:
    """Yield the facts about a region, each as label, text and tone (a CSS class)."""
    for item in [row.objective, row.report] if report.is_apart else [row.objective]:
        if (item.default, item.tuned) != (None, None):
            yield item.metric, _comparison(item), ""
    if row.final is not None:
        items = row.final.items()
        texts = [f"{name} {f.fixed_point(x, f.column_decimals([x]))}" for name, x in items]
        yield FULL_TRAINING, ", ".join(texts) or "no metrics", ""
    if row.published is not None:
        yield "Published model", row.published, "path"
    if row.not_latest is not None:
        yield "Not the latest", row.not_latest, ""
    elif row.gate is not None:
        yield "Gate", str(row.gate), ""
    yield "Trials", _trial_counts(row), ""
    if row.wall_seconds is not None:
        yield "Time", _time(row), ""


def full_training_note(report: Report) -> str:
    """Return a note that explains full trainings, or "" if no region has one."""
    trained = any(row.final is not None or row.final_job is not None for row in report.regions)
    return f"{FULL_TRAINING}: {FULL_MEANS}." if trained else ""


def _comparison(item: Comparison) -> str:
    decimals = f.column_decimals([item.default, item.tuned])
    tuned, default = (f.fixed_point(value, decimals) for value in (item.tuned, item.default))
    text = f"{tuned} tuned, {default} default"
    return text if item.gain is None else f"{text}, gain {f.signed_number(item.gain, decimals)}"


def _trial_counts(row: RegionReport) -> str:
    others = (
        (row.all_failed, "failed"),
        (row.stopped_early, "stopped early"),
        (row.running, "running"),
    )
    ended = [f", {count} {state}" for count, state in others if count]
    return f"{row.done} completed{''.join(ended)}, of {row.budget}"


def early_stopping_note(report: Report) -> str:
    """Return how many trials were stopped early and the time that this saved, or ""."""
    stopped = sum(row.stopped_early for row in report.regions)
    if not stopped:
        return ""
    trials = sum(len(row.trials) for row in report.regions)
    words = f"{stopped:,} of {trials:,} trials were stopped early"
    saved, part = time_saved(report)
    if saved < 1 or not part:
        return f"{words}."
    time = f"about {f.duration(saved)} of compute, {part} % of the time without early stopping"
    return f"{words}, which saved {time}."


def _time(row: RegionReport) -> str:
    devices = Counter(trial.device for trial in row.trials if trial.device)
    where = ", ".join(f"{name} ({count})" for name, count in sorted(devices.items()))
    paused = _paused(row.paused_seconds)
    wall = f"{f.duration(row.wall_seconds)} from first to last trial"
    wall += f" ({paused})" if paused else ""
    if not row.compute_seconds:
        return wall
    compute = f"{f.duration(row.compute_seconds)} of compute"
    return f"{wall}, {compute}{' on ' + where if where else ''}"


def _paused(seconds: float) -> str:
    return f"paused {f.duration(seconds)} in between" if seconds else ""


def failure_rows(row: RegionReport) -> list[tuple[str, str, str]]:
    """Return, for each error, how often it occurred, in which trials, and its text."""
    return [
        (
            f"{len(item.trials)} {f.TIMES}",
            _trial_names(item.trials),
            f.excerpt(item.error, ERROR_LENGTH),
        )
        for item in row.failures[:MOST_FAILURES]
    ]


def _trial_names(trials: Sequence[int]) -> str:
    names = join_names([str(number) for number in trials], TRIALS_NAMED)
    return f"trial{'s' if len(trials) > 1 else ''} {names}"


def verdict(row: RegionReport) -> str:
    """Return a note if the trial of the default settings is the best of several, otherwise ""."""
    if row.best_trial is None or row.best_trial != row.baseline_trial or row.done < 2:
        return ""
    return f"None of {f.count_text(row.done - 1, 'other trial')} beat the default settings."


@dataclass(frozen=True)
class AxisChoice:
    """A control by which a reader of the page changes what an axis shows.

    `options` has the value and the text of each option.
    """

    kind: str
    legend: str
    options: tuple[tuple[str, str], ...]
    chosen: str


SHOW = AxisChoice("show", "Show", (("value", "Values"), ("gain", "Gain")), "value")


def switches(scale: Scale, of: str = "") -> list[AxisChoice]:
    """Return the controls of an axis.

    If all values are positive, the reader can choose a linear or a logarithmic scale. If there are
    outliers, the reader can hide them. `of` is added to the controls' labels.
    """
    found = []
    if scale.log:
        options = (("linear", "Linear"), ("log", "Log"))
        chosen = "log" if scale.chosen == "log" else "linear"
        found.append(AxisChoice("scale", f"Scale{of}", options, chosen))
    if scale.view:
        options = (("whole", "Whole range"), ("near", "Without outliers"))
        chosen = "near" if scale.chosen == "clipped" else "whole"
        found.append(AxisChoice("range", f"Range{of}", options, chosen))
    return found


def costs_note(report: Report) -> str:
    """Return the note that says what the chart of costs includes."""
    lost = "Lost: failed attempts and interrupted executions."
    if not report.boot_usd and not report.idle_usd:
        return (
            f"The costs of jobs. {lost} A fleet's nodes also cost money while they boot or are "
            "idle. For the whole cost:"
        )
    return (
        f"The costs of jobs, by region. {lost} Boot and idle: this run's share of the cost of the "
        "fleet's nodes without a job, until this page was written. For the present cost:"
    )


def timeline_note(timeline: Timeline) -> str:
    """Return the note that explains the timeline's rows and dashed bars."""
    jobs = f.count_text(timeline.jobs, "job")
    machines = f.count_text(len(set(timeline.rows)), "machine")
    note = f"{jobs} on {machines}: a machine has as many rows as jobs ran on it at once."
    if timeline.lost:
        lost = f.count_text(timeline.lost, "execution")
        note += f" {lost} failed or were interrupted; they have a dashed edge."
    return note


def share(item: Importance) -> str:
    """Return a parameter's share of the importance and how many trials had it, as text."""
    return f"{item.share:.0%} · {f.count_text(item.trials, 'trial')}"


def importance_note(row: RegionReport) -> str:
    """Return what the importances are based on, or why there are none."""
    note = row.importance_note or ""
    why = f"{note[:1].upper()}{note[1:]}." if note else ""
    if not row.importance:
        return why
    return (
        f"Each parameter's share in reaching the best results, and the number of completed trials "
        f"with the parameter. "
        f"{why}".rstrip()
    )


def pair_note(pair: Pair) -> str:
    """Return the note on the chart of two parameters, or the reason if there is no chart."""
    if pair.kind == "contour":
        return (
            f"Smoothed over {pair.trials} trials; blank where no trial is near. Ring: the best "
            "trial."
        )
    if pair.kind == "scatter" and pair.trials < PAIR_TRIALS:
        few = (
            f"{f.count_text(pair.trials, 'trial')}, too few for a surface (at least {PAIR_TRIALS})"
        )
        return f"{few}. Ring: the best trial."
    if pair.kind == "scatter":
        return (
            "One dot per trial, because a parameter with choices has no surface. Ring: the best "
            "trial."
        )
    return f"Needs two searched parameters that at least {SCATTER_TRIALS} completed trials have."


def slices_note(pictures: Pictures) -> str:
    """Return the note below the charts that each show one parameter."""
    best = "The filled dot is the best trial."
    if not (left_out := len(pictures.searched_parameters) - len(pictures.charted_parameters)):
        return best
    others = f.count_text(left_out, "less important parameter")
    return f"{best} Only the table shows {others}."


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def summary_line(row: RegionReport, decimals: int | None) -> str:
    """Return the report metric of the tuned settings and the gain as text, or "" if unknown.

    Numbers have `decimals` decimals. If `decimals` is None, each number has its own format.
    """
    if row.report.tuned is None:
        return ""
    gain = "" if row.report.gain is None else f" ({f.signed_number(row.report.gain, decimals)})"
    return f"{f.fixed_point(row.report.tuned, decimals)}{gain}"
