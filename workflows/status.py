"""Where a run stands: DAGMan's word, the job queue's and the study's, joined.

Each says what it alone knows. The study: which trials are finished, with which values. The queue:
which run, wait for a slot or are on hold. DAGMan: whether the graph is under way, and how it ended.
None of the three has to be reachable, so that a run can be read after its pool has gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet.errors import InputError, PoolError
from trialfleet.files import read_json
from trialfleet.workflows.folder import RegionFolder, RunFolder
from trialfleet.workflows.graph import RegionGraph, graph_of
from trialfleet.workflows.job_queue import (
    HeldJob,
    QueuedRun,
    dag_exit_code,
    look_up,
    rescue_file,
)
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
        reason: why the region stopped early.
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
    seconds_left: float | None = field(default=None)

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

    def read(self) -> RunStatus:
        """Return where the run stands now.

        Raises:
            OptimizerError: the study's storage can't be read.
        """
        queued, notice = self._look_up()
        state = self._state(queued)
        regions = tuple(self._region(region, queued, state) for region in self._graph.regions)
        rescue = rescue_file(self._folder.dag)
        ended_early = state in {RunState.FAILED, RunState.STOPPED}
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
            rescue=str(rescue) if rescue and ended_early else None,
            notice=(queued.root_held if queued else None) or notice,
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
        dag = self._folder.dag
        code = dag_exit_code(dag)
        if not dag.with_name(dag.name + ".condor.sub").exists():
            return RunState.PLANNED
        if dag.with_name(dag.name + ".lock").exists():  # DAGMan removes it when it ends
            return RunState.STOPPED if queued else RunState.UNKNOWN
        if code is None:
            return RunState.STOPPED if queued else RunState.UNKNOWN
        return RunState.DONE if code == 0 else _ended(self._folder, self._graph.regions)

    def _region(
        self, region: RegionGraph, queued: QueuedRun | None, run_state: RunState
    ) -> RegionStatus:
        from optuna.trial import TrialState

        files = self._folder.region(region.slug)
        trials = self.trials(region.name)
        complete = [t for t in trials if t.state == TrialState.COMPLETE]
        failed = sum(t.state == TrialState.FAIL for t in trials)
        asked = sum(t.state == TrialState.RUNNING for t in trials)
        running, idle = _jobs_of(region, queued)
        best = self._best(complete)
        phase = _phase(files, region, queued, len(complete) + failed)
        state = _region_state(files, region, queued, run_state)
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
            seconds_left=_seconds_left(trials, region.trials)
            if state is RunState.RUNNING and phase == "trials"
            else None,
            reason=_field(files.stopped, "reason"),
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
        """A region's trials; none while its study has not begun."""
        if not self._frozen.study.storage and not self._folder.database.exists():
            return []
        try:
            study_id = self._storage.get_study_id_from_name(
                study_name(self._frozen.study, self._frozen.run, region)
            )
        except KeyError:
            return []
        return self._storage.get_all_trials(study_id, deepcopy=False)

    @cached_property
    def _storage(self) -> BaseStorage:
        from trialfleet.optimizer.storage import open_storage

        return open_storage(storage_url(self._folder, self._frozen.study))


def _ended(folder: RunFolder, regions: Iterable[RegionGraph]) -> RunState:
    """How a run ended that did not succeed: stopped if a region was neither done nor given up."""
    files = [folder.region(region.slug) for region in regions]
    settled = all(f.stopped.exists() or f.published.exists() for f in files)
    return RunState.FAILED if settled else RunState.STOPPED


def _jobs_of(region: RegionGraph, queued: QueuedRun | None) -> tuple[int, int]:
    nodes = frozenset(region.trial_nodes)
    return (len(queued.running & nodes), len(queued.idle & nodes)) if queued else (0, 0)


def _region_state(
    files: RegionFolder, region: RegionGraph, queued: QueuedRun | None, run_state: RunState
) -> RunState:
    if files.published.exists():
        return RunState.DONE
    if queued and region.slug in queued.regions:
        return RunState.RUNNING
    if files.stopped.exists():
        return RunState.FAILED
    return RunState.WAITING if run_state is RunState.RUNNING else run_state


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
    try:
        return str(read_json(path)[key])
    except FileNotFoundError:
        return None


def _seconds_left(trials: list[FrozenTrial], budget: int) -> float | None:
    """Remaining trials at the pace so far: finished trials / time since the first was asked."""
    begun = [t.datetime_start for t in trials if t.datetime_start]
    finished = sum(t.state.is_finished() for t in trials)
    if not begun or not finished:
        return None
    first = min(begun)
    now = (
        datetime.now(first.tzinfo)
        if first.tzinfo
        else datetime.now(UTC).astimezone().replace(tzinfo=None)
    )
    return (now - first).total_seconds() / finished * max(0, budget - finished)


def _seconds_left_of_run(regions: Iterable[RegionStatus]) -> float | None:
    """The slowest region decides; regions that haven't begun are as slow as the mean of others."""
    regions = list(regions)
    known = [r.seconds_left for r in regions if r.seconds_left is not None]
    if not known:
        return None
    waiting = sum(r.phase == "waiting" for r in regions)
    return max(known) + waiting * sum(known) / len(known) / max(1, len(known))


def open_run(path: Path) -> RunFolder:
    """Return the run in a folder.

    Raises:
        InputError: the folder holds no run.
    """
    folder = RunFolder(path.absolute())
    if not folder.study.is_file():
        raise InputError(
            f"{str(path)!r} is no run's folder (it has no {folder.study.name}); "
            "make one with: trialfleet plan STUDY, or see those in ./runs"
        )
    return folder
