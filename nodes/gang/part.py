"""The workers (training processes) of a gang on one machine. If one fails, all are ended."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes.job import checkpoints
from trialfleet.nodes.job.process_tree import ProcessTree, is_stopped
from trialfleet.nodes.job.reports import Reports
from trialfleet.nodes.job.trial_limits import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trialfleet.nodes.gang.workers import Server
    from trialfleet.nodes.job.chirp import Chirp
    from trialfleet.nodes.job.messages import Order

STOPPED_SECONDS = 10.0  # a worker that was suspended (SIGSTOP) for this time is ended


class Part:
    """The workers of one trial on this machine.

    They are started again in each generation, which is a period with the same ranks.

    Attributes:
        folder: the trial's folder in the present generation.
        over: the exceeded limit, "memory", "time", "disk" or "files", or "" if there is none.
        code: 0 if all workers of the latest generation succeeded, else the exit code of one that
            failed or was killed.
        checkpoint_at_start: the result of `checkpoints.state` at this generation's start.
        is_asked_to_save: True after `ask_to_save` in this generation.
        unsendable: why this generation's files can't be sent, or "".
    """

    folder: Path
    checkpoint_at_start: object
    reports: Reports

    def __init__(self, order: Order, processes: ProcessTree, server: Server) -> None:
        until = time.monotonic() + (order.seconds or math.inf)
        self.order, self.over, self.code = order, "", 0
        self._bounds = Bounds(processes, order.memory_mb, until)
        self._processes, self._server = processes, server
        self._cpu_before = processes.cpu_seconds(server.pid)
        self._workers: list[int] = []
        self.is_asked_to_save, self.unsendable = False, ""
        self._stopped_since: float | None = None

    @property
    def is_training(self) -> bool:
        """True while workers of the trial run here."""
        return bool(self._workers)

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the workers that have ended."""
        return self._processes.cpu_seconds(self._server.pid) - self._cpu_before

    @property
    def memory_mb(self) -> float:
        """The largest observed total memory of the workers, in MB."""
        return self._bounds.peak_mb or self._processes.largest_mb

    def prepare(self, folder: Path, chirp: Chirp) -> None:
        """Prepare for the next generation of workers, which use the trial's `folder`."""
        self.folder, self.is_asked_to_save, self._stopped_since = folder, False, None
        self.unsendable = ""
        self.checkpoint_at_start = checkpoints.state(folder)
        self.reports = Reports(folder, chirp, self.order.name)

    def start(self, variables: Mapping[str, str]) -> None:
        """Start a worker with `variables` added to its environment. Raise OSError on failure."""
        self._workers.append(self._server.start(self.folder, variables))
        self._processes.add(self._workers[-1])

    def ask_to_save(self) -> None:
        """Ask the first worker, once, to save a checkpoint and end."""
        if self._workers and not self.is_asked_to_save:
            self.is_asked_to_save = True
            if not self._processes.has_reaped(self._workers[0]):
                os.kill(self._workers[0], signal.SIGTERM)

    def kill(self) -> None:
        """Kill the workers and their descendants."""
        self._processes.end(but=self._server.pid)
        self._workers = []

    def has_ended(self) -> bool:
        """Return whether the workers have ended since the last call.

        Kill all workers if one has failed or stays suspended, or if the trial exceeds a limit.
        """
        statuses = [self._processes.wait_status(worker) for worker in self._workers]
        codes = [None if each is None else os.waitstatus_to_exitcode(each) for each in statuses]
        failed = [code for code in codes if code]
        if not failed and None in codes:
            if not self._is_to_end():
                return False
            failed = [-signal.SIGKILL]
        if codes:
            self.code = failed[0] if failed else 0
            self.kill()
        return bool(codes)

    def _is_to_end(self) -> bool:
        """Return whether a limit is exceeded or a worker stays suspended.

        The other workers would wait for a suspended worker for ever.
        """
        now = time.monotonic()
        self._bounds.check(now)
        self.over = self._bounds.over or ""
        if not any(map(is_stopped, self._workers)):
            self._stopped_since = None
            return bool(self.over)
        self._stopped_since = self._stopped_since or now
        is_to_end = now - self._stopped_since > STOPPED_SECONDS
        if is_to_end:
            print("gang: ending all workers, because one was suspended (SIGSTOP)", file=sys.stderr)
        return is_to_end or bool(self.over)
