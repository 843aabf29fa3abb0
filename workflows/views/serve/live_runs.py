"""Snapshots of runs for the live pages, which are made only when a page is requested.

A run is read again when a file or a job's state has changed, or after `_AGAIN` seconds. Changed
files are found by modification times. Files are renamed into place, so each new file also changes
the time of its folder.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from trialfleet.errors import PoolError
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.collector import read_machines
from trialfleet.infra.pool.machines import Machine
from trialfleet.workflows.facts.dagman.job_queue import run_constraint
from trialfleet.workflows.facts.jobs.ordered_trial import end_place
from trialfleet.workflows.facts.models.folders import region_models_folder
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.status_reader import RunSnapshot, StatusReader
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.views.serve.current_models import Champion, read_champions

T = TypeVar("T")

_CHECK = 2.0  # seconds between two checks of modification times and of the states of jobs
_NO_QUEUE = 15.0  # seconds until the next query after the queue did not answer
_AGAIN = 20.0  # seconds after which an unchanged run is read again, for its logs
_NUMBERS = itertools.count()
_TURN = 15.0  # seconds after which a page's part is rendered again, for ages and progress
_NODES = 10.0  # seconds between two reads of the nodes; the slots of a large pool are megabytes
_KEPT_RUNS = 32


@dataclass(frozen=True, kw_only=True)
class PoolNodes:
    """The nodes of a pool. If they are unknown, `notice` says why."""

    nodes: tuple[Machine, ...] = ()
    notice: str = ""

    @property
    def price(self) -> float:
        """The sum of the nodes' prices in USD per hour, without unknown prices."""
        return sum(node.price or 0.0 for node in self.nodes)


class NodeReader:
    """Reads the nodes of the pool for all pages."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._found = PoolNodes()
        self._lock = threading.Lock()

    def read(self) -> PoolNodes:
        """Return the nodes as they were at most `_NODES` seconds ago."""
        with self._lock:
            if time.monotonic() - self._looked >= _NODES:
                try:
                    self._found = PoolNodes(nodes=read_machines())
                except PoolError as error:
                    self._found = PoolNodes(notice=str(error))
                self._looked = time.monotonic()
            return self._found


class ResultCache:
    """A cache of results by their names."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[object, Any]] = {}

    def get(self, name: Hashable, source: object, make: Callable[[], T]) -> T:
        """Return the result cached under `name`, or a new one if `source` has changed."""
        known = self._made.get(name)
        if known is None or known[0] != source:
            known = self._made[name] = source, make()
        made: T = known[1]
        return made

    def has(self, name: Hashable, source: object) -> bool:
        """Return whether `get` would return a cached result for this `name` and `source`."""
        known = self._made.get(name)
        return known is not None and known[0] == source


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run at one moment, for all pages.

    Attributes:
        number: a number that no other snapshot of this process has.
        champions: the current model of each region, by slug.
        seconds: how many seconds reading took.
        kept: the cache of results from this and earlier snapshots of the run.
    """

    number: int
    folder: RunFolder
    frozen: FrozenStudy
    graph: dict[str, RegionGraph]
    run: RunSnapshot
    champions: dict[str, Champion]
    nodes: PoolNodes
    seconds: float
    kept: ResultCache

    @property
    def now(self) -> datetime:
        """The present time, which is later than the time of the snapshot."""
        return datetime.now(UTC)

    @property
    def turn(self) -> int:
        """A number that changes at intervals, so that texts with ages are rendered again."""
        return int(time.time() / (60.0 if self.run.status.ended else _TURN))


class LiveRun:
    """A run that live pages show, which is read once for all pages."""

    def __init__(self, folder: RunFolder, nodes: NodeReader) -> None:
        """Open a run, or raise InputError if its study can't be read."""
        self.folder, self._nodes = folder, nodes
        self._frozen = load_frozen(folder.study)
        self._graph = {region.slug: region for region in build_graph(self._frozen.study).regions}
        self._places = tuple(self._watched_places())
        self._reports: tuple[Path, ...] = ()  # of the running trials
        self._reader: StatusReader | None = None
        self._kept = ResultCache()
        self._jobs, self._next_query = run_constraint(folder), float("-inf")
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._stamp: object = None
        self._next_check = self._looked = float("-inf")

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot. Raises an error if the run can't be read.

        The run is read if it has changed. While it is read for another request, the previous
        snapshot is returned, unless it is old because no page asked for a while.
        """
        known = self._snapshot
        is_recent = known is not None and time.monotonic() < self._next_check + _AGAIN
        if self._lock.acquire(blocking=not is_recent):
            try:
                known = self._snapshot = self._newest()
            except BaseException:
                self._snapshot = None
                raise
            finally:
                self._lock.release()
        assert known is not None, "otherwise the lock was waited for"
        return known

    def _newest(self) -> Snapshot:
        known, now = self._snapshot, time.monotonic()
        if known and now < self._next_check:
            return known
        stamp = self._look_for_change()
        if known is None or stamp != self._stamp or now - self._looked > _AGAIN:
            known = self.read()
            self._stamp, self._looked = stamp, now
        self._next_check = time.monotonic() + _CHECK
        return known

    def read(self) -> Snapshot:
        """Return a new snapshot, without waiting for changes of the run."""
        began = time.monotonic()
        self._reader = self._reader or StatusReader(self.folder)
        run = self._reader.snapshot()
        self._reports = tuple(self._report_files(run))
        return Snapshot(
            number=next(_NUMBERS),
            folder=self.folder,
            frozen=self._frozen,
            graph=self._graph,
            run=run,
            champions=read_champions(self._frozen.study, self._graph),
            nodes=self._nodes.read(),
            seconds=time.monotonic() - began,
            kept=self._kept,
        )

    def _report_files(self, run: RunSnapshot) -> Iterator[Path]:
        """Yield the files to which the trainers of running trials append their reports."""
        for region in run.status.regions:
            files = self.folder.region(region.slug)
            yield end_place(files, files.best).reports
            yield from (files.trial(each.node).reports for each in region.running_trials)

    def _look_for_change(self) -> object:
        # changes in a database server aren't visible here, so the run is read at each check
        turn = self._frozen.study.storage and time.monotonic()
        return [*map(_stamp, (*self._places, *self._reports)), self._job_states(), turn]

    def _job_states(self) -> object:
        """Return the jobs' states, or None if the queue does not answer."""
        if time.monotonic() < self._next_query:
            return None
        try:
            return schedd.query(self._jobs, ["ClusterId", "JobStatus"])
        except (PoolError, OSError):
            self._next_query = time.monotonic() + _NO_QUEUE
            return None

    def _watched_places(self) -> Iterator[Path]:
        folder, study = self.folder, self._frozen.study
        database = folder.database
        yield from (folder.root, database, database.with_name(f"{database.name}-wal"))
        yield from (folder.fleet_state, folder.alerts)
        for slug in self._graph:
            yield folder.region(slug).root
            if study.publishes:
                yield region_models_folder(study, slug)


def _stamp(path: Path) -> tuple[int, int]:
    """Return a value that changes when a file is written, or when a folder gets a new file."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size


class LiveRuns:
    """The runs that pages show, with a cache of the most recently used runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nodes = NodeReader()
        self._runs: dict[object, LiveRun] = {}

    def get_run(self, folder: RunFolder) -> LiveRun:
        """Return the run that is now in a folder.

        If another run was in the folder before, it is not returned. Raises InputError if the run's
        study can't be read.
        """
        key = folder.root, _stamp(folder.study)
        with self._lock:
            run = self._runs.pop(key, None)
            run = run or LiveRun(folder, self.nodes)
            self._runs[key] = run
            while len(self._runs) > _KEPT_RUNS:
                del self._runs[next(iter(self._runs))]
            return run
