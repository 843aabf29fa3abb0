"""The report's numbers, such as gains, times and costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trialfleet.objective import Direction
from trialfleet.optimizer.parameters import CategoricalParameter
from trialfleet.optimizer.space import Tunable
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.cleaning import clean, keep_finite
from trialfleet.workflows.facts.jobs.job_log import Job, PricedExecution
from trialfleet.workflows.formatting import column_decimals
from trialfleet.workflows.rules.cost_sums import sum_known
from trialfleet.workflows.status.dagman_pauses import Span, find_pauses, pause_overlap
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.status.time_left import first_start
from trialfleet.workflows.views.report import advice
from trialfleet.workflows.views.report.importance import parameter_importances
from trialfleet.workflows.views.report.report_types import (
    Comparison,
    Failure,
    ParameterRange,
    RegionReport,
    Report,
    RunSummary,
    Setting,
)

LEAST_DEFAULT = 0.1  # of the greater value: a default nearer to zero gives no percentage


@dataclass(frozen=True, kw_only=True)
class RegionFacts:
    """The facts from which a `RegionReport` is made.

    `RegionReport` describes the fields that both classes have.

    Attributes:
        final_job: HTCondor's data on the full training's job, or None before its start.
        span: when the optimiser chose the first trial, and when the last result was recorded, or
            None before the first result.
        defaults: the default settings, without constants and inactive parameters. A parameter is
            inactive if the settings don't meet its condition `when`.
    """

    status: RegionStatus
    study_name: str
    trials: tuple[Trial, ...]
    taught: Mapping[str, float]
    span: Span | None
    parameters: Mapping[str, Tunable]
    defaults: Mapping[str, Any]
    final: Mapping[str, float] | None = None
    final_job: Job | None = None
    final_stays: Sequence[PricedExecution] = ()
    gate_stays: Sequence[PricedExecution] = ()
    between_usd: float | None = None


def build_report(
    run: RunSummary,
    regions: Sequence[RegionFacts],
    *,
    root: Path,
    active: Sequence[tuple[float, float | None]] = (),
    stops: Sequence[float] = (),
) -> Report:
    """Return the report of a run from its facts.

    `root` is the run's folder, which the report's commands name. `active` has the start and end of
    each execution of the run's DAGMans. An unknown end is None. `stops` has the times at which the
    run was stopped. `active` and `stops` determine the run's pauses. All times are in Unix seconds.
    """
    pauses = find_pauses(active, set(_job_times(regions)), stops)
    made = tuple(_region(run, region, root, pauses) for region in regions)
    notices = [run.notice, advice.unreported_note(run.report_metric, made)]
    begun = min((begin for begin, _ in active), default=run.created.timestamp())
    ended = run.finished.timestamp() if run.finished else math.inf
    paused = pause_overlap(pauses, begun, ended)
    is_worse = any(region.worse is not None for region in made)
    values = vars(run) | {"notice": " ".join(filter(None, notices))}
    return Report(
        **{
            name: clean(value) if isinstance(value, str) else value
            for name, value in values.items()
        },
        advice=clean(advice.advice_on_worse(run.metric, run.report_metric)) if is_worse else "",
        edges=clean(advice.edge_advice(made)),
        wall_seconds=ended - begun - paused if run.finished else None,
        paused_seconds=paused,
        pauses=pauses,
        compute_seconds=sum(region.compute_seconds for region in made),
        usd=sum_known(region.usd for region in made),
        complete=sum(region.done for region in made),
        failed=sum(region.all_failed for region in made),
        budget_trials=sum(region.budget for region in made),
        regions=made,
    )


def _job_times(regions: Iterable[RegionFacts]) -> Iterator[float]:
    for region in regions:
        for job in (*region.trials, region.final_job):
            if job:
                yield from (time for time in (job.started, job.ended) if time is not None)


def _region(
    run: RunSummary, region: RegionFacts, root: Path, pauses: Sequence[Span]
) -> RegionReport:
    status, trials = region.status, region.trials
    best = next((trial for trial in trials if trial.trial == status.best_trial), None)
    baseline = next((trial for trial in trials if trial.baseline), None)
    pair = (baseline, best, run.metric)
    objective = compare(run.metric, run.direction, *pair)
    report = compare(run.report_metric, run.report_direction, *pair)
    importance, note = parameter_importances(trials, region.parameters, run.direction)
    jobs = [trial.compute_seconds for trial in trials]
    jobs += [region.final_job.wall_seconds if region.final_job else None]
    begin, end = region.span or (0.0, 0.0)
    paused = pause_overlap(pauses, begin, end)
    return RegionReport(
        **vars(clean(status)) | {"best": best and best.value, "running_trials": ()},
        study_name=clean(region.study_name),
        final_job=clean(region.final_job),
        between_usd=region.between_usd,
        objective=objective,
        report=report,
        worse=advice.worse_sentence(objective, report),
        why_command=clean(advice.why_command(status.name, root)),
        final=None if region.final is None else keep_finite(clean(region.final)),
        baseline_trial=None if baseline is None else baseline.trial,
        compute_seconds=sum(seconds or 0.0 for seconds in jobs),
        # Optuna's times have no zone: a clock set back during the run must not give a negative time
        wall_seconds=max(0.0, end - begin - paused) if region.span else None,
        paused_seconds=paused,
        importance=importance,
        importance_note=note,
        settings=compare_settings(clean(region.defaults), best, trials, region.parameters),
        failures=group_failures(trials),
        taught=dict(region.taught),
        trials=trials,
        final_stays=tuple(clean(region.final_stays)),
        gate_stays=tuple(clean(region.gate_stays)),
    )


def trial_span(trials: Sequence[StoredTrial]) -> Span | None:
    """Return when the optimiser chose the first trial, and when the last result was recorded.

    Return None if no trial has a result yet.
    """
    first = first_start(trials)
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete]
    return (first, max(ends).timestamp()) if first and ends else None


def teacher_weights(trials: Sequence[StoredTrial]) -> dict[str, float]:
    """Return the weights of previous runs' regions in the optimiser's model, greatest first.

    A weight is from 0 to 1. The weights are those at the last trial for which the optimiser used
    previous results.
    """
    noted = (clean(trial.user_attrs.get("taught")) for trial in reversed(trials))
    found = next((kept for each in noted if each and (kept := keep_finite(each))), {})
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def compare(
    metric: str, direction: Direction, baseline: Trial | None, best: Trial | None, objective: str
) -> Comparison:
    """Return the values of the best trial and of the trial of the default settings.

    `baseline` is the trial of the default settings. If `metric` is the `objective`, the values are
    the trials' results, otherwise their reported metrics. A trial that isn't complete has no value.
    """

    def value(trial: Trial | None) -> float | None:
        if trial is None or trial.state != "complete":
            return None
        return trial.value if metric == objective else trial.metrics.get(metric)

    return Comparison(
        metric=metric, direction=direction, default=value(baseline), tuned=value(best)
    )


def group_failures(trials: Sequence[Trial]) -> tuple[Failure, ...]:
    """Return the failed trials, grouped by error, the most frequent error first."""
    groups: dict[str, list[int]] = {}
    for trial in trials:
        if trial.state == "failed" and trial.error is not None:
            groups.setdefault(trial.error, []).append(trial.trial)
    failures = [Failure(error=error, trials=tuple(who)) for error, who in groups.items()]
    return tuple(sorted(failures, key=lambda failure: (-len(failure.trials), failure.trials)))


def compare_settings(
    defaults: Mapping[str, Any],
    best: Trial | None,
    trials: Sequence[Trial],
    parameters: Mapping[str, Tunable],
) -> tuple[Setting, ...]:
    """Return each parameter's default value and best value.

    Parameters of the default settings come first, in the order of `defaults`. After them come the
    other parameters of trials, sorted by name. A setting's `range` is None if no trial had the
    parameter.
    """
    had = {name for trial in trials for name in trial.params}
    ranges = {name: _parameter_range(item) for name, item in parameters.items() if name in had}
    found = {} if best is None else best.params
    names = [*defaults, *sorted({*ranges, *found} - set(defaults))]
    return tuple(_setting(name, defaults, found, ranges.get(name)) for name in names)


def _setting(
    name: str, defaults: Mapping[str, Any], best: Mapping[str, Any], range_: ParameterRange | None
) -> Setting:
    return Setting(
        name=name,
        default=defaults.get(name),
        default_active=name in defaults,
        best=best.get(name),
        best_active=name in best,
        range=range_,
        edge=advice.find_edge(range_, best.get(name)),
    )


def _parameter_range(parameter: Tunable) -> ParameterRange:
    if isinstance(parameter, CategoricalParameter):
        return ParameterRange(low=None, high=None, log=False, choices=tuple(parameter.choices))
    return ParameterRange(low=parameter.low, high=parameter.high, log=parameter.log, choices=None)


def median_gain(report: Report) -> tuple[float | None, bool]:
    """Return the median of the regions' gains, and whether it is in percent.

    Gains are in percent of the value with default settings, because the sizes of values may differ
    between regions. If this value is near zero for any region, no gain is in percent. The median is
    None if no region has a gain.
    """
    compared = [row.report for row in report.regions if row.report.gain is not None]
    shares = [share for each in compared if (share := _share(each)) is not None]
    if shares and len(shares) == len(compared):
        return 100 * median(shares), True
    gains = [each.gain for each in compared if each.gain is not None]
    return median(gains) if gains else None, False


def _share(item: Comparison) -> float | None:
    if item.gain is None or item.default is None or item.tuned is None:
        return None
    least = LEAST_DEFAULT * max(abs(item.default), abs(item.tuned))
    return item.gain / abs(item.default) if abs(item.default) > least else None


def time_saved(report: Report) -> tuple[float, int]:
    """Return the time that early stopping saved, in seconds and in percent.

    100 % is the time that the trials would have taken without early stopping.
    """
    trials = [trial for row in report.regions for trial in row.trials]
    saved = sum(map(_saved_seconds, trials))
    used = sum(trial.compute_seconds or 0.0 for trial in trials)
    return saved, round(100 * saved / (saved + used)) if saved else 0


def _saved_seconds(trial: Trial) -> float:
    """Return the seconds that stopping a trial early saved, estimated from the trial's own pace.

    After the decision to stop, the trial trains on until the order arrives. These last steps don't
    count as saved.
    """
    step, end = trial.stopped.get("step", 0.0), trial.stopped.get("max_steps", 0.0)
    last = max(step, *(each for each, _ in trial.curve[-1:]), 0.0)
    if trial.predicted is None or last <= 0:
        return 0.0
    return (trial.compute_seconds or 0.0) * max(end / last - 1, 0.0)


def positive_parts(parts: dict[str, float]) -> dict[str, float]:
    """Return the parts that are greater than zero."""
    return {name: amount for name, amount in parts.items() if amount > 0}


def cost_parts(region: RegionReport) -> dict[str, float]:
    """Return the parts of a region's cost in USD, without parts of zero.

    The parts are "trials", "full training and gate", and "lost" (failed attempts and interrupted
    executions).
    """
    jobs = [*region.trials, *([region.final_job] if region.final_job else [])]
    lost = sum(job.lost_usd or 0.0 for job in jobs)
    trials = sum((trial.usd or 0.0) - (trial.lost_usd or 0.0) for trial in region.trials)
    trials += region.between_usd or 0.0
    full = max(0.0, (region.usd or 0.0) - trials - lost)
    return positive_parts({"trials": trials, "full training and gate": full, "lost": lost})


def report_decimals(report: Report) -> int | None:
    """Return the number of decimals with which all values of the report metric are shown."""
    rows = ((row.report.default, row.report.tuned, row.final_metric) for row in report.regions)
    return column_decimals([value for values in rows for value in values])
