"""Where a run stands: DAGMan's word, the job queue's and the study's, joined.

Each says what it alone knows. The study: which trials are finished, with which values. The queue:
which run, wait for a slot or are on hold. DAGMan: whether the graph is under way, and how it ended.
None of the three has to be reachable, so that a run can be read after its pool has gone.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError, PoolError
from trialfleet.optimizer.stored_trials import (
    StoredTrial,
    best_trial,
    count_cut_off,
    is_stopped_early,
)
from trialfleet.optimizer.stored_trials import TrialState as StoredState
from trialfleet.workflows.facts.dagman.failing import failing_scripts, service_trouble
from trialfleet.workflows.facts.dagman.files import NodeStatus, exit_code, read_node_status, removal
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun, look_up
from trialfleet.workflows.facts.dagman.running_scripts import script_facts
from trialfleet.workflows.facts.disk_space import lack_of_space
from trialfleet.workflows.facts.jobs.job_facts import read_jobs
from trialfleet.workflows.facts.journal.outbox import undelivered
from trialfleet.workflows.facts.models.export_folder import unexported
from trialfleet.workflows.facts.models.folders import why_kept_out
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.run_folder.frozen_head import check_place
from trialfleet.workflows.facts.run_folder.graph import RegionGraph, graph_of
from trialfleet.workflows.facts.runs.causes import cause_of, why_all_fail
from trialfleet.workflows.facts.runs.region_records import (
    RecordsReader,
    RegionRecords,
    read_end_files,
)
from trialfleet.workflows.facts.runs.spending import read_spending
from trialfleet.workflows.rules.region_state import (
    gate_of,
    kept_by_gate,
    last_error,
    phase_of,
    reason_of,
    state_of,
    why_over,
)
from trialfleet.workflows.rules.states import RunState, Stage, TrialState, stage_of
from trialfleet.workflows.rules.vain_attempts import job_troubles
from trialfleet.workflows.status.health import Fault, faults, mends
from trialfleet.workflows.status.holdout import holdout_warning
from trialfleet.workflows.status.missing_modules import how_to_install
from trialfleet.workflows.status.pauses import Span, pauses_so_far
from trialfleet.workflows.status.run_status import UNDER_WAY, RegionStatus, RunStatus
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.time_left import begun, seconds_left, seconds_left_of_run
from trialfleet.workflows.status.unfinished_trials import (
    jobs_without_trial,
    running_trials,
    unfinished_of,
)
from trialfleet.workflows.status.waiting import Waiting
from trialfleet.workflows.status.work import WorkReader
from trialfleet.workflows.study.frozen import FrozenStudy, NoRunError, load_frozen
from trialfleet.workflows.study.spec import Study

_HEAD = 65_536  # bytes of a report's data: it begins with what is of the whole run
_FINISHED = re.compile(rb'(?<!\\)"finished": ?"(\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d)"')


@dataclass(frozen=True, kw_only=True)
class Look:
    """A run at one moment.

    Attributes:
        status: where it stands.
        unfinished: the words for trials that are asked and not told: by region, then by name.
        trials: all of its trials, by region.
        records: what its regions' folders say, by their slugs.
        queued: what the job queue has of it; None where that is out of reach.
        queue_away: why it is.
        storage_away: why its trials are those that were seen last.
        faults: what is wrong with its DAGMans.
        service_away: why the optimiser's service does not answer.
        no_space: why nothing may begin until the disk has more room; empty where it may.
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


class StatusReader:
    """Reads a run's status again and again; finished trials are fetched from the storage once.

    Reads only: any number of readers may look at a run while it runs.

    Args:
        folder: the run's.
        brief: whether the trials of a look lack their curves, parameters and metrics.
    """

    def __init__(self, folder: RunFolder, *, brief: bool = False) -> None:
        self._folder = folder
        self._frozen: FrozenStudy = load_frozen(folder.study)
        self._metric = self._frozen.study.objective.metric
        self._graph = graph_of(self._frozen.study)
        self._trials = RunTrials(folder, self._frozen, brief=brief)
        self._waiting = Waiting(folder, self._frozen)
        self._work = WorkReader(folder, self._frozen.study)
        self._records = RecordsReader()
        self._holdouts: dict[str, str | None] = {}
        self._names = {region.slug: region.name for region in self._graph.regions}

    def read(self) -> RunStatus:
        """Return where the run stands now; what can't be reached is said in the notice."""
        return self.look().status

    def look(self) -> Look:
        """Return where the run and its unfinished trials stand at one moment."""
        queued, queue_away = self._look_up()
        queue_notice = f"the job queue can't be read: {queue_away}" if queue_away else ""
        trials, study_notice = self._trials.all()
        found = faults(self._folder, queued.ads, time.time()) if queued else []
        records = self._read_records()
        state = self._state(queued, records, is_lost=any(fault.job is None for fault in found))
        nodes = read_node_status(self._folder.dag_files.node_status)
        trouble = service_trouble(self._folder)
        states = {
            region.slug: state_of(
                records[region.slug], region, queued, nodes.get(region.slug), state
            )
            for region in self._graph.regions
        }
        is_running = state is RunState.RUNNING
        log, all_trials = self._folder.dag_files.log, chain.from_iterable(trials.values())
        pauses = pauses_so_far(log, all_trials) if is_running else ()
        unfinished = {
            region.name: unfinished_of(
                self._folder.region(region.slug),
                region,
                trials[region.name],
                states[region.slug],
                queued,
            )
            for region in self._graph.regions
        }
        now, jobs = time.time(), read_jobs(self._folder, queued.ads) if queued else []
        work, usd = self._work.read(self._graph.regions, trials, jobs, queued, now)
        regions = tuple(
            self._region(
                region,
                trials[region.name],
                unfinished[region.name],
                queued,
                nodes.get(region.slug),
                states[region.slug],
                pauses,
                usd[region.name],
                records[region.slug],
                trouble,
            )
            for region in self._graph.regions
        )
        errors, awaited = self._failing(regions, trouble)
        objective = self._frozen.study.objective
        scripts = script_facts(self._folder, self._graph.regions, queued)
        troubled = job_troubles(jobs, now, scripts) if is_running else []
        no_space = lack_of_space(self._folder.root)
        notices = queue_notice, study_notice, no_space, self._all_fail(trials, records)
        status = RunStatus(
            run=self._frozen.run,
            study=self._frozen.study.name,
            folder=str(self._folder.root),
            state=state,
            root=queued.root if queued else None,
            metric=objective.metric,
            direction=objective.direction,
            regions=regions,
            held=queued.held if queued else (),
            notice="; ".join(filter(None, notices)) or None,
            troubles=(
                *(self._of(each.region, each.what) for each in found if each.is_sure),
                *errors,
                *awaited,
                *(
                    self._of(slug, f"another DAGMan takes over: {own.restart}")
                    for slug, own in records.items()
                    if own.restart is not None
                ),
                *undelivered(self._folder.alerts),
                *unexported(self._frozen.study),
                *(self._waiting.why(queued) if queued else ()),
                *map(str, troubled),
            ),
            failing=tuple(errors),
            job_troubles=tuple(troubled),
            work=work,
            mends=tuple(self._mends()),
            seconds_left=seconds_left_of_run(regions, begun(trials), pauses)
            if is_running
            else None,
            money=read_spending(self._folder, self._frozen.run, self._frozen.study.fleet),
            again=self._frozen.again_for(_blamed(regions)),
            mending=_mending(regions, self._frozen.study),
        )
        return Look(
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
        """Return where the run as a whole stands now, without a look at its trials."""
        queued, _ = self._look_up()
        found = faults(self._folder, queued.ads, time.time()) if queued else []
        is_lost = any(fault.job is None for fault in found)
        return self._state(queued, self._read_records(), is_lost=is_lost)

    def _read_records(self) -> dict[str, RegionRecords]:
        read, region = self._records.read, self._folder.region
        return {slug: read(region(slug)) for slug in self._names}

    def _look_up(self) -> tuple[QueuedRun | None, str]:
        try:
            return look_up(self._folder), ""
        except PoolError as error:
            return None, str(error)

    def _failing(
        self, regions: Iterable[RegionStatus], trouble: str
    ) -> tuple[list[str], list[str]]:
        """Return the errors of scripts and of their service, and what other scripts wait for."""
        errors = [str(each) for each in failing_scripts(self._folder.failing)]
        under_way = [region for region in regions if region.state in {*UNDER_WAY, RunState.WAITING}]
        if trouble and under_way:
            errors.append(f"{trouble}; it will be tried again")
        awaited: list[str] = []
        for region in under_way:
            for script in region.failing:
                found = errors if script.cause == "error" else awaited
                found.append(f"{region.name}: {script}")
        return errors, awaited

    def _mends(self) -> Iterator[dict[str, Any]]:
        for mend in mends(self._folder):
            yield mend | {"region": mend["region"] and self._names[mend["region"]]}

    def _of(self, slug: str | None, what: str) -> str:
        """Words on a region, or on the whole run, as people read them."""
        return f"{self._names[slug]}: {what}" if slug else what

    def _all_fail(
        self, trials: dict[str, list[StoredTrial]], records: Mapping[str, RegionRecords]
    ) -> str | None:
        """Why no trial can succeed, until regions are given up for it and say so themselves."""
        if any(own.stopped is not None for own in records.values()):
            return None
        regions = self._graph.regions
        return why_all_fail([(trials[r.name], self._folder.region(r.slug)) for r in regions])

    def _state(
        self, queued: QueuedRun | None, records: Mapping[str, RegionRecords], *, is_lost: bool
    ) -> RunState:
        if queued and queued.root:
            return RunState.HELD if queued.root_held else RunState.RUNNING
        regions = records.values()
        if not (self._folder.dag_files.submit.exists() or any(r.is_submitted for r in regions)):
            return RunState.PLANNED
        if is_lost:
            return RunState.LOST
        if all(own.is_done for own in regions):
            return RunState.DONE
        if queued is None and not self._ended_by_itself():
            return RunState.UNKNOWN
        is_removed = any(own.stopped is not None and not own.gave_up for own in regions)
        return RunState.STOPPED if is_removed or self._was_stopped() else RunState.FAILED

    def _was_stopped(self) -> bool:
        """Return whether a person ended the run: it is recorded, or HTCondor says so."""
        whole, *regions = self._folder.all_dags()
        dags = [whole] if whole.submit.exists() else regions
        return self._folder.stopped.exists() or any(removal(files) is not None for files in dags)

    def _ended_by_itself(self) -> bool:
        """Whether the last DAGMan came to its end: it removes its lock then."""
        files = self._folder.dag_files
        return exit_code(files) is not None and not files.lock.exists()

    def _region(
        self,
        region: RegionGraph,
        trials: list[StoredTrial],
        unfinished: Mapping[str, TrialState],
        queued: QueuedRun | None,
        node: NodeStatus | None,
        state: RunState,
        pauses: Sequence[Span],
        usd: float | None,
        records: RegionRecords,
        trouble: str,
    ) -> RegionStatus:
        files = self._folder.region(region.slug)
        complete = [t for t in trials if t.state is StoredState.COMPLETE]
        failed = sum(t.state is StoredState.FAIL for t in trials)
        stopped_early = sum(map(is_stopped_early, trials))
        pruned = sum(t.state is StoredState.PRUNED for t in trials) - stopped_early
        count = Counter(unfinished.values())
        best = best_trial(complete, self._frozen.study.objective.direction)
        finished = len(complete) + failed + pruned + stopped_early
        phase = phase_of(records, region, queued, finished, lambda: read_end_files(files))
        published = str(records.published["path"]) if records.published else None
        not_latest = why_kept_out(records.published) if records.published else None
        is_tuning = state is RunState.RUNNING and phase == "trials"
        budget = self._frozen.study.budget_of(region.name)
        stage = stage_of(state, phase, published=published is not None, kept=not_latest is not None)
        error = last_error(records, node, files.scripts_log, trouble, self._folder.service_log)
        by_stop = state is RunState.STOPPED and self._folder.stopped.exists()
        reason = reason_of(records, node, state, by_stop=by_stop, error=error)
        return RegionStatus(
            name=region.name,
            slug=region.slug,
            state=state,
            stage=stage,
            phase=phase,
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
            seconds_left=(
                seconds_left(trials, region.trials, budget.hours, pauses) if is_tuning else None
            ),
            reason=reason,
            published=published,
            spent=records.spent,
            not_latest=not_latest,
            gate=gate_of(records, self._frozen.study),
            kept=kept_by_gate(records),
            drift=(records.published or {}).get("drift"),
            holdout=self._holdout(files) if published else None,
            changed=records.changed,
            running_trials=running_trials(files, region, queued, self._metric, unfinished),
            usd=usd,
            cause=cause_of(trials, files, failed=state in {RunState.FAILED, RunState.STOPPED}),
            cut_off=count_cut_off(trials) if state is RunState.FAILED else 0,
            failing=records.failing,
            over=None
            if stage.is_good
            else why_over(
                reason,
                failed=failed,
                allowed=budget.failures_allowed,
                finished=finished,
                budget=region.trials,
                done=len(complete),
            ),
        )

    def _holdout(self, files: RegionFolder) -> str | None:
        """What a published model's losses say; its files don't change any more."""
        slug = files.root.name
        if slug not in self._holdouts:
            self._holdouts[slug] = holdout_warning(files, self._frozen.study)
        return self._holdouts[slug]

    @property
    def regions(self) -> list[str]:
        """The true names of the run's regions."""
        return [region.name for region in self._graph.regions]

    def trials(self, region: str) -> list[StoredTrial]:
        """Return a region's trials; none while its study has not begun.

        Raises:
            OptimizerError: the storage can't be read.
        """
        return self._trials.of(region)

    def best_trials(self, status: RunStatus) -> dict[str, StoredTrial]:
        """Return the best trial of each region that has one, as a look found it; likewise."""
        numbers = {each.name: each.best_trial for each in status.regions}
        return self._trials.some({name: n for name, n in numbers.items() if n is not None})


def open_run(path: Path) -> RunFolder:
    """Return the run in a folder, by the name under which it was planned.

    Its jobs carry that name; another spelling, or a link to it, means the same run.

    Raises:
        InputError: the folder holds no run, or was moved since it was planned.
    """
    folder = RunFolder(path.absolute())
    planned = _planned(folder, str(path))
    check_place(path, planned)
    return RunFolder(planned)


def _planned(folder: RunFolder, given: str) -> Path:
    """Where a run lay when it was planned."""
    why = f"it has no {folder.study.name}"
    if folder.study.exists():
        try:
            return Path(load_frozen(folder.study).folder)
        except NoRunError as error:
            why = str(error)
    raise InputError(
        f"{given!r} is no run's folder ({why}); "
        "make one with: trialfleet plan STUDY, or see those in ./runs"
    )


def last_finished(folder: RunFolder) -> datetime | None:
    """Return when a run ended, by the report of its last node; None where that doesn't say."""
    try:
        with folder.report_data.open("rb") as file:
            found = _FINISHED.search(file.read(_HEAD))
    except OSError:
        return None
    return datetime.fromisoformat(found[1].decode()) if found else None  # it can be written again


def _blamed(regions: Iterable[RegionStatus]) -> str | None:
    """The first region whose trainer failed it; None where there is none."""
    return next((r.name for r in regions if r.cause and r.stage is Stage.FAILED), None)


def _mending(regions: Iterable[RegionStatus], study: Study) -> str:
    """What installs the modules that a trainer misses, by the first region that tells of one."""
    causes = [region.cause.error for region in regions if region.cause]
    return next(filter(None, (how_to_install(error, study) for error in causes)), "")
