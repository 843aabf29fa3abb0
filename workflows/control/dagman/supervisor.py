"""The supervisor of a pool's runs: it repairs lasting faults, with growing pauses between repairs.

The program `supervise --state FOLDER` regularly checks every run that it has seen in the job queue,
until the run is over. It stores only the list of these runs, in a file, so a kill at any moment
does no harm. In an embedded pool, HTCondor's master starts the program. On a manager, systemd
starts it. Elsewhere, `trialfleet supervise` starts it.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import math
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trialfleet.classads import JobStatus
from trialfleet.errors import InputError, PoolError, TrialfleetError
from trialfleet.files import exists, open_lock, read_json, unless_damaged, write_json
from trialfleet.infra.pool import schedd
from trialfleet.restart_after_update import Updates
from trialfleet.wall_clock import log_in_utc
from trialfleet.workflows.control.dagman.alert_and_export_processes import Watchers
from trialfleet.workflows.control.dagman.clock_set_back import ClockWatch
from trialfleet.workflows.control.dagman.remove_hopeless_jobs import fail_hopeless_attempts
from trialfleet.workflows.control.dagman.repair import BusyError, repair, run_locked
from trialfleet.workflows.control.dagman.unreachable_schedd import UnreachableSchedd
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.job_queue import PROJECTION, Ad, is_dagman
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.run_faults import Fault, Remedy, faults

LOOK_SECONDS = 5.0
HOLD_SECONDS = 600.0  # until an alert says that the job that starts daily runs is on hold
LONGEST_GAP = 3 * LOOK_SECONDS  # between two checks; after a longer gap a fault counts as new
KICKS_PAUSE = 60.0  # seconds; with this pause or a longer one, KICK becomes REPLACE
CRASHES = 2  # a DAGMan with this number of crashes within CRASH_SECONDS is faulty
CRASH_SECONDS = 300.0
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0  # seconds between two repairs of a DAG; doubled each time

log = logging.getLogger(__name__)
Repair = Callable[[RunFolder, Fault], None]


@dataclass
class _Repair:
    at: float
    pause: float


@dataclass
class Supervisor:
    """Repairs faults that last longer than their `Fault.patience`. The class is not thread-safe."""

    repair: Repair
    _since: dict[tuple[Path, Fault], float] = field(default_factory=dict)
    _repaired: dict[tuple[Path, str | None, str | None], _Repair] = field(default_factory=dict)
    _cool_downs: dict[int, tuple[int, float]] = field(default_factory=dict)
    _unread: dict[Path, str] = field(default_factory=dict)  # why runs can't be checked
    _looked: float = -math.inf

    def check(
        self, runs: Iterable[RunFolder], ads: Iterable[Ad], now: float, tick: float
    ) -> list[RunFolder]:
        """Check the runs once and repair lasting faults. Return the runs that are not over.

        `ads` are the ClassAds of the runs' jobs. `now` is in Unix seconds, `tick` in seconds of a
        monotonic clock.
        """
        of_run = defaultdict(list)
        for ad in ads:
            of_run[Path(ad["TrialfleetFolder"])].append(ad)
        crashing = self._crashing_jobs([ad for run in of_run.values() for ad in run], tick)
        before, self._since = self._since, {}
        if tick - self._looked > LONGEST_GAP:
            before = {}  # it is unknown whether the faults lasted all this time
        self._looked = tick
        going_on = []
        for run in runs:
            found = self._faults(run, of_run[run.root], now)
            if found is None or found or of_run[run.root]:
                going_on.append(run)
            for fault in found or ():
                since = self._since[run.root, fault] = before.get((run.root, fault), tick)
                has_lasted = tick - since >= fault.patience or fault.job in crashing
                if has_lasted and self._repair(run, fault, tick) and not fault.has_parent:
                    break  # the whole run is submitted again
        return going_on

    def _faults(self, run: RunFolder, ads: list[Ad], now: float) -> list[Fault] | None:
        """Return the faults of a run, or None if the run's files can't be read."""
        try:
            found = faults(run, ads, now)
        except (TrialfleetError, OSError, ValueError) as error:  # a damaged file, say
            if not exists(run.root) and exists(run.root.parent):  # else its disk may be away
                return []
            if self._unread.get(run.root) != str(error):
                log.warning("%s: it can't be checked: %s", run.root, error)
            self._unread[run.root] = str(error)
            return None
        self._unread.pop(run.root, None)
        return found

    def _crashing_jobs(self, ads: list[Ad], tick: float) -> set[int]:
        counts = {ad["ClusterId"]: ad.get("NumJobCoolDowns", 0) for ad in ads if is_dagman(ad)}
        for job, count in counts.items():
            if tick - self._cool_downs.get(job, (0, -CRASH_SECONDS))[1] >= CRASH_SECONDS:
                self._cool_downs[job] = (count, tick)
        self._cool_downs = {job: self._cool_downs[job] for job in counts}
        return {job for job, count in counts.items() if count - self._cool_downs[job][0] >= CRASHES}

    def _repair(self, run: RunFolder, fault: Fault, tick: float) -> bool:
        """Repair a fault unless the last try is too recent. Return whether a repair was tried."""
        if fault.remedy is Remedy.NONE:
            return False
        of = (run.root, fault.region, fault.node)
        last = self._repaired.get(of)
        if last and tick - last.at < last.pause:
            return False
        is_first = last is None or tick - last.at > 2 * LONGEST_PAUSE
        pause = FIRST_PAUSE if is_first else min(2 * (last.pause if last else 0), LONGEST_PAUSE)
        if fault.remedy is Remedy.KICK and pause >= KICKS_PAUSE:
            fault = replace(fault, remedy=Remedy.REPLACE)
        try:
            self.repair(run, fault)
        except BusyError as error:
            log.info("%s: %s", run.root, error)
            return False
        except (TrialfleetError, OSError) as error:
            log.error("%s: %s: %s failed: %s", run.root, fault, fault.remedy, error)  # noqa: TRY400
        else:
            log.warning("%s: %s: %s", run.root, fault, fault.remedy)
        self._repaired[of] = _Repair(tick, pause)
        return True


def repair_locked(run: RunFolder, fault: Fault) -> None:
    """Repair a fault under the run lock. BusyError if the lock is taken or the fault is gone.

    PoolError if HTCondor is unreachable or refuses a request.
    """
    with run_locked(run, wait=False):
        ads = schedd.query(job_queue.run_constraint(run), PROJECTION)
        found = faults(run, ads, time.time())
        if not any(
            (f.region, f.job, f.what) == (fault.region, fault.job, fault.what) for f in found
        ):
            raise BusyError(f"the fault is already gone: {fault}")
        repair(run, fault)


def supervise(state: Path) -> None:
    """Supervise the runs of this pool forever. A file in the folder `state` lists the runs."""
    supervisor, watchers, file = Supervisor(repair_locked), Watchers(), state / "runs.json"
    known: set[Path] = unless_damaged(lambda: set(map(Path, read_json(file))), set())
    watch, schedd_watch, updates = ClockWatch(state / "clock.json"), UnreachableSchedd(), Updates()
    while True:
        updates.follow()
        watch.check(time.time(), time.monotonic())
        try:
            ads = schedd.query("TrialfleetFolder =!= undefined", PROJECTION)
            held = held_schedules(HOLD_SECONDS)
        except PoolError as error:
            log.info("%s", error)
            schedd_watch.check(error)
        else:
            schedd_watch.check(None)
            folders = known | {Path(ad["TrialfleetFolder"]) for ad in ads}
            runs = [RunFolder(folder) for folder in sorted(folders) if _is_ours(folder)]
            fail_hopeless_attempts(runs, ads, time.time())
            days = [each for each in held if _is_ours(each.root)]
            untold = watchers.check(runs, days)
            going_on = supervisor.check(runs, ads, time.time(), time.monotonic())
            left = {run.root for run in (*going_on, *untold)}
            if left != known:
                _note(file, left)
            known = left
        time.sleep(LOOK_SECONDS)


def held_schedules(seconds: float) -> list[DailyFolder]:
    """Return the folders of the studies whose schedule is an HTCondor job on hold.

    Jobs on hold for less than `seconds` don't count. PoolError if HTCondor is unreachable.
    """
    held = f"JobStatus == {JobStatus.HELD} && time() - EnteredCurrentStatus >= {seconds}"
    ads = schedd.query(f"TrialfleetDaily =!= undefined && {held}", ["TrialfleetDaily"])
    return [DailyFolder(Path(ad["TrialfleetDaily"])) for ad in ads]


def _is_ours(folder: Path) -> bool:
    """Return whether the account that runs this program owns a folder.

    A folder that was removed, or whose disk is away, counts as owned: `Supervisor.check` decides
    whether to forget its run.
    """
    try:
        return folder.is_absolute() and folder.stat().st_uid == os.geteuid()
    except PermissionError:  # another account's
        return False
    except OSError:
        return True


def _note(file: Path, folders: Iterable[Path]) -> None:
    try:
        write_json(file, sorted(map(str, folders)))
    except OSError as error:  # a full disk: the queue still knows the runs
        log.error("%s: %s", file, error)  # noqa: TRY400


def supervise_alone(state: Path) -> None:
    """Wait until no other process uses the folder `state`, then supervise the runs forever.

    InputError if the folder can't be written.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # after condor_reconfig, the master sends SIGHUP
    log_in_utc("%(levelname)s %(message)s")
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = open_lock(state / "supervisor.lock")
    except OSError as error:
        raise InputError(
            f"can't write the supervisor's folder {str(state)!r}: {error.strerror}"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.info("supervising")
        supervise(state)


def main() -> None:
    """Supervise the runs of this pool."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the folder for the list of runs")
    arguments = parser.parse_args()
    try:
        supervise_alone(arguments.state)
    except TrialfleetError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
