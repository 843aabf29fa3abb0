"""The autoscaler as a process: step after step until it is told to end, or its graph is done.

It is a SERVICE node of a graph, its PROVISIONER, or a command that somebody runs on the manager.
What it does is written to a file for people. One autoscaler scales a fleet at a time on a machine;
another waits for its turn.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

import platformdirs
from botocore.exceptions import BotoCoreError, ClientError

from trialfleet.errors import TrialfleetError
from trialfleet.files import read_json, write_json
from trialfleet.infra.fleet.autoscaler import Autoscaler, Progress, Step
from trialfleet.infra.fleet.plain_data import plain
from trialfleet.infra.fleet.provisioning import Graph

PAUSE = 5.0  # seconds between steps; each is a few calls of AWS and one of the pool
LONGEST_PAUSE = 240.0  # … after several that failed
State = Literal["scaling", "failing", "ended"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the autoscaler tells of itself, after each step.

    Attributes:
        state: `failing` while steps fail; the next one is tried all the same.
        mode: `service` or `provisioner`.
        error: why the last step failed.
        step: the last one that did not fail.
    """

    fleet: str
    run: str
    mode: str
    state: State
    process: int
    at: datetime
    error: str
    step: Step | None

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"schema": 1, **plain(asdict(self))}


def default_report(fleet: str) -> Path:
    """Return where the autoscaler of a fleet reports on this machine."""
    return platformdirs.user_state_path("trialfleet") / "fleet" / f"{fleet}.json"


def read_report(path: Path) -> dict[str, Any] | None:
    """Return what the autoscaler last reported; None if it never did."""
    try:
        report: dict[str, Any] = read_json(path)
    except (OSError, ValueError):
        return None
    return report


class Loop:
    """One autoscaler's life."""

    def __init__(
        self,
        autoscaler: Autoscaler,
        *,
        fleet: str,
        run: str = "",
        report: Path | None = None,
        lock: Path | None = None,
        graph: Graph | None = None,
        progress: Progress = lambda _: None,
        pause: float = PAUSE,
    ) -> None:
        """Take what is needed; nothing is done yet.

        Args:
            autoscaler: what steps.
            fleet: the fleet's name, for the report.
            run: the run's id, for the report.
            report: the file to report to; default: `default_report(fleet)`.
            lock: the file that makes autoscalers take turns; default: this user's for the fleet.
            graph: the graph whose provisioner this is; None: this is a service.
            progress: told of errors, a line each.
            pause: seconds between steps.
        """
        self._autoscaler, self._fleet, self._run = autoscaler, fleet, run
        self._report = report or default_report(fleet)
        self._lock = lock or default_report(fleet).with_suffix(".lock")
        self._graph, self._progress, self._pause = graph, progress, pause
        self._stop = threading.Event()
        self._failures = 0
        self._provisioned = False
        self._last: Step | None = None

    def stop(self) -> None:
        """End after the step that is being made."""
        self._stop.set()

    def run(self) -> None:
        """Step until SIGTERM, SIGINT, `stop`, or the end of the graph; errors don't end it.

        Raises:
            OSError: the report can't be written.
        """
        for file in (self._report, self._lock):
            file.parent.mkdir(parents=True, exist_ok=True)
        with ending_by_signals(self.stop), self._lock.open("w") as lock:
            if self._alone(lock):
                while not self._stop.is_set() and not self._once():
                    self._stop.wait(self._until_next())
                self._tell("ended")

    def _alone(self, lock: IO[str]) -> bool:
        """Wait until no other autoscaler scales this fleet here; False if told to end first."""
        said = False
        while not self._stop.is_set():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not said:
                    self._progress(f"another autoscaler of the fleet {self._fleet!r} is at work")
                said = True
                self._stop.wait(self._pause)
            else:
                return True
        return False

    def _once(self) -> bool:
        """Make a step; return whether nothing is left to do."""
        try:
            self._last = self._autoscaler.step(least=self._least())
            over = self._look_at_the_graph(self._last)
        except (TrialfleetError, BotoCoreError, ClientError) as error:
            self._failures += 1
            self._progress(f"this step failed, the next follows: {error}")
            self._tell("failing", str(error))
            return False
        self._failures = 0
        self._tell("scaling")
        return over

    def _least(self) -> int:
        """A graph waits for its first node, before any of its trials can ask for one."""
        return 1 if self._graph and not self._provisioned else 0

    def _look_at_the_graph(self, step: Step) -> bool:
        """Start the graph once a node has joined; return whether all of it is done."""
        if self._graph is None:
            return False
        if not self._provisioned and step.joined:
            self._graph.start()
            self._provisioned = True
            self._progress("a node has joined: the graph may start")
        return self._provisioned and self._graph.over()

    def _until_next(self) -> float:
        return min(self._pause * 2.0 ** min(self._failures, 10), max(self._pause, LONGEST_PAUSE))

    def _tell(self, state: State, error: str = "") -> None:
        report = Report(
            fleet=self._fleet,
            run=self._run,
            mode="provisioner" if self._graph else "service",
            state=state,
            process=os.getpid(),
            at=datetime.now(UTC),
            error=error,
            step=self._last,
        )
        write_json(self._report, report.to_json())


@contextmanager
def ending_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and SIGINT, where this thread may take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(_number: int, _frame: FrameType | None) -> None:
        stop()

    former = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
