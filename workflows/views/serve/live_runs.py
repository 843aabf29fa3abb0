"""Snapshots of runs for the live pages, which are made only while a page is open.

A run is read again when a file or a job's state has changed, or after `_AGAIN` seconds. Changed
files are found by modification times. Files are renamed into place, so each new file also changes
the time of its folder. After each read there is a pause, so that reading takes at most the part
`_SHARE` of a core. Slow reads may take more, because no pause is longer than `_LONGEST` seconds.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from trialfleet.errors import PoolError, TrialfleetError
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
from trialfleet.workflows.views.serve.current_models import Champion, ChampionsReader

T = TypeVar("T")

_CHECK = 0.5  # seconds between two checks of modification times
_QUEUE = 2.0  # seconds between two queries of the states of jobs
_NO_QUEUE = 15.0  # seconds until the next query after the queue did not answer
_AGAIN = 20.0  # seconds after which an unchanged run is read again, for its logs
_SHARE = 0.008  # maximum part of a core for reading
_LONGEST = 2.0  # maximum seconds between two reads of a run that changes constantly
_SHARE_OF_LATELY = 0.04  # of a core, for parts that pages may show a few seconds later
_NUMBERS = itertools.count()
_TURN = 15.0  # seconds after which a page's part is rendered again, for ages and progress
_NODES = 10.0  # seconds between two reads of the nodes; the slots of a large pool are megabytes
_KEPT_RUNS = 32
_UNWATCHED = 10.0  # seconds after the last request when watching stops


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
        self._lately: dict[str, tuple[float, Any]] = {}

    def get(self, name: Hashable, source: object, make: Callable[[], T]) -> T:
        """Return the result cached under `name`, or a new one if `source` has changed."""
        known = self._made.get(name)
        if known is None or known[0] != source:
            known = self._made[name] = source, make()
        made: T = known[1]
        return made

    def get_throttled(self, name: str, make: Callable[[], T]) -> T:
        """Return the result cached under `name`, or a new one if that is too old.

        A result that takes long to make is kept for longer. So at most the share
        `_SHARE_OF_LATELY` of a core is used to make it.
        """
        known = self._lately.get(name)
        if known is None or time.monotonic() >= known[0]:
            cpu = time.thread_time()
            new = make()
            cost = time.thread_time() - cpu
            known = self._lately[name] = time.monotonic() + cost / _SHARE_OF_LATELY, new
        made: T = known[1]
        return made


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


class _Queue:
    def __init__(self, folder: RunFolder) -> None:
        self._jobs, self._next = run_constraint(folder), float("-inf")
        self._last: object = None

    def stamp(self) -> object:
        """Return the jobs' states, or None if they are unknown.

        The job queue is queried at most every `_QUEUE` seconds.
        """
        if time.monotonic() >= self._next:
            pause = _QUEUE
            try:
                self._last = schedd.query(self._jobs, ["ClusterId", "JobStatus"])
            except (PoolError, OSError):
                self._last, pause = None, _NO_QUEUE
            self._next = time.monotonic() + pause
        return self._last


class LiveRun:
    """A run that live pages show, which is read once for all pages."""

    def __init__(self, folder: RunFolder, nodes: NodeReader) -> None:
        """Open a run, or raise InputError if its study can't be read."""
        self.folder, self._nodes = folder, nodes
        self._frozen = load_frozen(folder.study)
        self._graph = {region.slug: region for region in build_graph(self._frozen.study).regions}
        self._places = tuple(map(str, self._watched_places()))  # needed twice a second
        self._reports: tuple[str, ...] = ()  # of the running trials
        self._reader: StatusReader | None = None
        self._kept = ResultCache()
        self._champions = ChampionsReader(self._frozen.study, self._graph)
        self._queue = _Queue(folder)
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._error: Exception | None = None
        self._watched = float("-inf")
        self._thread: threading.Thread | None = None
        self._stamp: object = None

    def snapshot(self) -> Snapshot:
        """Return the latest snapshot, or raise the error of the latest read if it failed.

        A thread reads the run after each change, until `_UNWATCHED` seconds after the last call.
        The call starts the thread if it is not running. The call waits for a new snapshot if there
        is none yet, or if the run has changed since the thread ended.
        """
        with self._changed:
            idle = time.monotonic() - self._watched > _UNWATCHED
            self._watched = time.monotonic()
            if self._thread is None:
                self._error = None
                if idle and self._snapshot and self._stamp != self._look_for_change():
                    self._snapshot = None
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._snapshot or self._error or not self._thread)
            if self._error:
                raise self._error
            if self._snapshot is None:
                raise TrialfleetError(
                    f"the run in {str(self.folder.root)!r} could not be read; reload the page"
                )
            return self._snapshot

    def _watch(self) -> None:
        try:
            self._follow()
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _follow(self) -> None:
        earliest = looked = float("-inf")
        while True:
            now = time.monotonic()
            with self._changed:
                if now - self._watched > _UNWATCHED:
                    return
            cpu = time.thread_time()
            if now >= earliest:  # earlier, a change could not be read anyway
                stamp = self._look_for_change()
                cost = time.thread_time() - cpu
                is_old = now - looked > _AGAIN
                if stamp != self._stamp or self._snapshot is None or is_old:
                    cost = self._read(stamp)
                    looked = time.monotonic()
                earliest = time.monotonic() + min(_LONGEST, cost / _SHARE)
            time.sleep(_CHECK)

    def _read(self, stamp: object) -> float:
        """Read the run, and return how many seconds of processor time that took.

        `stamp` has the modification times and the jobs' states from before the read.
        """
        cpu = time.thread_time()
        snapshot, error = None, None
        try:
            snapshot = self.read()
        except Exception as found:  # noqa: BLE001 - the request shows it, and the next read may work
            error = found
        with self._changed:
            self._stamp = stamp
            self._snapshot, self._error = snapshot, error
            self._changed.notify_all()
        return time.thread_time() - cpu

    def read(self) -> Snapshot:
        """Return a new snapshot, without waiting for changes of the run."""
        began = time.monotonic()
        self._reader = self._reader or StatusReader(self.folder)
        run = self._reader.snapshot()
        self._reports = tuple(str(path) for path in self._report_files(run))
        return Snapshot(
            number=next(_NUMBERS),
            folder=self.folder,
            frozen=self._frozen,
            graph=self._graph,
            run=run,
            champions=self._champions.read(),
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
        # changes in a database server aren't visible here, so the run is read again at intervals
        turn = self._frozen.study.storage and int(time.monotonic() / _QUEUE)
        return [*map(_stamp, (*self._places, *self._reports)), self._queue.stamp(), turn]

    def _watched_places(self) -> Iterator[Path]:
        folder, study = self.folder, self._frozen.study
        database = folder.database
        yield from (folder.root, database, database.with_name(f"{database.name}-wal"))
        yield from (folder.fleet_state, folder.alerts)
        for slug in self._graph:
            yield folder.region(slug).root
            if study.publishes:
                yield region_models_folder(study, slug)


def _stamp(path: str) -> tuple[int, int]:
    """Return a value that changes when a file is written, or when a folder gets a new file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path of text is looked at in half the time
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
        key = folder.root, _stamp(str(folder.study))
        with self._lock:
            run = self._runs.pop(key, None)
            run = run or LiveRun(folder, self.nodes)
            self._runs[key] = run
            while len(self._runs) > _KEPT_RUNS:
                del self._runs[next(iter(self._runs))]
            return run
