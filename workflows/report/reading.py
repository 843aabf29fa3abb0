"""From Optuna's storage to a `Report`. Reads only: a storage that isn't there stays so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from trialfleet.optimizer.stored_trials import (
    StoredTrial,
    best_trial,
    count_cut_off,
    is_own,
    is_stopped_early,
)
from trialfleet.workflows.cleaning import clean
from trialfleet.workflows.formatting import is_finite
from trialfleet.workflows.jobs.job_log import Stay
from trialfleet.workflows.plan.folder import RegionFolder
from trialfleet.workflows.report import analysis
from trialfleet.workflows.report.edges import edges_of
from trialfleet.workflows.report.model import RegionReport, Report, Trial
from trialfleet.workflows.report.source import RegionNotes, RegionSource, ReportSource, RunNotes
from trialfleet.workflows.status.causes import cause_of
from trialfleet.workflows.status.pauses import Span, paused_within, pauses_of
from trialfleet.workflows.status.states import Stage, TrialState, trial_state

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.study import Study

    from trialfleet.workflows.status.causes import AnyTrial

IN_REPORT = "the report has it"  # what is not reckoned anew whenever a trial ends


def build_report(source: ReportSource) -> Report:
    """Read every region's study and say what came of it.

    A region without a study, and a storage that doesn't exist yet, are regions without trials.

    Raises:
        OptimizerError: the storage exists and can't be read.
    """
    from trialfleet.optimizer.storage import storage_to_read

    with storage_to_read(source.storage_url) as storage:
        return _report(source, [_stored(storage, each.study_name) for each in source.regions])


def report_of_trials(
    source: ReportSource,
    trials: Sequence[StoredTrial],
    distributions: Mapping[str, BaseDistribution],
) -> Report:
    """Return the report of a single region whose trials are known, without parameters' importance.

    Args:
        source: the run, with that region alone.
        trials: the region's.
        distributions: those of its search space.
    """
    searched = [
        {name: distributions[name] for name in _params(trial) if name in distributions}
        for trial in trials
    ]
    return _report(source, [_Stored(None, trials, searched)])


def _report(source: ReportSource, stored: Sequence[_Stored]) -> Report:
    pauses = pauses_of(source.active, set(_signs(source, stored)), source.stops)
    regions = tuple(
        _region(source, region, each, pauses)
        for region, each in zip(source.regions, stored, strict=True)
    )
    notices = [source.notice, analysis.unreported(source.report_metric, regions)]
    begun, ended = _begun(source), source.finished.timestamp() if source.finished else math.inf
    paused = paused_within(pauses, begun, ended)
    return Report(
        **_noted(RunNotes, source),
        report_direction=source.report_direction or source.direction,
        notice=clean(" ".join(filter(None, notices))),
        advice=clean(analysis.advice_on_worse(source, regions)),
        edges=clean(edges_of(regions)),
        wall_seconds=ended - begun - paused if source.finished else None,
        paused_seconds=paused,
        pauses=pauses,
        compute_seconds=sum(region.compute_seconds for region in regions),
        usd=_sum([region.usd for region in regions]),
        complete=sum(region.complete for region in regions),
        failed=sum(region.failed for region in regions),
        budget_trials=sum(region.budget_trials for region in regions),
        regions=regions,
    )


@dataclass(frozen=True)
class _Stored:
    """A region's study, None where it was not opened, its trials, and where each was searched."""

    study: Study | None
    trials: Sequence[AnyTrial]
    searched: Sequence[Mapping[str, BaseDistribution]]


def _stored(storage: BaseStorage | None, name: str) -> _Stored:
    import optuna

    if storage is None:
        return _Stored(None, [], [])
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return _Stored(None, [], [])
    trials = [t for t in study.get_trials(deepcopy=False) if is_own(t)]
    return _Stored(study, trials, [trial.distributions for trial in trials])


def _signs(source: ReportSource, stored: Iterable[_Stored]) -> Iterator[float]:
    """When something happened to the run's jobs, in Unix seconds."""
    noted = [
        _job(_mapping(trial.user_attrs.get("job"))) for each in stored for trial in each.trials
    ]
    finals = [vars(region.final_job) for region in source.regions if region.final_job]
    for job in [*noted, *finals]:
        yield from (job[name] for name in ("started", "ended") if job[name] is not None)


def _begun(source: ReportSource) -> float:
    """When the run's first DAGMan began, else when the run was made, in Unix seconds."""
    return min((begin for begin, _ in source.active), default=source.created.timestamp())


def _region(
    source: ReportSource, region: RegionSource, stored: _Stored, pauses: Sequence[Span]
) -> RegionReport:
    study, frozen = stored.study, stored.trials
    trials = tuple(
        _trial(item, region.unfinished, region.stays.get(item.number, ())) for item in frozen
    )
    chosen = best_trial(frozen, source.direction)
    best = next((trial for trial in trials if chosen and trial.number == chosen.number), None)
    baseline = next((trial for trial in trials if trial.baseline), None)
    objective = analysis.compare(source.metric, source.direction, baseline, best, source)
    direction = source.report_direction or source.direction
    report = analysis.compare(source.report_metric, direction, baseline, best, source)
    final = None if region.final is None else _finite(clean(region.final))
    jobs = [trial.compute_seconds for trial in trials]
    jobs += [region.final_job.wall_seconds if region.final_job else None]
    importance, importance_note = (
        ((), IN_REPORT)
        if study is None and frozen
        else analysis.importance_of(study, source.direction)
    )
    worse = analysis.worse_of(objective, report)
    next_step, next_command = analysis.next_step_on_worse(region) if worse else (None, None)
    wall, paused = _wall_seconds(frozen, pauses)
    is_failed = region.stage is Stage.FAILED
    counts = {state: sum(trial.state == state for trial in trials) for state in TrialState}
    return RegionReport(
        **_noted(RegionNotes, region),
        status=region.stage,
        complete=counts[TrialState.COMPLETE],
        failed=counts[TrialState.FAILED] + (count_cut_off(frozen) if is_failed else 0),
        stopped_early=counts[TrialState.STOPPED_EARLY],
        running=counts[TrialState.RUNNING],
        objective=objective,
        report=report,
        worse=worse,
        next_step=clean(next_step),
        next_command=clean(next_command),
        why_command=clean(analysis.why_command(region)),
        final=final,
        published=None if region.published is None else clean(str(region.published)),
        best_trial=None if best is None else best.number,
        baseline_trial=None if baseline is None else baseline.number,
        compute_seconds=sum(seconds or 0.0 for seconds in jobs),
        wall_seconds=wall,
        paused_seconds=paused,
        importance=importance,
        importance_note=importance_note,
        settings=analysis.settings_of(clean(region.defaults), best, stored.searched),
        cause=_cause(frozen, region),
        failures=analysis.failures_of(trials),
        taught=_taught(frozen),
        trials=trials,
        final_stays=tuple(region.final_stays),
    )


def _noted(kind: type[RunNotes | RegionNotes], source: RunNotes | RegionNotes) -> dict[str, Any]:
    """What a report says as it was given, its texts made printable."""
    return {each.name: clean(getattr(source, each.name)) for each in fields(kind)}


def _taught(trials: Sequence[AnyTrial]) -> dict[str, float]:
    """What the model learned from when it was last asked, the most first."""
    noted = (_finite(clean(trial.user_attrs.get("taught"))) for trial in reversed(trials))
    found = next((each for each in noted if each), {})
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _cause(trials: Sequence[AnyTrial], region: RegionSource) -> str | None:
    if region.folder is None:
        return None
    cause = cause_of(trials, RegionFolder(region.folder), failed=True)
    return clean(str(cause)) if cause else None


def _trial(trial: AnyTrial, unfinished: Mapping[str, TrialState], stays: Sequence[Stay]) -> Trial:
    notes: dict[str, Any] = clean(trial.user_attrs)
    state = trial_state(
        trial.state.name,
        str(notes.get("node", "")),
        unfinished,
        stopped_early=is_stopped_early(trial),
    )
    value = trial.value
    return Trial(
        number=trial.number,
        node=str(notes.get("node", "")),
        state=state,
        baseline=notes.get("baseline") is True,
        objective=value if state == "complete" and is_finite(value) else None,
        predicted=value if state == "stopped early" and is_finite(value) else None,
        stopped=_finite(notes.get("stopped")),
        metrics=_finite(notes.get("metrics")),
        params=clean(_params(trial)),
        seconds=_number(notes.get("seconds")),
        device=str(notes.get("device") or ""),
        error=_error(state, notes.get("error")),
        curve=_curve(trial),
        stays=tuple(replace(stay, machine=clean(stay.machine)) for stay in stays),
        **_job({**_mapping(notes.get("job")), "attempts": notes.get("attempts")}),
    )


def _params(trial: AnyTrial) -> Mapping[str, Any]:
    """A trial's settings: what it noted, which has no constants, else what Optuna has."""
    return _mapping(trial.user_attrs.get("params", getattr(trial, "params", None)))


def _job(noted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Job` that a trial's notes have; a trial that was told long ago has none."""
    numbers = ("started", "ended", "wall_seconds", "last_wall_seconds", "cpu_seconds", "memory_mb",
               "usd", "lost_usd")  # fmt: skip
    texts = ("machine", "slot")
    attempts = noted.get("attempts")
    counts = {name: noted.get(name) for name in ("ranks", "generations")}
    return {
        **{name: _number(noted.get(name)) for name in numbers},
        **{name: str(noted[name]) if noted.get(name) else None for name in texts},
        "attempts": attempts if isinstance(attempts, int) and attempts > 0 else 0,
        **{name: count if isinstance(count, int) else None for name, count in counts.items()},
    }


def _sum(known: Sequence[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    found = [each for each in known if each is not None]
    return sum(found) if found else None


def _curve(trial: AnyTrial) -> tuple[tuple[int, float], ...]:
    values = sorted(trial.intermediate_values.items())
    return tuple((step, value) for step, value in values if is_finite(value))


def _error(state: str, error: Any) -> str | None:
    if state not in {"failed", "pruned"}:
        return None
    return str(error or "").strip() or "no error was recorded"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if is_finite(value) and value >= 0 else None


def _finite(value: Any) -> dict[str, float]:
    return {name: item for name, item in _mapping(value).items() if is_finite(item)}


def _wall_seconds(trials: Sequence[AnyTrial], pauses: Sequence[Span]) -> tuple[float | None, float]:
    """From a region's first trial to its last without pauses, and these; None without any trial."""
    starts = [trial.datetime_start.timestamp() for trial in trials if trial.datetime_start]
    ends = [trial.datetime_complete.timestamp() for trial in trials if trial.datetime_complete]
    if not starts or not ends:
        return None, 0.0
    paused = paused_within(pauses, min(starts), max(ends))
    # Optuna's times have no zone: a clock set back during the run must not give a negative time
    return max(0.0, max(ends) - min(starts) - paused), paused
