"""Removal of the processes of a killed test run: a process of its own waits, and removes them.

A test run that is interrupted twice, or killed, takes no pool down. The guard outlives it: it waits
for the lock that the test run holds for as long as it lives, and ends every process of its pools
and machines.

    python -m tests.pool.guard FOLDER    of a test run, with its session.lock
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from trialfleet.infra.pool import processes
from trialfleet.infra.pool.embedded import Pool

ROOT = Path(__file__).parents[2]
LOCK = "session.lock"
CONFIG = "CONDOR_CONFIG"
SECONDS = 30.0  # for the kernel to remove processes


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the guard of a test run's folder: in a session of its own, which no Ctrl-C reaches."""
    others = {name: value for name, value in os.environ.items() if name != CONFIG}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.pool.guard", folder],
        cwd=ROOT,
        env=others,  # it belongs to no pool that it may have to end
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def clear(folder: Path) -> None:
    """End the pools and machines of a test run that is gone, and remove its folder."""
    for record in folder.glob("*/pool.json"):
        Pool(record.parent).down(grace=0)

    def gone() -> bool:
        left = _living_in(folder)
        for process in left:
            processes.send(process, signal.SIGKILL)
        return not left

    processes.wait_until(gone, seconds=SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def _living_in(folder: Path) -> list[processes.Process]:
    """Return processes whose HTCondor is configured by a file of the folder, and their children."""
    begin = f"{CONFIG}={folder}{os.sep}"
    everyone = processes.list_processes()
    chosen = {
        process.pid: process
        for process in everyone
        if process.pid != os.getpid()
        and any(entry.startswith(begin) for entry in process.environment)
    }
    return processes.include_relatives(everyone, chosen)


def main(folder: Path) -> None:
    """Wait until the test run is gone; it removes its folder itself unless it was killed."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clear(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
