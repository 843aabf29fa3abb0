"""The processes that tell of runs' events: one for each run whose study notifies anybody."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from trialfleet.workflows.notify.outbox import Outbox
from trialfleet.workflows.plan.folder import RunFolder

PROGRAM = "trialfleet.workflows.alerts.watch"  # by its name: it reads a run as people see it
AGAIN_SECONDS = 30.0  # before one that died is started again


class Watchers:
    """Keeps a process going for each run until all that there is to tell of it is told."""

    def __init__(self) -> None:
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        self._started: dict[Path, float] = {}

    def look(self, runs: Iterable[RunFolder]) -> list[RunFolder]:
        """Start what should run and doesn't; return the runs of which not all is told yet.

        Args:
            runs: those that may not be over, or of which not all was told at the last look.
        """
        untold = [run for run in runs if run.alerts.is_dir() and not self._is_done(run.root)]
        known = {run.root for run in untold}
        for gone in self._processes.keys() - known:
            if self._processes[gone].poll() is not None:
                del self._processes[gone]
        return untold

    def _is_done(self, run: Path) -> bool:
        """Whether the last one of a run ended well; it is started where there is none."""
        process, now = self._processes.get(run), time.monotonic()
        if process and process.poll() is None:
            return False
        if process and process.returncode == 0 and self._is_old(run, now):
            del self._processes[run]
            return True
        if (process is None or self._is_old(run, now)) and not _is_watched(run):
            self._started[run] = now
            self._processes[run] = _start(run)
        return False

    def _is_old(self, run: Path, now: float) -> bool:
        return now - self._started[run] >= AGAIN_SECONDS


def _is_watched(run: Path) -> bool:
    """Whether the process of a supervisor before this one still goes on."""
    with Outbox(RunFolder(run).alerts).alone(wait=False) as ours:
        return not ours


def _start(run: Path) -> subprocess.Popen[bytes]:
    with (RunFolder(run).alerts / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(run)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it ends by itself; the supervisor may die before it
        )
