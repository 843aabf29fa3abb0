"""Where a run stands: DAGMan's word, the job queue's and the study's, joined.

Each says what it alone knows. The study: which trials are finished, with which values. The queue:
which run, wait for a slot or are on hold. DAGMan: whether the graph is under way, and how it ended.
None of the three has to be reachable, so that a run can be read after its pool has gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.errors import InputError, OptimizerError, PoolError
from trialfleet.files import read_json
from trialfleet.workflows.dagman import NodeStatus, exit_code, read_node_status
from trialfleet.workflows.folder import RegionFolder, RunFolder
from trialfleet.workflows.graph import RegionGraph, graph_of
from trialfleet.workflows.job_queue import HeldJob, QueuedRun, look_up
from trialfleet.workflows.storage import storage_url, study_name
from trialfleet.workflows.study_file import FrozenStudy, load_frozen

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


class RunState(StrEnum):
    """Where a run, or a region of it, stands."""

    PLANNED = "planned"  # never submitted
    WAITING = "waiting"  # a region whose turn has not come
    RUNNING = "running"
    HELD = "held"  # its DAGMan is on hold
    DONE = "done"
    FAILED = "failed"  # ended; at least one region did not publish
    STOPPED = "stopped"  # ended before its time; `resume` goes on
    UNKNOWN = "unknown"  # HTCondor is out of reach and no end was recorded


@dataclass(frozen=True, kw_only=True)
class RegionStatus:
    """Where a region stands.

    Attributes:
        phase: "waiting", "trials", "best", "publish" or "done".
        done: trials that completed.
        running: trials whose job runs now.
        queued: trials whose job waits for a slot, or whose parameters are just chosen.
        failed: trials that failed for good.
        budget: trials that the region may run.
        best: the best value of the objective so far.
        best_trial: the number of that trial.
        seconds_left: estimate of the time until the last trial ends; None while there is no basis.
        reason: why the region ended early.
        published: folder of the published model.
    """

    name: str
    slug: str
    state: RunState
    phase: str
    done: int
    running: int
    queued: int
    failed: int
    budget: int
    best: float | None
    best_trial: int | None
    seconds_left: float | None
    reason: str | None
    published: str | None


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        root: the job id of its DAGMan, while that is in the queue.
        notice: what a reader should know first, e.g. that HTCondor is out of reach.
        held: jobs on hold, with their reasons.
        rescue: the rescue file that `resume` would go on from.
    """

    run: str
    study: str
    folder: str
    state: RunState
    root: str | None
    metric: str
    direction: str
    regions: tuple[RegionStatus, ...]
    held: tuple[HeldJob, ...] = ()
    rescue: str | None = None
    notice: str | None = None
    seconds_left: float | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen unless somebody does something."""
        return self.state not in {RunState.RUNNING, RunState.HELD, RunState.UNKNOWN}

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {"schema": 1, **asdict(self)}


class StatusReader:
    """Reads a run's status again and again; finished trials are fetched from the storage once.

    Reads only: any number of readers may look at a run while it runs.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._frozen: FrozenStudy = load_frozen(folder.study)
        self._graph = graph_of(self._frozen.study)
        self._seen: dict[str, list[FrozenTrial]] = {}

    def read(self) -> RunStatus:
        """Return where the run stands now; what can't be reached is said in the notice."""
        queued, queue_notice = self._look_up()
        trials, study_notice = self._read_trials()
        state = self._state(queued)
        nodes = read_node_status(self._folder.node_status)
        regions = tuple(
            self._region(region, trials[region.name], queued, nodes.get(region.slug), state)
            for region in self._graph.regions
        )
        rescue = self._folder.dag_files.rescue
        objective = self._frozen.study.objective
        return RunStatus(
            run=self._frozen.run,
            study=self._frozen.study.name,
            folder=str(self._folder.root),
            state=state,
            root=queued.root if queued else None,
            metric=objective.metric,
            direction=objective.direction,
            regions=regions,
            held=queued.held if queued else (),
            rescue=str(rescue) if rescue and state in _ENDED_EARLY else None,
            notice="; ".join(filter(None, [queue_notice, study_notice])) or None,
            seconds_left=_seconds_left_of_run(regions) if state is RunState.RUNNING else None,
        )

    def _look_up(self) -> tuple[QueuedRun | None, str | None]:
        try:
            return look_up(self._folder), None
        except PoolError as error:
            return None, f"the job queue can't be read: {error}"

    def _state(self, queued: QueuedRun | None) -> RunState:
        if queued and queued.root:
            return RunState.HELD if queued.root_held else RunState.RUNNING
        regions = [self._folder.region(region.slug) for region in self._graph.regions]
        if not any(files.submit.exists() for files in self._folder.all_dags()):
            return RunState.PLANNED
        if all(files.published.exists() for files in regions):
            return RunState.DONE
        if queued is None and not self._ended_by_itself():
            return RunState.UNKNOWN
        given_up = all(files.stopped.exists() or files.published.exists() for files in regions)
        return RunState.FAILED if given_up else RunState.STOPPED

    def _ended_by_itself(self) -> bool:
        """Whether the last DAGMan came to its end: it removes its lock then."""
        files = self._folder.dag_files
        return exit_code(files) is not None and not files.lock.exists()

    def _region(
        self,
        region: RegionGraph,
        trials: list[FrozenTrial],
        queued: QueuedRun | None,
        node: NodeStatus | None,
        run_state: RunState,
    ) -> RegionStatus:
        from optuna.trial import TrialState

        files = self._folder.region(region.slug)
        complete = [t for t in trials if t.state == TrialState.COMPLETE]
        failed = sum(t.state == TrialState.FAIL for t in trials)
        asked = sum(t.state == TrialState.RUNNING for t in trials)
        running, idle = _jobs_of(region, queued)
        best = self._best(complete)
        phase = _phase(files, region, queued, len(complete) + failed)
        state = _region_state(files, region, queued, node, run_state)
        is_tuning = state is RunState.RUNNING and phase == "trials"
        hours = self._frozen.study.budget_of(region.name).hours
        return RegionStatus(
            name=region.name,
            slug=region.slug,
            state=state,
            phase=phase,
            done=len(complete),
            running=running,
            queued=max(idle, asked - running) if state is RunState.RUNNING else idle,
            failed=failed,
            budget=region.trials,
            best=best.value if best else None,
            best_trial=best.number if best else None,
            seconds_left=_seconds_left(trials, region.trials, hours) if is_tuning else None,
            reason=_reason(files, node, state),
            published=_field(files.published, "path"),
        )

    def _best(self, complete: list[FrozenTrial]) -> FrozenTrial | None:
        sign = 1 if self._frozen.study.objective.direction == "minimize" else -1
        return min(complete, key=lambda t: (sign * (t.value or 0.0), t.number), default=None)

    @property
    def regions(self) -> list[str]:
        """The true names of the run's regions."""
        return [region.name for region in self._graph.regions]

    def trials(self, region: str) -> list[FrozenTrial]:
        """Return a region's trials; none while its study has not begun.

        Raises:
            OptimizerError: the storage can't be read.
        """
        from trialfleet.optimizer.storage import storage_errors

        if not self._frozen.study.storage and not self._folder.database.exists():
            return []
        name = study_name(self._frozen.study, self._frozen.run, region)
        with storage_errors(f"the storage of study {name!r}"):
            try:
                study_id = self._storage.get_study_id_from_name(name)
            except KeyError:
                return []
            return self._storage.get_all_trials(study_id, deepcopy=False)

    def _read_trials(self) -> tuple[dict[str, list[FrozenTrial]], str | None]:
        """The trials by region, as they were last seen where the storage is out of reach."""
        notice = None
        try:
            self._seen = {name: self.trials(name) for name in self.regions}
        except OptimizerError as error:
            notice = f"the study can't be read: {error}"
        return {name: self._seen.get(name, []) for name in self.regions}, notice

    @cached_property
    def _storage(self) -> BaseStorage:
        from optuna.storages import get_storage

        from trialfleet.optimizer.storage import open_storage

        # get_storage wraps it so that finished trials are fetched once
        return get_storage(open_storage(storage_url(self._folder, self._frozen.study)))


_ENDED_EARLY = {RunState.FAILED, RunState.STOPPED}


def _jobs_of(region: RegionGraph, queued: QueuedRun | None) -> tuple[int, int]:
    nodes = frozenset(region.trial_nodes)
    return (len(queued.running & nodes), len(queued.idle & nodes)) if queued else (0, 0)


def _region_state(
    files: RegionFolder,
    region: RegionGraph,
    queued: QueuedRun | None,
    node: NodeStatus | None,
    run_state: RunState,
) -> RunState:
    if files.published.exists():
        return RunState.DONE
    if queued and region.slug in queued.regions:
        return RunState.RUNNING
    if files.stopped.exists():
        return RunState.FAILED
    if node and node.failed:
        return RunState.STOPPED
    return RunState.WAITING if run_state is RunState.RUNNING else run_state


def _reason(files: RegionFolder, node: NodeStatus | None, state: RunState) -> str | None:
    """Why a region ended early: its own words, else DAGMan's."""
    if state is RunState.FAILED:
        return _field(files.stopped, "reason")
    if state is RunState.STOPPED and node and node.failed:
        return f"its DAGMan ended: {node.details or 'no details'}; see {files.scripts_log}"
    return None


def _phase(
    files: RegionFolder, region: RegionGraph, queued: QueuedRun | None, finished: int
) -> str:
    if files.published.exists():
        return "done"
    if queued and region.best in queued.running | queued.idle:
        return "best"
    if finished >= region.trials:
        return "publish" if _has_content(files.best.result) else "best"
    return (
        "trials" if finished or files.dag.with_name("region.dag.condor.sub").exists() else "waiting"
    )


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _field(path: Path, key: str) -> str | None:
    return str(read_json(path)[key]) if path.exists() else None


def _seconds_left(trials: list[FrozenTrial], budget: int, hours: float | None) -> float | None:
    """Remaining trials at the pace so far, finished trials / time since the first was asked."""
    begun = [t.datetime_start.timestamp() for t in trials if t.datetime_start]
    finished = sum(t.state.is_finished() for t in trials)
    if not begun or not finished:
        return None
    spent = time.time() - min(begun)
    left = spent / finished * max(0, budget - finished)
    return left if hours is None else min(left, max(0.0, hours * 3600 - spent))


def _seconds_left_of_run(regions: Iterable[RegionStatus]) -> float | None:
    """The slowest region decides; regions that haven't begun are as slow as the mean of others."""
    regions = list(regions)
    known = [r.seconds_left for r in regions if r.seconds_left is not None]
    if not known:
        return None
    waiting = sum(r.phase == "waiting" for r in regions)
    return max(known) + waiting * sum(known) / len(known) / max(1, len(known))


def open_run(path: Path) -> RunFolder:
    """Return the run in a folder, by the name under which it was planned.

    Its jobs carry that name; another spelling, or a link to it, means the same run.

    Raises:
        InputError: the folder holds no run, or was moved since it was planned.
    """
    folder = RunFolder(path.absolute())
    if not folder.study.is_file():
        raise InputError(
            f"{str(path)!r} is no run's folder (it has no {folder.study.name}); "
            "make one with: trialfleet plan STUDY, or see those in ./runs"
        )
    planned = Path(load_frozen(folder.study).folder)
    if not planned.is_dir() or not planned.samefile(path):
        raise InputError(
            f"{str(path)!r} was planned as {str(planned)!r}, and its files name each other so; "
            "move it back, or plan the study anew"
        )
    return RunFolder(planned)
