"""Reading of a run's `Report` from one snapshot; a missing trial database is not created."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trialfleet.errors import OptimizerError
from trialfleet.optimizer.space import Tunable
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.cleaning import clean, keep_finite
from trialfleet.workflows.facts.jobs.cost import sum_known
from trialfleet.workflows.facts.jobs.job_log import (
    Job,
    Stay,
    read_executions,
    read_job,
    read_removals,
    total_cost,
)
from trialfleet.workflows.facts.jobs.ordered_trial import end_place
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.models.folders import current_model
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.job_costs import between_stays, end_stays
from trialfleet.workflows.facts.runs.run_storage import study_name
from trialfleet.workflows.rules.cost_sums import CostSum
from trialfleet.workflows.status.attempts.outcome import final_metrics
from trialfleet.workflows.status.dagman_pauses import Span, find_pauses, pause_overlap
from trialfleet.workflows.status.day_outcomes import left_out_or_why
from trialfleet.workflows.status.earlier_model import find_better_previous
from trialfleet.workflows.status.run_trials import Trial, build_trials
from trialfleet.workflows.status.status_reader import RunSnapshot, StatusReader
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.report import analysis
from trialfleet.workflows.views.report.days_matrix import days_of_run
from trialfleet.workflows.views.report.importance import parameter_importances
from trialfleet.workflows.views.report.model import Head, RegionReport, Report
from trialfleet.workflows.views.terminal.days_table import DayView


@dataclass(frozen=True, kw_only=True)
class RegionFacts:
    """The facts from which a `RegionReport` is made.

    Attributes:
        taught: the weights of regions of previous runs in the optimiser's model, as in
            `RegionReport`.
        data: the region's data files.
        final: the metrics of the full training; None before publication.
        final_job: HTCondor's data on the full training's job; None before its start.
        final_stays: the executions of the full training's job.
        gate_job: HTCondor's data on the gate's job; None before its start.
        between_usd: the cost of jobs' time between trials; None if unknown.
        span: when the first trial was asked for, and when the last result was recorded; None
            before the first result.
        parameters: the tuned parameters of the search space.
        defaults: the default settings, without constants and inactive parameters.
        current: the model that `latest` links to; None if unknown, or before publication.
        previous: the region's previous model if its metric was better; None if it was not better,
            or if this is unknown.
    """

    status: RegionStatus
    study_name: str
    trials: tuple[Trial, ...]
    taught: Mapping[str, float]
    span: Span | None
    parameters: Mapping[str, Tunable]
    defaults: Mapping[str, Any]
    data: Sequence[str] = ()
    final: Mapping[str, float] | None = None
    final_job: Job | None = None
    final_stays: Sequence[Stay] = ()
    gate_job: Job | None = None
    between_usd: float | None = None
    current: Path | None = None
    previous: Path | None = None


def read_report(folder: RunFolder, finished: datetime | None = None) -> Report:
    """Return a run's report; OptimizerError if the trial database is unreadable or lost.

    `finished` is the run's end. If it is None, the report has no end and no wall time. Raises
    InputError if a record of the run is damaged.
    """
    snapshot = StatusReader(folder).snapshot()
    if snapshot.storage_away:
        raise OptimizerError(snapshot.storage_away)
    frozen, regions = load_frozen(folder.study), snapshot.status.regions
    return _report(folder, frozen, snapshot, regions, finished, is_last=True)


def report_of_region(
    folder: RunFolder, frozen: FrozenStudy, snapshot: RunSnapshot, slug: str
) -> Report:
    """Return a report with only the region `slug` of a run, from one snapshot."""
    regions = [region for region in snapshot.status.regions if region.slug == slug]
    return _report(folder, frozen, snapshot, regions, None)


def _report(
    folder: RunFolder,
    frozen: FrozenStudy,
    snapshot: RunSnapshot,
    regions: Sequence[RegionStatus],
    finished: datetime | None,
    *,
    is_last: bool = False,
) -> Report:
    """Return a report of some regions; `is_last` adds the days, and frees the snapshot's trials."""
    days: tuple[DayView, ...] = ()
    if is_last and frozen.day:
        daily, current = DailyFolder(folder.root.parent), snapshot.status.regions
        days = days_of_run(daily, frozen.day.date, frozen.run, current)
    study = frozen.study
    nodes = _overhead(folder, study, finished or datetime.now(UTC))
    head = Head(
        study=study.name,
        run=frozen.run,
        metric=study.objective.metric,
        direction=study.objective.direction,
        report_metric=study.compared_metric,
        report_direction=study.compared_direction,
        created=frozen.created,
        finished=finished,
        boot_usd=nodes.boot if nodes else None,
        idle_usd=nodes.idle if nodes else None,
        lost_share=snapshot.status.work.lost_share,
        notice=_notice(folder, frozen.day, snapshot.status.regions),
        days=days,
    )
    now = None if finished or snapshot.status.ended else datetime.now(UTC).timestamp()
    made = []
    for each in regions:
        made.append(_read_region_facts(folder, frozen, each, snapshot, now))
        if is_last:
            snapshot.trials[each.name].clear()
    return build_report(
        head,
        made,
        root=folder.root,
        active=[span for files in folder.all_dags() for span in read_executions(files.log)],
        stops=read_removals(folder.dag_files.log),
    )


def _overhead(folder: RunFolder, study: Study, now: datetime) -> CostSum | None:
    """Return the run's share of the cost of nodes without a job; None without a fleet or nodes."""
    if study.fleet is None:
        return None
    from trialfleet.workflows.status.costs.bill import overhead  # imports boto3

    return overhead(folder, now)


def _notice(folder: RunFolder, day: RunsDay | None, regions: Iterable[RegionStatus]) -> str:
    reason = spending.out_of_money_reason(folder)
    lines = [f"Trials ended early: {reason}."] if reason else []
    lines += [f"{region.name} ended early: {region.spent}." for region in regions if region.spent]
    lines += [f"{region.name}: {region.drift}." for region in regions if region.drift]
    absent, trouble = left_out_or_why(folder.root, day.date) if day else ([], None)
    lines += [f"{one.region} is not in this run: it failed its day: {one.why}." for one in absent]
    lines += [f"{trouble}."] if trouble else []
    return " ".join(lines)


def _read_region_facts(
    folder: RunFolder,
    frozen: FrozenStudy,
    status: RegionStatus,
    snapshot: RunSnapshot,
    now: float | None,
) -> RegionFacts:
    name, study, files = status.name, frozen.study, folder.region(status.slug)
    stored, space = snapshot.trials[name], study.region_space(name)
    current, previous = _other_models(status.published, study)
    return RegionFacts(
        status=status,
        study_name=study_name(study, frozen.run, name),
        trials=build_trials(name, stored, snapshot.unfinished[name], files, study, now),
        taught=teacher_weights(stored),
        span=trial_span(stored),
        parameters=space.parameters,
        defaults=space.active(space.defaults()),
        data=study.data_paths(name),
        final=final_metrics(files),
        final_job=read_job(end_place(files, files.best)),
        gate_job=read_job(end_place(files, files.gate)),
        final_stays=end_stays(files, files.best, study, None if files.is_done else now),
        between_usd=total_cost(between_stays(files, study, now)),
        current=current,
        previous=previous,
    )


def _other_models(published: str | None, study: Study) -> tuple[Path | None, Path | None]:
    if published is None:
        return None, None
    try:
        return current_model(Path(published)), find_better_previous(Path(published), study)
    except OSError:  # moved or unreadable: the report is written without them
        return None, None


def build_report(
    run: Head,
    regions: Sequence[RegionFacts],
    *,
    root: Path,
    active: Sequence[tuple[float, float | None]] = (),
    stops: Sequence[float] = (),
) -> Report:
    """Return the report of a run from its facts.

    `root` is the run's folder. `active` has the start and end of each execution of the run's DAGMan
    jobs, as returned by `read_executions`. `stops` has the times, in Unix seconds, when the DAGMan
    of the whole run was removed from the queue.
    """
    pauses = find_pauses(active, set(_job_times(regions)), stops)
    made = tuple(_region(run, region, root, pauses) for region in regions)
    notices = [run.notice, analysis.unreported_note(run.report_metric, made)]
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
        advice=clean(analysis.advice_on_worse(run.metric, run.report_metric)) if is_worse else "",
        edges=clean(analysis.edge_advice(made)),
        wall_seconds=ended - begun - paused if run.finished else None,
        paused_seconds=paused,
        pauses=pauses,
        compute_seconds=sum(region.compute_seconds for region in made),
        usd=sum_known(region.usd for region in made),
        complete=sum(region.complete for region in made),
        failed=sum(region.failed for region in made),
        budget_trials=sum(region.budget_trials for region in made),
        regions=made,
    )


def _job_times(regions: Iterable[RegionFacts]) -> Iterator[float]:
    """Yield when the run's jobs started and ended, in Unix seconds."""
    for region in regions:
        for job in (*region.trials, region.final_job):
            if job:
                yield from (time for time in (job.started, job.ended) if time is not None)


def _region(run: Head, region: RegionFacts, root: Path, pauses: Sequence[Span]) -> RegionReport:
    status, trials = region.status, region.trials
    best = next((trial for trial in trials if trial.trial == status.best_trial), None)
    baseline = next((trial for trial in trials if trial.baseline), None)
    pair = (baseline, best, run.metric)
    objective = analysis.compare(run.metric, run.direction, *pair)
    report = analysis.compare(run.report_metric, run.report_direction, *pair)
    importance, note = parameter_importances(trials, region.parameters, run.direction)
    jobs = [trial.compute_seconds for trial in trials]
    jobs += [region.final_job.wall_seconds if region.final_job else None]
    begin, end = region.span or (0.0, 0.0)
    paused = pause_overlap(pauses, begin, end)
    worse, next_step, next_command = analysis.worse_sentence(objective, report), None, None
    if worse and status.published and region.current:
        next_step, next_command = analysis.next_step_on_worse(
            status.name, region.data, Path(status.published), region.current, region.previous
        )
    return RegionReport(
        name=clean(status.name),
        slug=clean(status.slug),
        study_name=clean(region.study_name),
        stopped=clean(status.reason),
        budget_trials=status.budget,
        final_job=region.final_job and _clean_job(region.final_job),
        gate_job=region.gate_job and _clean_job(region.gate_job),
        not_latest=clean(status.not_latest),
        gate=clean(str(status.gate)) if status.gate else None,
        gate_worse=status.gate is not None and status.gate.is_worse,
        usd=status.usd,
        between_usd=region.between_usd,
        holdout=clean(status.holdout),
        changed=clean(status.changed),
        checks=clean(status.checks),
        status=status.stage,
        complete=status.done,
        failed=status.failed + status.cut_off,
        stopped_early=status.stopped_early,
        running=status.running,
        objective=objective,
        report=report,
        worse=worse,
        next_step=clean(next_step),
        next_command=clean(next_command),
        why_command=clean(analysis.why_command(status.name, root)),
        final=None if region.final is None else keep_finite(clean(region.final)),
        published=clean(status.published),
        best_trial=status.best_trial,
        baseline_trial=None if baseline is None else baseline.trial,
        compute_seconds=sum(seconds or 0.0 for seconds in jobs),
        # Optuna's times have no zone: a clock set back during the run must not give a negative time
        wall_seconds=max(0.0, end - begin - paused) if region.span else None,
        paused_seconds=paused,
        importance=importance,
        importance_note=note,
        settings=analysis.compare_settings(clean(region.defaults), best, trials, region.parameters),
        cause=clean(str(status.cause)) if status.cause else None,
        failures=analysis.group_failures(trials),
        taught=dict(region.taught),
        trials=trials,
        final_stays=tuple(region.final_stays),
    )


def _clean_job(job: Job) -> Job:
    return replace(job, machine=clean(job.machine), slot=clean(job.slot))


def trial_span(trials: Sequence[StoredTrial]) -> Span | None:
    """Return when a region's first trial was asked for, and when its last result was recorded.

    Before any trial of the region has a result, return None.
    """
    starts = [trial.datetime_start for trial in trials if trial.datetime_start]
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete]
    return (min(starts).timestamp(), max(ends).timestamp()) if starts and ends else None


def teacher_weights(trials: Sequence[StoredTrial]) -> dict[str, float]:
    """Return the weights of previous runs' regions in the optimiser's model, greatest first.

    The weights are those at the last trial that learned from previous runs.
    """
    noted = (clean(trial.user_attrs.get("taught")) for trial in reversed(trials))
    found = next((kept for each in noted if each and (kept := keep_finite(each))), {})
    return dict(sorted(found.items(), key=lambda item: -item[1]))
