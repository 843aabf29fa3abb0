"""The status of a run, from its trial database, the job queue and DAGMan's files.

A run's status can be read even if sources are unreachable, for example after its pool is removed.
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError, PoolError
from trialfleet.optimizer.stored_trials import (
    FAILURES,
    StoredTrial,
    best_trial,
    count_cut_off,
    is_stopped_early,
)
from trialfleet.optimizer.stored_trials import TrialState as StoredState
from trialfleet.workflows.facts.dagman.failing_scripts import failing_scripts, service_trouble
from trialfleet.workflows.facts.dagman.files import NodeStatus, read_node_status
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun, look_up
from trialfleet.workflows.facts.dagman.running_scripts import script_facts
from trialfleet.workflows.facts.disk_space import lack_of_space
from trialfleet.workflows.facts.jobs.gang_records import left_checkpoints
from trialfleet.workflows.facts.jobs.job_facts import JobFacts, may_fail, read_jobs
from trialfleet.workflows.facts.jobs.job_log import PricedExecution
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.outbox import undelivered_lines
from trialfleet.workflows.facts.models.approval import awaits_approval, reason_kept_out_now
from trialfleet.workflows.facts.models.export_folder import export_problems
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.run_folder.run_in_place import check_place
from trialfleet.workflows.facts.runs.failed_attempts import find_cause
from trialfleet.workflows.facts.runs.region_records import (
    RecordsReader,
    RegionRecords,
    read_end_files,
)
from trialfleet.workflows.facts.runs.spending import read_spending
from trialfleet.workflows.rules.cost_sums import sum_known
from trialfleet.workflows.rules.gate_decision import gate_rule, passed_message
from trialfleet.workflows.rules.jobs_without_progress import job_troubles
from trialfleet.workflows.rules.region_state import (
    early_end_reason,
    last_error,
    region_stage,
    region_state,
)
from trialfleet.workflows.rules.states import RunState, Stage, TrialState
from trialfleet.workflows.rules.useless_resume import final_reason
from trialfleet.workflows.status.attempts.trainer_fails_everywhere import reason_all_fail
from trialfleet.workflows.status.dagman_pauses import Span, pauses_so_far
from trialfleet.workflows.status.full_training_warnings import full_training_warning
from trialfleet.workflows.status.lost_work import WorkTime, region_executions
from trialfleet.workflows.status.missing_modules import installation_advice
from trialfleet.workflows.status.run_faults import Fault, faults, read_repairs
from trialfleet.workflows.status.run_state import run_state
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.status_types import UNDER_WAY, RegionStatus, RunStatus
from trialfleet.workflows.status.time_left import (
    first_start,
    seconds_left,
    seconds_left_of_run,
)
from trialfleet.workflows.status.unfinished_trials import (
    jobs_without_trial,
    running_trials,
    unfinished_states,
)
from trialfleet.workflows.status.waiting_reasons import Waiting
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen

_ENDS = {Stage.TRAINING, Stage.GATING, Stage.PUBLISHING}  # their files are read each time
_DECIDED_SECONDS = 30.0  # minimum time for which a region's status is cached
_HEAD = 65_536  # bytes of a report's data, which begins with the data of the whole run
_FINISHED = re.compile(rb'(?<!\\)"finished": ?"(\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d)"')


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """A run at one moment.

    Attributes:
        unfinished: the states of trials without a recorded result: by region, then by name.
        records: the records in the folders of the run's regions, by slug.
        queued: the run's jobs in the queue, or None if the queue is unreachable.
        queue_away: why the queue is unreachable, or empty.
        storage_away: why the trials are from an earlier read, or empty.
        service_away: why the optimiser's service does not answer, or empty.
        no_space: why the disk is too full to start anything, or empty.
    """

    status: RunStatus
    unfinished: Mapping[str, Mapping[str, TrialState]]
    trials: Mapping[str, list[StoredTrial]]
    records: Mapping[str, RegionRecords]
    queued: QueuedRun | None
    queue_away: str
    storage_away: str
    faults: tuple[Fault, ...]
    service_away: str
    no_space: str


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """The sources of a region's status, except the region's own files."""

    region: RegionGraph
    state: RunState
    node: NodeStatus | None  # in the whole run's graph
    records: RegionRecords
    trials: list[StoredTrial]
    queued: QueuedRun | None
    ads: Sequence[Mapping[str, Any]]  # of the region's jobs
    trouble: str  # why the optimiser's service does not answer, or empty
    by_stop: bool  # whether a person stopped the run


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """A region's cached status, valid while its sources don't change, and at most until `until`."""

    stamp: object  # changes with the sources
    until: float  # on the monotonic clock, because the stamp doesn't cover every source
    jobs: list[JobFacts]
    unfinished: dict[str, TrialState]  # trials without a recorded result, by name
    status: RegionStatus  # without the remaining time and the running trials
    first: float | None  # when the first of its trials was asked, in Unix seconds
    work: tuple[float, float]  # seconds of its jobs' executions, and of their lost part


class StatusReader:
    """Reads a run's status repeatedly.

    A finished trial is not read again if all trials before it in its region have finished, too.

    A reader changes nothing, so any number of readers may read a run while it runs. With `brief`, a
    snapshot's trials may lack their curves, parameters and metrics.
    """

    def __init__(self, folder: RunFolder, *, brief: bool = False) -> None:
        self._folder = folder
        self._frozen: FrozenStudy = load_frozen(folder.study)
        self._graph = build_graph(self._frozen.study)
        self._trials = RunTrials(folder, self._frozen, brief=brief)
        self._waiting = Waiting(folder, self._frozen)
        self._records = RecordsReader()
        days = [DailyFolder(folder.root.parent).alerts] if self._frozen.day else []
        self._outboxes = [folder.alerts, *days]
        self._decided: dict[str, _Decided] = {}  # by the regions' slugs
        self._names = {region.slug: region.name for region in self._graph.regions}
        self._hours = {
            name: self._frozen.study.region_budget(name).hours for name in self._names.values()
        }

    def read(self) -> RunStatus:
        """Return the run's present status. Its `notice` names unreachable sources."""
        return self.snapshot().status

    def snapshot(self) -> RunSnapshot:
        """Return the run's status and the facts behind it at one moment."""
        queued, queue_away = self._look_up()
        queue_notice = f"the job queue can't be read: {queue_away}" if queue_away else ""
        trials, study_notice = self._trials.read_all()
        found = faults(self._folder, queued.ads, time.time()) if queued else []
        records = self._read_records()
        state = run_state(self._folder, queued, records.values(), found)
        nodes = read_node_status(self._folder.dag_files.node_status)
        trouble = service_trouble(self._folder)
        is_running = state is RunState.RUNNING
        all_trials = chain.from_iterable(trials.values())
        pauses = pauses_so_far(self._folder, all_trials) if is_running else ()
        now, ads = time.time(), _ads_by_region(queued)
        by_stop = self._folder.stopped.exists()
        decided = [
            self._decide_region(
                _Sources(
                    region=region,
                    state=region_state(
                        records[region.slug], region, queued, nodes.get(region.slug), state
                    ),
                    node=nodes.get(region.slug),
                    records=records[region.slug],
                    trials=trials[region.name],
                    queued=queued,
                    ads=ads.get(region.slug, []),
                    trouble=trouble,
                    by_stop=by_stop,
                )
            )
            for region in self._graph.regions
        ]
        unfinished = {each.status.name: each.unfinished for each in decided}
        jobs = [job for each in decided for job in each.jobs]
        metric = self._frozen.study.objective.metric
        regions = tuple(
            replace(
                each.status,
                running_trials=running_trials(
                    self._folder.region(region.slug), region, queued, metric, each.unfinished
                ),
                seconds_left=self._seconds_left(each, pauses),
            )
            for region, each in zip(self._graph.regions, decided, strict=True)
        )
        errors, awaited = self._script_errors(regions, trouble)
        scripts = script_facts(self._folder, self._graph.regions, queued)
        troubled = job_troubles(jobs, now, scripts) if is_running else []
        study, causes = self._frozen.study, [each.cause for each in regions if each.cause]
        advice = (installation_advice(cause.error, study) for cause in causes)
        waits = self._waiting.reasons(queued) if queued else ()
        no_space = lack_of_space(self._folder.root)
        notices = queue_notice, study_notice, no_space, self._all_fail(trials, records)
        status = RunStatus(
            run=self._frozen.run,
            study=self._frozen.study.name,
            folder=str(self._folder.root),
            state=state,
            root=queued.root if queued else None,
            metric=metric,
            direction=self._frozen.study.objective.direction,
            regions=regions,
            held=queued.held if queued else (),
            notice="; ".join(filter(None, notices)) or None,
            troubles=(
                *(self._prefix_region(each.region, each.what) for each in found if each.is_sure),
                *errors,
                *awaited,
                *(
                    self._prefix_region(slug, f"another DAGMan takes over: {own.restart}")
                    for slug, own in records.items()
                    if own.restart is not None
                ),
                *(line for place in self._outboxes for line in undelivered_lines(place)),
                *export_problems(self._frozen.study),
                *(left_checkpoints(self._folder) if state not in UNDER_WAY else ()),
                *waits,
                *map(str, troubled),
            ),
            failing=tuple(errors),
            hopeless=self._waiting.hopeless if waits else (),
            job_troubles=tuple(troubled),
            work=WorkTime.from_parts(each.work for each in decided),
            repairs=tuple(self._repairs()),
            seconds_left=seconds_left_of_run(
                regions,
                min((each.first for each in decided if each.first is not None), default=None),
                pauses,
                publishes=self._frozen.study.publishes,
            )
            if is_running
            else None,
            money=read_spending(
                self._folder,
                self._frozen.run,
                self._frozen.study.fleet,
                is_under_way=state in UNDER_WAY,
            ),
            again=self._frozen.rerun_command(
                next((r.name for r in regions if r.cause and r.stage is Stage.FAILED), None)
            ),
            fix=next(filter(None, advice), ""),
        )
        return RunSnapshot(
            status=status,
            unfinished=unfinished,
            trials=trials,
            records=records,
            queued=queued,
            queue_away=queue_away,
            storage_away=study_notice or "",
            faults=tuple(found),
            service_away=trouble,
            no_space=no_space,
        )

    def state(self) -> RunState:
        """Return the present state of the whole run, without reading its trials."""
        queued, _ = self._look_up()
        found = faults(self._folder, queued.ads, time.time()) if queued else []
        return run_state(self._folder, queued, self._read_records().values(), found)

    def _read_records(self) -> dict[str, RegionRecords]:
        read, region = self._records.read, self._folder.region
        return {slug: read(region(slug)) for slug in self._names}

    def _look_up(self) -> tuple[QueuedRun | None, str]:
        try:
            return look_up(self._folder), ""
        except PoolError as error:
            return None, str(error)

    def _script_errors(
        self, regions: Iterable[RegionStatus], trouble: str
    ) -> tuple[list[str], list[str]]:
        """Return the errors of scripts and of the service, and why other scripts wait.

        `trouble` says why the optimiser's service does not answer, or is empty.
        """
        errors = [str(each) for each in failing_scripts(self._folder.failing)]
        under_way = [region for region in regions if region.state in {*UNDER_WAY, RunState.WAITING}]
        if trouble and under_way:
            errors.append(f"{trouble}; it will be retried")
        awaited: list[str] = []
        for region in under_way:
            for script in region.failing:
                found = errors if script.cause == "error" else awaited
                found.append(f"{region.name}: {script}")
        return errors, awaited

    def _repairs(self) -> Iterator[dict[str, Any]]:
        for repair in read_repairs(self._folder):
            yield repair | {"region": repair["region"] and self._names[repair["region"]]}

    def _prefix_region(self, slug: str | None, what: str) -> str:
        return f"{self._names[slug]}: {what}" if slug else what

    def _all_fail(
        self, trials: dict[str, list[StoredTrial]], records: Mapping[str, RegionRecords]
    ) -> str | None:
        if any(own.stopped is not None for own in records.values()):
            return None
        regions = self._graph.regions
        return reason_all_fail([(trials[r.name], self._folder.region(r.slug)) for r in regions])

    def _decide_region(self, sources: _Sources) -> _Decided:
        region, now = sources.region, time.monotonic()
        files = self._folder.region(region.slug)
        stamp = _stamp(sources, files)
        known = self._decided.get(region.slug)
        if known and known.stamp == stamp and now < known.until:
            return known
        unfinished = unfinished_states(files, region, sources.trials, sources.state, sources.queued)
        executions = self._executions(sources)
        known = _Decided(
            stamp=stamp,
            until=now + _DECIDED_SECONDS * (1 + random.random()),  # noqa: S311 - not all at once
            jobs=read_jobs(self._folder, sources.ads),
            unfinished=unfinished,
            status=replace(
                self._region(sources, unfinished), usd=sum_known(each.usd for each in executions)
            ),
            first=first_start(sources.trials),
            work=(
                sum(each.seconds for each in executions),
                sum(each.lost_seconds for each in executions),
            ),
        )
        if known.status.stage in _ENDS or region.gangs:  # some of their files have no stamp
            self._decided.pop(region.slug, None)
        else:
            self._decided[region.slug] = known
        return known

    def _executions(self, sources: _Sources) -> list[PricedExecution]:
        region, running = sources.region, sources.queued.running if sources.queued else frozenset()
        has_jobs = not running.isdisjoint((*region.trial_nodes, *region.end_nodes))
        files, now = self._folder.region(region.slug), time.time() if has_jobs else None
        found = region_executions(files, sources.trials, self._frozen.study, now)
        return [execution for _, execution in found]

    def _seconds_left(self, decided: _Decided, pauses: Sequence[Span]) -> float | None:
        region = decided.status
        if region.stage is not Stage.TUNING:
            return None
        hours = self._hours[region.name]
        return seconds_left(decided.first, region.finished, region.budget, hours, pauses)

    def _region(self, sources: _Sources, unfinished: Mapping[str, TrialState]) -> RegionStatus:
        region, records, queued = sources.region, sources.records, sources.queued
        state, node, trials = sources.state, sources.node, sources.trials
        files, study = self._folder.region(region.slug), self._frozen.study
        verdict = records.verdict
        complete = [t for t in trials if t.state is StoredState.COMPLETE]
        values = [trial.value for trial in complete if trial.value is not None]
        failed = sum(t.state is StoredState.FAIL for t in trials)
        stopped_early = sum(map(is_stopped_early, trials))
        pruned = sum(t.state is StoredState.PRUNED for t in trials) - stopped_early
        count = Counter(unfinished.values())
        best = best_trial(complete, study.objective.direction)
        finished = len(complete) + failed + pruned + stopped_early
        published = str(records.published["path"]) if records.published else None
        not_latest = reason_kept_out_now(records.published) if records.published else None
        awaits = awaits_approval(records.published) if records.published else None
        budget = study.region_budget(region.name)
        stage = region_stage(
            records,
            region,
            queued,
            state,
            finished,
            lambda: read_end_files(files),
            has_best=best is not None,
            not_current=not_latest is not None,
        )
        service_log, trouble = self._folder.service_log, sources.trouble
        error = last_error(records, node, files.scripts_log, trouble, service_log)
        by_stop = state is RunState.STOPPED and sources.by_stop
        reason = early_end_reason(records, node, state, by_stop=by_stop, error=error)
        return RegionStatus(
            name=region.name,
            slug=region.slug,
            state=state,
            stage=stage,
            done=len(complete),
            failed=failed,
            pruned=pruned,
            stopped_early=stopped_early,
            running=count[TrialState.RUNNING],
            queued=count[TrialState.QUEUED] + jobs_without_trial(files, region, unfinished, queued),
            on_hold=count[TrialState.HELD],
            interrupted=count[TrialState.INTERRUPTED],
            budget=region.trials,
            best=best.value if best else None,
            best_trial=best.number if best else None,
            reason=reason,
            published=published,
            spent=records.spent,
            not_latest=not_latest,
            awaits_approval=awaits.since.isoformat() if awaits else None,
            gate=passed_message(gate_rule(study), verdict) if study.gate and verdict else None,
            kept=verdict.why if verdict and not verdict.promoted else None,
            drift=(records.published or {}).get("drift"),
            holdout=full_training_warning(files, study, values) if published else None,
            changed=records.changed,
            checks=records.checks,
            cause=find_cause(trials, files, failed=state in {RunState.FAILED, RunState.STOPPED}),
            cut_off=count_cut_off(trials) if state is RunState.FAILED else 0,
            failing=records.failing,
            over=None
            if stage.is_good
            else final_reason(
                reason,
                failed=failed,
                allowed=budget.failures_allowed,
                finished=finished,
                budget=region.trials,
                done=len(complete),
            ),
        )


def _stamp(sources: _Sources, files: RegionFolder) -> object:
    """Return a value that changes with the sources of a region's status."""
    records = sources.records
    return (
        sources.state,
        sources.node,
        records,
        records.published and reason_kept_out_now(records.published),
        sources.trouble,
        sources.by_stop,
        sources.queued is None,
        [
            (trial.number, trial.state)
            if trial.state.is_finished()
            else (trial.number, trial.state, trial.user_attrs.get(FAILURES))
            for trial in sources.trials
        ],
        sources.ads,
        [_stamp_of_job(files, ad) for ad in sources.ads if "TrialfleetNode" in ad],
        untrusted_files.file_stamp(files.best.failures),
    )


def _stamp_of_job(files: RegionFolder, ad: Mapping[str, Any]) -> object:
    place, is_telling = files.node_folder(ad["TrialfleetNode"]), may_fail(ad)
    paths = (place.log, place.order, place.said, *([place.saved] if is_telling else []))
    return is_telling, [untrusted_files.file_stamp(path) for path in paths]


def open_run(path: Path) -> RunFolder:
    """Return the run in the folder `path`, which may also be a link to the folder.

    The result has the path that the folder had at planning, because the run's jobs use that path.
    Raises InputError if the folder does not contain a run, or was moved after planning.
    """
    study = RunFolder(path.absolute()).study
    try:
        study.stat()
        planned = Path(load_frozen(study).folder)
        check_place(path, planned)
        return RunFolder(planned)
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no {study.name}"
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise InputError(f"the run in {str(path)!r} can't be read: {error.strerror}") from error
        why = str(error.strerror)
    raise InputError(
        f"{str(path)!r} is not a run's folder ({why}); "
        "make one with: trialfleet plan STUDY, or list runs with: trialfleet runs"
    )


def last_finished(folder: RunFolder) -> datetime | None:
    """Return when a run ended, from its report, or None if this is unknown."""
    try:
        with untrusted_files.open_regular(folder.report_data) as file:
            found = _FINISHED.search(file.read(_HEAD))
    except OSError:
        return None
    return datetime.fromisoformat(found[1].decode()) if found else None


def _ads_by_region(queued: QueuedRun | None) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for ad in queued.ads if queued else ():
        if "TrialfleetRegion" in ad:
            found[ad["TrialfleetRegion"]].append(ad)
    return found
