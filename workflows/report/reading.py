"""From Optuna's storage to a `Report`. Reads only: a storage that isn't there stays so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialfleet.optimizer.stored_trials import is_repeat
from trialfleet.workflows.cleaning import clean
from trialfleet.workflows.plan.folder import RegionFolder
from trialfleet.workflows.report import analysis
from trialfleet.workflows.report.formatting import is_finite
from trialfleet.workflows.report.model import Region, Report, Trial
from trialfleet.workflows.report.source import RegionSource, ReportSource
from trialfleet.workflows.status.causes import cause_of
from trialfleet.workflows.status.states import TrialState, trial_state

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial


def build_report(source: ReportSource) -> Report:
    """Read every region's study and say what came of it.

    A region without a study, and a storage that doesn't exist yet, are regions without trials.

    Raises:
        OptimizerError: the storage exists and can't be read.
    """
    from trialfleet.optimizer.storage import storage_to_read

    with storage_to_read(source.storage_url) as storage:
        regions = tuple(_region(source, region, storage) for region in source.regions)
    wall = (source.finished - source.created).total_seconds() if source.finished else None
    return Report(
        study=clean(source.study),
        run=clean(source.run),
        metric=clean(source.metric),
        direction=source.direction,
        report_metric=clean(source.report_metric),
        report_direction=source.report_direction or source.direction,
        created=source.created,
        finished=source.finished,
        notice=clean(source.notice),
        advice=clean(analysis.advice_on_worse(source, regions)),
        wall_seconds=wall,
        compute_seconds=sum(region.compute_seconds for region in regions),
        complete=sum(region.complete for region in regions),
        failed=sum(region.failed for region in regions),
        budget_trials=sum(region.budget_trials for region in regions),
        regions=regions,
    )


def _study(storage: BaseStorage | None, name: str) -> Study | None:
    import optuna

    try:
        return None if storage is None else optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return None


def _region(source: ReportSource, region: RegionSource, storage: BaseStorage | None) -> Region:
    study = _study(storage, region.study_name)
    stored = [] if study is None else study.get_trials(deepcopy=False)
    frozen = [trial for trial in stored if not is_repeat(trial)]
    trials = tuple(_trial(item, region.unfinished) for item in frozen)
    best = analysis.best_of(trials, source.direction)
    baseline = next((trial for trial in trials if trial.baseline), None)
    objective = analysis.compare(source.metric, source.direction, baseline, best, source)
    direction = source.report_direction or source.direction
    report = analysis.compare(source.report_metric, direction, baseline, best, source)
    final = None if region.final is None else _finite(clean(region.final))
    jobs = [trial.compute_seconds for trial in trials]
    jobs += [region.final_job.wall_seconds if region.final_job else None]
    importance, importance_note = analysis.importance_of(study, source.direction)
    counts = {state: sum(trial.state == state for trial in trials) for state in TrialState}
    return Region(
        name=clean(region.name),
        slug=clean(region.slug),
        study_name=clean(region.study_name),
        status=region.stage,
        stopped=clean(region.stopped),
        budget_trials=region.budget_trials,
        complete=counts[TrialState.COMPLETE],
        failed=counts[TrialState.FAILED],
        running=counts[TrialState.RUNNING],
        objective=objective,
        report=report,
        worse=analysis.worse_of(objective, report),
        final=final,
        final_job=region.final_job,
        published=None if region.published is None else clean(str(region.published)),
        not_latest=clean(region.not_latest),
        best_trial=None if best is None else best.number,
        baseline_trial=None if baseline is None else baseline.number,
        compute_seconds=sum(seconds or 0.0 for seconds in jobs),
        wall_seconds=_wall_seconds(frozen),
        importance=importance,
        importance_note=importance_note,
        settings=analysis.settings_of(
            clean(region.defaults), best, [item.distributions for item in frozen]
        ),
        cause=_cause(frozen, region),
        failures=analysis.failures_of(trials),
        trials=trials,
    )


def _cause(trials: Sequence[FrozenTrial], region: RegionSource) -> str | None:
    if region.folder is None:
        return None
    cause = cause_of(trials, RegionFolder(region.folder), failed=True)
    return clean(str(cause)) if cause else None


def _trial(trial: FrozenTrial, unfinished: Mapping[str, TrialState]) -> Trial:
    notes: dict[str, Any] = clean(trial.user_attrs)
    state = trial_state(trial.state.name, str(notes.get("node", "")), unfinished)
    value = trial.values[0] if trial.values else None
    return Trial(
        number=trial.number,
        node=str(notes.get("node", "")),
        state=state,
        baseline=notes.get("baseline") is True,
        objective=value if state == "complete" and is_finite(value) else None,
        metrics=_finite(notes.get("metrics")),
        params=_mapping(notes.get("params", clean(trial.params))),
        seconds=_number(notes.get("seconds")),
        device=str(notes.get("device") or ""),
        error=_error(state, notes.get("error")),
        curve=_curve(trial),
        **_job({**_mapping(notes.get("job")), "attempts": notes.get("attempts")}),
    )


def _job(noted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Job` that a trial's notes have; a trial that was told long ago has none."""
    numbers = ("started", "ended", "wall_seconds", "last_wall_seconds", "cpu_seconds", "memory_mb")
    texts = ("machine", "slot")
    attempts = noted.get("attempts")
    return {
        **{name: _number(noted.get(name)) for name in numbers},
        **{name: str(noted[name]) if noted.get(name) else None for name in texts},
        "attempts": attempts if isinstance(attempts, int) and attempts > 0 else 0,
    }


def _curve(trial: FrozenTrial) -> tuple[tuple[int, float], ...]:
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


def _wall_seconds(trials: Sequence[FrozenTrial]) -> float | None:
    starts = [trial.datetime_start for trial in trials if trial.datetime_start]
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete]
    if not starts or not ends:
        return None
    # Optuna's times have no zone: a clock set back during the run must not give a negative time
    return max(0.0, (max(ends) - min(starts)).total_seconds())
