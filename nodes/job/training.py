"""Trains a job's trials, and sends their checkpoints and results.

A trial that exceeds a limit is ended. A trainer that exits with code 85 has saved a checkpoint, and
is started again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import CHECKPOINT_PACKAGE, ENDED, PROGRESS, RESULT
from trialfleet.nodes.job import checkpoints
from trialfleet.nodes.job import folder as folders
from trialfleet.nodes.job.events import Events, WantedBackError
from trialfleet.nodes.job.pack_and_unpack import TooLargeError, UnsendableError
from trialfleet.nodes.job.package_transfer import PackageTransfer
from trialfleet.nodes.job.process_tree import ProcessTree, resident_mb
from trialfleet.nodes.job.reports import Exchange, Reports
from trialfleet.nodes.job.trainer_process import Trainer
from trialfleet.nodes.job.trial_limits import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trialfleet.nodes.job.chirp import Chirp
    from trialfleet.nodes.job.messages import Messages, Order

KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
FIRST_CARRY = 0.02  # seconds until the first transfer of reports; shorter trials have none


@dataclass
class TrialEnd:
    """The end of a trial, and the resources that the trial used in this job."""

    status: int = 0  # as from waitpid
    seconds: float = 0.0  # of wall time, from the order to its end
    cpu_seconds: float = 0.0  # of all of its processes
    memory_mb: float = 0.0  # the largest total memory of its processes
    over: str | None = None  # the exceeded limit: "memory", "time", "disk" or "files"

    @property
    def code(self) -> int:
        """The exit code, or minus the number of the signal that ended the trial."""
        return os.waitstatus_to_exitcode(self.status)

    def to_json(self) -> dict[str, object]:
        """Return how the trial ended, as JSON data."""
        return {
            "code": self.code,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "memory_mb": round(self.memory_mb, 1),
            "over": self.over,
        }


class Trials:
    """Trains one trial after another, with the trainer's command."""

    def __init__(
        self, command: Sequence[str], chirp: Chirp, events: Events, words: Messages
    ) -> None:
        self._command, self._chirp = command, chirp
        self._events, self._words = events, words
        self._processes = ProcessTree()
        self.folders = folders.Folders(Path.cwd())
        self._packages = PackageTransfer(chirp, events)
        self._trainer: Trainer | None = None

    def train(self, order: Order) -> TrialEnd:
        """Train a trial, deliver its result, and return how it ended.

        Raise WantedBackError if the job must end first. Raise OSError if this machine has a fault,
        such as a full disk.
        """
        began, cpu = time.monotonic(), self._cpu_seconds()
        folder, ended = self.folders.make(order), TrialEnd()

        def leave(*names: str, **written: bytes) -> None:
            ended.seconds, ended.cpu_seconds = time.monotonic() - began, self._cpu_seconds() - cpu
            report = {ENDED: json.dumps(ended.to_json()).encode(), **written}
            self._packages.bring(order.package, names, folder, report)

        try:
            if self._packages.take_input(order, folder):
                self._train(order, folder, ended)
            else:
                ended.status = 1 << 8
            if ended.code and self._events.is_wanted_back:
                raise WantedBackError
            leave(RESULT, PROGRESS, folders.OUT, folders.ERR, *order.left)
        except TooLargeError as error:
            print(f"{order.name}: the trial has written {error}", file=sys.stderr)
            ended.status, ended.over = 1 << 8, error.limit
            leave()
        except UnsendableError as error:
            ended.status = 1 << 8
            leave(**{folders.ERR: f"{error}\n".encode()})
        return ended

    def _train(self, order: Order, folder: Path, ended: TrialEnd) -> None:
        reports = Reports(folder, self._chirp, order.name)
        exchange = Exchange(
            reports,
            self._words,
            lambda: self.folders.remove_all(folder, trainer.folder),
            is_stoppable=order.grace_seconds is not None,
        )
        until = time.monotonic() + (order.seconds or math.inf)
        while not exchange.has_order(folder):
            before = checkpoints.state(folder)
            trainer = self._begin(folder)
            bounds = Bounds(self._processes, order.memory_mb, until)
            execution = _Execution(
                trainer, self._processes, bounds, order.grace_seconds, exchange.turn
            )
            ended.status, ended.over = execution.run(self._events), bounds.over
            seen = bounds.peak_mb or self._processes.largest_mb
            # A trainer that now waits for the next trial may have grown since the last check.
            ended.memory_mb = max(ended.memory_mb, seen, resident_mb(trainer.pid))
            is_large = order.memory_mb is not None and ended.memory_mb > order.memory_mb
            if is_large or not trainer.is_reusable():
                self._end()
            if ended.code != checkpoints.EXIT_CHECKPOINTED or ended.over:
                return
            is_leaving = self._events.is_wanted_back or exchange.has_order(folder)
            if not is_leaving and not checkpoints.has_saved(folder, before):
                ended.status = 1 << 8
                return
            self._packages.bring(CHECKPOINT_PACKAGE.format(order.name), checkpoints.SAVED, folder)
            self._words.send("saved", trial=order.name)
            if self._events.is_wanted_back:
                raise WantedBackError
        folders.note_stopped(folder)
        ended.status = 0

    # The trainer

    def _begin(self, folder: Path) -> Trainer:
        if self._trainer is None or not self._trainer.begin(folder):
            self._end()
            with self._events.held_back():
                self._trainer = Trainer(self._command, folder, self._processes)
                self._events.pass_on = self._trainer.send
        if self._events.is_wanted_back:  # the signal came before the trainer's start
            self._trainer.send(signal.SIGTERM)
        self._processes.largest_mb = 0.0
        return self._trainer

    def _end(self) -> None:
        self._events.pass_on = lambda _number: None
        if self._trainer:
            self._trainer.close()
        self._trainer = None
        self._processes.end()

    def _cpu_seconds(self) -> float:
        return self._processes.cpu_seconds(self._trainer.pid if self._trainer else 0)


@dataclass
class _Execution:
    """One execution of the trainer for a trial.

    `trainer` has already begun the trial. After an order to stop, the trial has `grace_seconds` to
    end by itself. Then its process is ended. If `grace_seconds` is None, orders to stop are
    ignored. `carry` is `Exchange.turn`.
    """

    trainer: Trainer
    processes: ProcessTree
    bounds: Bounds
    grace_seconds: float | None
    carry: Callable[[], tuple[bool, float]]
    is_to_stop: bool = False
    ends: list[tuple[float, int]] = field(default_factory=list)  # signals after an order to stop

    def run(self, events: Events) -> int:
        """Wait for the trial's end, enforce its limits, and return its wait status.

        Raise WantedBackError if the job must end first.
        """
        carry_at = time.monotonic() + FIRST_CARRY
        while (status := self.trainer.status()) is None:
            events.check()
            now = time.monotonic()
            self.bounds.check(now)
            if self.bounds.over:
                self.processes.end()
                continue
            self._send_due_signals(now)
            if now >= carry_at:
                is_to_stop, carry_at = self.carry()
                self._note_stop(now, is_to_stop=is_to_stop)
            times = [carry_at, self.bounds.next_check, *(at for at, _ in self.ends[:1])]
            events.wait(min(times) - time.monotonic(), self.trainer.socket)
        if status == 0:
            self.bounds.over = None  # the trial had ended before
        return status

    def _note_stop(self, now: float, *, is_to_stop: bool) -> None:
        if is_to_stop and not self.is_to_stop and self.grace_seconds is not None:
            self.is_to_stop = True
            at = now + self.grace_seconds
            self.ends = [(at, signal.SIGTERM), (at + KILL_SECONDS, signal.SIGKILL)]

    def _send_due_signals(self, now: float) -> None:
        while self.ends and now >= self.ends[0][0]:
            self.trainer.send(self.ends.pop(0)[1])
