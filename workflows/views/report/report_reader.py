"""Functions that make a run's report from one snapshot of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from trialfleet.errors import OptimizerError
from trialfleet.workflows.facts.jobs.job_log import (
    read_job,
    total_cost,
)
from trialfleet.workflows.facts.jobs.ordered_trial import end_place
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.run_storage import study_name
from trialfleet.workflows.facts.runs.trial_executions import between_stays, end_stays
from trialfleet.workflows.rules.cost_sums import CostSum
from trialfleet.workflows.status.attempts.outcome import final_metrics
from trialfleet.workflows.status.dagman_pauses import read_dagmans
from trialfleet.workflows.status.day_outcomes import absence_text, left_out_or_why
from trialfleet.workflows.status.run_trials import build_trials
from trialfleet.workflows.status.status_reader import RunSnapshot, StatusReader
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.report.days_matrix import days_of_run
from trialfleet.workflows.views.report.report_numbers import (
    RegionFacts,
    build_report,
    teacher_weights,
    trial_span,
)
from trialfleet.workflows.views.report.report_types import Report, RunSummary
from trialfleet.workflows.views.terminal.days_table import DayView


def read_report(folder: RunFolder, finished: datetime | None = None) -> Report:
    """Return a run's report.

    `finished` is the run's end. If it is None, the report has no end and no wall time. Raises
    OptimizerError if the trial database can't be read. Raises InputError if a record of the run is
    damaged.
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
    """Return a report of some regions.

    `is_last` says that no other report of the snapshot follows. Then the snapshot's trials are
    removed to free memory, and the report of a daily run has the study's days.
    """
    days: tuple[DayView, ...] = ()
    if is_last and frozen.day:
        daily, current = DailyFolder(folder.root.parent), snapshot.status.regions
        days = days_of_run(daily, frozen.day.date, frozen.run, current)
    study = frozen.study
    nodes = _overhead(folder, study, finished or datetime.now(UTC))
    head = RunSummary(
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
    has_jobs = not finished and snapshot.status.state.has_jobs
    now = datetime.now(UTC).timestamp() if has_jobs else None
    made = []
    for each in regions:
        made.append(_read_region_facts(folder, frozen, each, snapshot, now))
        if is_last:
            snapshot.trials[each.name].clear()
    active, stops = read_dagmans(folder)
    return build_report(head, made, root=folder.root, active=active, stops=stops)


def _overhead(folder: RunFolder, study: Study, now: datetime) -> CostSum | None:
    """Return the sum of a run's costs, including its share of EC2 nodes' boot and idle time.

    Return None if the study has no fleet, or if no node of the run is known.
    """
    if study.fleet is None:
        return None
    from trialfleet.workflows.status.costs.bill import overhead  # imports boto3

    return overhead(folder, now)


def _notice(folder: RunFolder, day: RunsDay | None, regions: Iterable[RegionStatus]) -> str:
    reason = spending.out_of_money_reason(folder)
    lines = [f"Trials ended early: {reason}."] if reason else []
    lines += [f"{region.name} ended early: {region.spent}." for region in regions if region.spent]
    absent, trouble = left_out_or_why(folder.root, day)
    lines += [f"{absence_text(one)}." for one in absent]
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
    return RegionFacts(
        status=status,
        study_name=study_name(study, frozen.run, name),
        trials=build_trials(name, stored, snapshot.unfinished[name], files, study, now),
        taught=teacher_weights(stored),
        span=trial_span(stored),
        parameters=space.parameters,
        defaults=space.active(space.defaults()),
        final=final_metrics(files),
        final_job=read_job(end_place(files, files.best)),
        final_stays=end_stays(files, files.best, study, now),
        gate_stays=end_stays(files, files.gate, study, now),
        between_usd=total_cost(between_stays(files, study, now)),
    )
