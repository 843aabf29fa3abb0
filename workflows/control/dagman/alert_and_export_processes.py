"""The programs for alerts and exports, which the supervisor keeps running for each run.

Each program has a folder in the run's folder, for its lock and its log. This folder exists only if
the study needs the program.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trialfleet import programs
from trialfleet.errors import TrialfleetError
from trialfleet.files import lock_file
from trialfleet.wall_clock import log_in_utc
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.run_folder.folder import RunFolder

log = logging.getLogger(__name__)
SCHEDULE_LOCK = "schedule.lock"  # not the lock of the outbox, which other programs also hold
AGAIN_SECONDS = 30.0  # before a process that died is started again


def be_watcher(watch: Callable[[Path], None], what: str | None) -> None:
    """Call `watch` for the folder that the command line names. `what` is the text of `--help`."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("folder", type=Path, help="the folder of a run or of a study's days")
    folder = parser.parse_args().folder.absolute()
    log_in_utc("%(levelname)s %(message)s")
    try:
        watch(folder)
    except (TrialfleetError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


class Watcher(NamedTuple):
    """A program for alerts (`notify`, `schedule-alerts`) or exports (`export`).

    `run` is the run's folder, or the folder of a study's days. `folder` is the program's own
    folder. While the program runs, it holds the lock file `lock` in `folder`.
    """

    run: Path
    program: str
    folder: Path
    lock: str = "lock"


class Watchers:
    """The alert and export programs of all runs. Each is restarted until its work is done."""

    def __init__(self) -> None:
        # each with the time of its start
        self._processes: dict[Watcher, tuple[subprocess.Popen[bytes], float]] = {}
        self._unstarted: dict[Watcher, str] = {}  # why programs can't be started

    def check(
        self, runs: Iterable[RunFolder], schedules: Iterable[DailyFolder] = ()
    ) -> list[RunFolder]:
        """Start the programs that should run but don't. Return the runs whose programs have work.

        `schedules` are the folders of daily studies. The schedule of each is an HTCondor job that
        is on hold, and a program sends alerts about this.
        """
        unfinished = {
            run: [each for each in _list_watchers(run) if not self._is_done(each)] for run in runs
        }
        of_days = (
            Watcher(days.root, "schedule-alerts", days.alerts, SCHEDULE_LOCK)
            for days in schedules
            if days.alerts.is_dir()
        )
        known = {each for of in unfinished.values() for each in of}
        known |= {each for each in of_days if not self._is_done(each)}
        for gone in self._processes.keys() - known:
            if self._processes[gone][0].poll() is not None:
                del self._processes[gone]
        return [run for run, of in unfinished.items() if of]

    def _is_done(self, watcher: Watcher) -> bool:
        """Return whether a program's work is done. If not, start the program unless it runs.

        A program that died is not started again within `AGAIN_SECONDS` of its last start. If it
        can't be started, that is logged once, because the other runs need their programs, too.
        """
        process, started = self._processes.get(watcher, (None, -math.inf))
        if (process and process.poll() is None) or time.monotonic() - started < AGAIN_SECONDS:
            return False
        if process and process.returncode == 0:
            del self._processes[watcher]
            return True
        try:
            if not _is_at_work(watcher):
                self._processes[watcher] = _start(watcher), time.monotonic()
            self._unstarted.pop(watcher, None)
        except OSError as error:
            if self._unstarted.get(watcher) != str(error):
                log.warning("%s: %s can't be started: %s", watcher.run, watcher.program, error)
            self._unstarted[watcher] = str(error)
        return False


def _list_watchers(run: RunFolder) -> Iterator[Watcher]:
    for program, folder in (("notify", run.alerts), ("export", run.export)):
        if os.path.isdir(folder):  # noqa: PTH112 - False if it can't be read
            yield Watcher(run.root, program, folder)


def _is_at_work(watcher: Watcher) -> bool:
    """Return whether a program that a previous supervisor started still runs."""
    with lock_file(watcher.folder / watcher.lock, wait=False) as ours:
        return not ours


def _start(watcher: Watcher) -> subprocess.Popen[bytes]:
    with (watcher.folder / "log").open("ab") as log:
        return subprocess.Popen(
            programs.command(watcher.program, str(watcher.run)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a watcher must outlive the supervisor
        )
