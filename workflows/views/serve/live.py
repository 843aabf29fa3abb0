"""Looks at a run for all pages that show it: one look at a time, and only while somebody watches.

Whether anything has changed is asked often and cheaply: of the modification times of files, as
every file that matters is renamed into its folder, and of the states of the run's jobs. Only then
is the run read. However often it changes, reading takes at most `_SHARE` of a core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from trialfleet.classads import value
from trialfleet.errors import PoolError, TrialfleetError
from trialfleet.infra.pool.connection import connect, local_schedd, use
from trialfleet.workflows.facts.dagman.job_queue import of_run
from trialfleet.workflows.facts.jobs.current import end_place
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.graph import RegionGraph, graph_of
from trialfleet.workflows.status.reader import Look, StatusReader
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.views.serve.champions import Champion, ChampionsReader, models_folder
from trialfleet.workflows.views.serve.nodes import NodeReader, PoolNodes

T = TypeVar("T")

_CHECK = 0.5  # seconds between two looks at modification times
_QUEUE = 2.0  # … at the states of jobs
_NO_QUEUE = 15.0  # … after the queue did not answer
_AGAIN = 20.0  # seconds after which a run is read again, whatever has changed: what logs tell
_SHARE = 0.008  # of a core that reading takes at most, however much changes
_LONGEST = 2.0  # seconds between two looks at a run that changes all the time, and costs more
_SHARE_OF_LATELY = 0.04  # likewise of what pages may show a few seconds later
_UNWATCHED = 10.0  # seconds after which nobody watches any more


class Kept:
    """What was made of a run, for as long as what it was made of stays the same."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[object, Any]] = {}
        self._lately: dict[str, tuple[float, Any]] = {}

    def of(self, name: Hashable, source: object, make: Callable[[], T]) -> T:
        """Return what was made under a name of what equals the source; else it is made."""
        known = self._made.get(name)
        if known is None or known[0] != source:
            known = self._made[name] = source, make()
        made: T = known[1]
        return made

    def has(self, name: Hashable, source: object) -> bool:
        """Return whether something was made under a name of what equals the source."""
        known = self._made.get(name)
        return known is not None and known[0] == source

    def lately(self, name: str, make: Callable[[], T]) -> T:
        """Return what was made lately: making it again and again takes a small part of a core."""
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
    """A run at one moment, and all that pages show of it.

    Attributes:
        number: how many looks there were before: what is made of a snapshot stays as it is.
        frozen: what the run froze.
        graph: its regions.
        champions: the model in force of each region, by slug.
        seconds: what the look took.
        kept: what was made of this look and of those before.
    """

    number: int
    folder: RunFolder
    frozen: FrozenStudy
    graph: dict[str, RegionGraph]
    look: Look
    champions: dict[str, Champion]
    nodes: PoolNodes
    seconds: float
    kept: Kept

    @property
    def now(self) -> datetime:
        """The time; a run that nothing happens to is not looked at again."""
        return datetime.now(UTC)

    def turn(self, seconds: float) -> int:
        """Which span of so many seconds it is: what is shown with the time of day changes with it.

        Of a run that has ended only ages change: a minute is enough.
        """
        return int(time.time() / (60.0 if self.look.status.ended else seconds))


@dataclass
class _Queue:
    """The states of a run's jobs, asked so that it costs next to nothing."""

    folder: RunFolder
    schedd: Any = None
    asked: float = field(default=float("-inf"))
    pause: float = _QUEUE
    last: object = None

    def stamp(self) -> object:
        """What changes whenever a job does; asked now and then."""
        if time.monotonic() - self.asked >= self.pause:
            self.asked = time.monotonic()
            try:
                self.last, self.pause = self._ask(), _QUEUE
            except (PoolError, OSError):
                self.schedd, self.last, self.pause = None, None, _NO_QUEUE
        return self.last

    def _ask(self) -> object:
        if self.schedd is None:  # finding the pool takes longer than asking it
            use(connect())
        import htcondor2

        wanted = ["ClusterId", "JobStatus"]
        try:
            self.schedd = self.schedd or local_schedd()
            ads = self.schedd.query(constraint=of_run(self.folder), projection=wanted)
        except htcondor2.HTCondorException as error:
            raise PoolError(str(error)) from error
        return [tuple(value(ad, name) for name in wanted) for ad in ads]


class LiveRun:
    """A run that any number of pages show."""

    def __init__(self, folder: RunFolder, nodes: NodeReader) -> None:
        """Take the run of a folder; where it stands is not read before somebody asks.

        Args:
            folder: the run's.
            nodes: asks the pool for its nodes, for all runs.

        Raises:
            InputError: its study can't be read.
        """
        self.folder, self._nodes = folder, nodes
        self._frozen = load_frozen(folder.study)
        self._graph = {region.slug: region for region in graph_of(self._frozen.study).regions}
        self._places = tuple(map(str, self._watched_places()))  # asked for twice a second
        self._reports: tuple[str, ...] = ()  # those of the trials that run
        self._reader: StatusReader | None = None
        self._kept = Kept()
        self._champions = ChampionsReader(self._frozen.study, self._graph)
        self._queue = _Queue(folder)
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._error: Exception | None = None
        self._watched = float("-inf")
        self._thread: threading.Thread | None = None
        self._stamp: object = None

    def snapshot(self) -> Snapshot:
        """Return the run as it was last looked at; the first who asks waits for the first look.

        From now on it is looked at again whenever it changes, until nobody has asked for a while.

        Raises:
            TrialfleetError: it can't be read.
        """
        with self._changed:
            idle = time.monotonic() - self._watched > _UNWATCHED
            self._watched = time.monotonic()
            if self._thread is None:
                if idle:
                    self._snapshot = self._snapshot if self._is_as_it_was() else None
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._snapshot or self._error or not self._thread)
            if self._error:
                raise self._error
            if self._snapshot is None:
                raise TrialfleetError(f"{str(self.folder.root)!r} can't be looked at")
            return self._snapshot

    def _is_as_it_was(self) -> bool:
        """Whether what was seen when somebody last watched is still so."""
        return self._snapshot is not None and self._stamp == self._look_for_change()

    def _watch(self) -> None:
        """Look at the run whenever it has changed, for as long as somebody watches.

        Whatever ends this, whoever asks next begins anew.
        """
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
            if now >= earliest:  # else it would not be looked at anyway
                stamp = self._look_for_change()
                cost = time.thread_time() - cpu
                is_old = now - looked > _AGAIN
                if stamp != self._stamp or self._snapshot is None or is_old:
                    cost = self._look(stamp)
                    looked = time.monotonic()
                earliest = time.monotonic() + min(_LONGEST, cost / _SHARE)
            time.sleep(_CHECK)

    def _look(self, stamp: object) -> float:
        """Read the run; return the processor time that it took."""
        cpu = time.thread_time()
        snapshot, error = None, None
        try:
            snapshot = self.read()
        except Exception as found:  # noqa: BLE001 - whoever asked sees it, and the next look may do
            error = found
        with self._changed:
            self._stamp = stamp
            self._snapshot, self._error = snapshot, error
            self._changed.notify_all()
        return time.thread_time() - cpu

    def read(self) -> Snapshot:
        """Return the run as it is now; it is not watched for that."""
        began, last = time.monotonic(), self._snapshot
        self._reader = self._reader or StatusReader(self.folder)
        look = self._reader.look()
        self._reports = tuple(str(path) for path in self._reports_in(look))
        return Snapshot(
            number=last.number + 1 if last else 0,
            folder=self.folder,
            frozen=self._frozen,
            graph=self._graph,
            look=look,
            champions=self._champions.read(),
            nodes=self._nodes.read(),
            seconds=time.monotonic() - began,
            kept=self._kept,
        )

    def _reports_in(self, look: Look) -> Iterator[Path]:
        """The reports of what runs, which grow in place."""
        for region in look.status.regions:
            files = self.folder.region(region.slug)
            yield end_place(files, files.best).reports
            yield from (files.trial(each.node).reports for each in region.running_trials)

    def _look_for_change(self) -> object:
        # a database that is no file doesn't tell when it changes
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
                yield models_folder(study, slug)


def _stamp(path: str) -> tuple[int, int]:
    """What changes when a file is written, or a file of a folder is renamed into it."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path of text is looked at in half the time
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size


class LiveRuns:
    """The runs that pages show, each looked at once for all of them.

    Args:
        most: so many are kept; whoever was asked for longest ago goes.
    """

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.nodes = NodeReader()
        self._runs: dict[Path, LiveRun] = {}

    def of(self, folder: RunFolder) -> LiveRun:
        """Return the run of a folder."""
        with self._lock:
            run = self._runs.pop(folder.root, None)
            run = run or LiveRun(folder, self.nodes)
            self._runs[folder.root] = run
            while len(self._runs) > self._most:
                del self._runs[next(iter(self._runs))]
            return run
