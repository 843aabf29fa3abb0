"""What the page's templates show: texts and sort keys, decided here so that templates only lay out.

Nothing here is HTML: the templates escape every text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from statistics import median
from typing import Any

from trialfleet.workflows.report import figures
from trialfleet.workflows.report import formatting as f
from trialfleet.workflows.report.model import Comparison, Region, Report, Setting, Trial
from trialfleet.workflows.report.summary import report_decimals

ERROR_LENGTH = 3000
MOST_FAILURES = 20
TRIALS_NAMED = 12
TROUBLED = ("stopped", "failed", "not started", "incomplete")
TONES = {
    "published": "good",
    "stopped": "bad",
    "failed": "bad",
    "not started": "bad",
    "incomplete": "bad",
}
EDGES = {"low": "at the lower end of its range", "high": "at the upper end of its range"}


@dataclass(frozen=True)
class Cell:
    """A table's cell: its text, what it sorts by (None: last), and its tone (a CSS class)."""

    text: str
    key: float | str | None = None
    tone: str = ""


def header(report: Report) -> list[tuple[str, str, str]]:
    """The tiles on top: label, value, what stands under it."""
    regions = report.regions
    published = sum(row.published is not None for row in regions)
    gains = [row.report.gain for row in regions if row.report.gain is not None]
    better = sum(gain > 0 for gain in gains)
    left = f"{report.failed:,} failed" if report.failed else "none failed"
    trials = f"of {report.budget_trials:,} · {left}"
    waited = "from start to finish" if report.finished else "the run has not ended"
    helped = f"{better} of {len(gains)} regions better"
    middle = f.signed(median(gains) if gains else None, report_decimals(report))
    return [
        ("Models published", f"{published:,}", f"of {_count(len(regions), 'region')}"),
        ("Trials completed", f"{report.complete:,}", trials),
        (f"Median gain, {report.report_metric}", middle, helped if gains else "nothing to compare"),
        ("Wall time", f.duration(report.wall_seconds), waited),
        ("Compute time", f.duration(report.compute_seconds), "sum over all trials"),
    ]


def subtitle(report: Report) -> str:
    """Under the study's name: run, objective, when."""
    objective = f"{report.direction} {report.metric}"
    when = (
        f"finished {_moment(report.finished)}"
        if report.finished
        else (f"started {_moment(report.created)}")
    )
    return f"Run {report.run} · {objective} · {when}"


def attention(report: Report) -> list[tuple[Region, str]]:
    """Regions that someone should look at, and why."""
    reasons = ((row, _trouble(row)) for row in report.regions)
    return [(row, reason) for row, reason in reasons if reason]


def _trouble(row: Region) -> str:
    if row.stopped:
        return f"stopped early: {f.shortened(row.stopped, 160)}"
    if row.status in TROUBLED:
        return {
            "failed": f"all {_count(row.failed, 'trial')} failed",
            "not started": "not started",
            "incomplete": f"{row.complete + row.failed} of {row.budget_trials} trials done",
        }[row.status]
    if row.failed > row.complete:
        return f"{row.failed} of {row.complete + row.failed} trials failed"
    if row.report.gain is not None and row.report.gain < 0:
        return f"tuned settings are worse than default by {row.report.metric}"
    return ""


def region_columns(report: Report) -> list[tuple[str, str]]:
    """The overview's columns after the region's name: title and kind ("number" or "text")."""
    best = [(f"Best {report.metric}", "number")] if _apart(report) else []
    return [
        ("Status", "text"),
        ("Default", "number"),
        ("Tuned", "number"),
        ("Gain", "number"),
        ("Full training", "number"),
        *best,
        ("Trials", "number"),
        ("Failed", "number"),
        ("Time", "number"),
        ("Published model", "text"),
    ]


def region_rows(report: Report) -> list[tuple[Region, list[Cell]]]:
    """The overview's rows, cells as `region_columns`."""
    decimals = report_decimals(report)
    best_decimals = f.column_decimals([row.objective.tuned for row in report.regions])
    return [(row, _region_row(report, row, decimals, best_decimals)) for row in report.regions]


def _region_row(
    report: Report, row: Region, decimals: int | None, best_decimals: int | None
) -> list[Cell]:
    best = [Cell(f.fixed(row.objective.tuned, best_decimals), row.objective.tuned)]
    return [
        Cell(row.status, row.status, TONES.get(row.status, "")),
        Cell(f.fixed(row.report.default, decimals), row.report.default),
        Cell(f.fixed(row.report.tuned, decimals), row.report.tuned, "strong"),
        Cell(f.signed(row.report.gain, decimals), row.report.gain, gain_tone(row.report)),
        Cell(f.fixed(row.final_metric, decimals), row.final_metric),
        *(best if _apart(report) else []),
        Cell(f"{row.complete} / {row.budget_trials}", row.complete),
        Cell(str(row.failed) if row.failed else f.NOTHING, row.failed, "bad" if row.failed else ""),
        Cell(f.duration(row.wall_seconds), row.wall_seconds),
        Cell(_model(row.published), row.published or None, "path"),
    ]


def _model(published: str | None) -> str:
    """The end of a published model's path: the region's folder and the run's id."""
    return f.NOTHING if published is None else "/".join(PurePath(published).parts[-2:])


def gain_tone(comparison: Comparison) -> str:
    """The tone of a gain."""
    gain = comparison.gain
    return "" if not gain else "good" if gain > 0 else "bad"


def facts(report: Report, row: Region) -> list[tuple[str, Cell]]:
    """A region's figures in words: label and cell."""
    compared = [row.objective, row.report] if _apart(report) else [row.objective]
    known = [item for item in compared if (item.default, item.tuned) != (None, None)]
    pairs = [_comparison(item) for item in known]
    if row.final is not None:
        metrics = ", ".join(f"{name} {f.number(value)}" for name, value in row.final.items())
        pairs.append(("Full training", Cell(metrics or "no metrics")))
    if row.published is not None:
        pairs.append(("Published model", Cell(row.published, tone="path")))
    pairs.append(("Trials", Cell(_trial_counts(row))))
    if row.wall_seconds is not None:
        pairs.append(("Time", Cell(_time(row))))
    return pairs


def _comparison(item: Comparison) -> tuple[str, Cell]:
    decimals = f.column_decimals([item.default, item.tuned])
    text = f"{f.fixed(item.tuned, decimals)} tuned, {f.fixed(item.default, decimals)} default"
    gain = "" if item.gain is None else f", gain {f.signed(item.gain, decimals)}"
    return item.metric, Cell(text + gain)


def _trial_counts(row: Region) -> str:
    parts = [f"{row.complete} completed"]
    parts += [f"{row.failed} failed"] if row.failed else []
    parts += [f"{row.running} running"] if row.running else []
    return f"{', '.join(parts)}, of {row.budget_trials}"


def _time(row: Region) -> str:
    devices = Counter(trial.device for trial in row.trials if trial.device)
    where = ", ".join(f"{name} ({count})" for name, count in sorted(devices.items()))
    wall = f"{f.duration(row.wall_seconds)} from first to last trial"
    if not row.compute_seconds:
        return wall
    compute = f"{f.duration(row.compute_seconds)} of compute"
    return f"{wall}, {compute}{' on ' + where if where else ''}"


@dataclass(frozen=True)
class SettingRow:
    """One parameter, best against default; places are percent of its range, None: no number."""

    name: str
    default: str
    best: str
    changed: bool
    default_place: float | None
    best_place: float | None
    low: str
    high: str
    note: str


def setting_rows(row: Region) -> list[SettingRow]:
    """The settings table."""
    return [_setting_row(item, row.best_trial is not None) for item in row.settings]


def _setting_row(item: Setting, has_best: bool) -> SettingRow:
    range_ = item.range
    numeric = range_ is not None and range_.choices is None
    return SettingRow(
        name=item.name,
        default=f.setting(item.default) if item.default_active else "not used",
        best=(f.setting(item.best) if item.best_active else "not used") if has_best else f.NOTHING,
        changed=has_best and item.changed,
        default_place=_percent(item, item.default) if item.default_active else None,
        best_place=_percent(item, item.best) if item.best_active else None,
        low=f.number(range_.low) if range_ is not None and numeric else "",
        high=f.number(range_.high) if range_ is not None and numeric else "",
        note=_setting_note(item),
    )


def _percent(item: Setting, value: Any) -> float | None:
    place = None if item.range is None else item.range.place(value)
    return None if place is None else round(100 * place, 1)


def _setting_note(item: Setting) -> str:
    if item.edge is not None:
        return EDGES[item.edge]
    if item.range is not None and item.range.choices is not None:
        return f"{len(item.range.choices)} choices"
    return ""


def failure_rows(row: Region) -> list[tuple[str, str, str]]:
    """Failures: how often, which trials, the error."""
    return [
        (
            f"{len(item.trials)} {f.TIMES}",
            _trial_names(item.trials),
            f.excerpt(item.error, ERROR_LENGTH),
        )
        for item in row.failures[:MOST_FAILURES]
    ]


def failures_left_out(row: Region) -> int:
    """How many different errors the page leaves to report.json."""
    return max(0, len(row.failures) - MOST_FAILURES)


def _trial_names(trials: Sequence[int]) -> str:
    more = f" and {len(trials) - TRIALS_NAMED} more" if len(trials) > TRIALS_NAMED else ""
    names = ", ".join(str(number) for number in trials[:TRIALS_NAMED])
    return f"trial{'s' if len(trials) > 1 else ''} {names}{more}"


def trial_columns(report: Report, row: Region) -> list[tuple[str, str]]:
    """The trials table's columns: title and kind."""
    report_metric = [(report.report_metric, "number")] if _apart(report) else []
    return [
        ("Trial", "number"),
        ("State", "text"),
        (report.metric, "number"),
        *report_metric,
        *((item.name, "plain") for item in row.settings),
        ("Time", "number"),
        ("Attempts", "number"),
        ("Node", "plain"),
    ]


def trial_rows(report: Report, row: Region) -> list[list[Cell]]:
    """The trials table's rows, cells as `trial_columns`."""
    decimals = f.column_decimals([trial.objective for trial in row.trials])
    report_values = [trial.metrics.get(report.report_metric) for trial in row.trials]
    report_column = f.column_decimals(report_values) if _apart(report) else None
    names = [item.name for item in row.settings]
    return [
        _trial_row(report, row, trial, names, (decimals, report_column)) for trial in row.trials
    ]


def _trial_row(
    report: Report,
    row: Region,
    trial: Trial,
    names: Sequence[str],
    decimals: tuple[int | None, int | None],
) -> list[Cell]:
    reported = trial.metrics.get(report.report_metric)
    best = "strong" if trial.number == row.best_trial else ""
    params = [f.setting(trial.params[name]) if name in trial.params else "" for name in names]
    return [
        Cell(str(trial.number), trial.number, best),
        Cell(_state(row, trial), trial.state, "bad" if trial.state == "failed" else best),
        Cell(f.fixed(trial.objective, decimals[0]), trial.objective, best),
        *([Cell(f.fixed(reported, decimals[1]), reported)] if _apart(report) else []),
        *(Cell(text) for text in params),
        Cell(f.duration(trial.seconds), trial.seconds),
        Cell(f.number(trial.attempts), trial.attempts),
        Cell(trial.node),
    ]


def _state(row: Region, trial: Trial) -> str:
    roles = [trial.state]
    roles += ["best"] if trial.number == row.best_trial else []
    roles += ["default settings"] if trial.baseline else []
    return ", ".join(roles)


def _apart(report: Report) -> bool:
    return report.metric != report.report_metric


def history_note(row: Region) -> str:
    """What the history's picture doesn't show at first."""
    outside = figures.history_outside(row)
    return (
        f"{_count(outside, 'trial')} outside this view; double-click shows all." if outside else ""
    )


def importance_note(row: Region) -> str:
    """What the importance rests on, or why there is none."""
    if row.importance.note is not None:
        note = row.importance.note
        return f"{note[:1].upper()}{note[1:]}."
    return f"Share in reaching the best results; from {row.importance.trials} completed trials."


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def summary_line(report: Report, row: Region) -> str:
    """A closed region's one line: the tuned report metric and its gain."""
    if row.report.tuned is None:
        return ""
    decimals = report_decimals(report)
    gain = "" if row.report.gain is None else f" ({f.signed(row.report.gain, decimals)})"
    return f"{f.fixed(row.report.tuned, decimals)}{gain}"
