"""The lock of a study's days; its file names the one day on which the lock's holder works."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date

from trialfleet.files import open_lock
from trialfleet.workflows.facts.journal.folder import DailyFolder

POLL_SECONDS = 1.0


@contextmanager
def day_lock(
    folder: DailyFolder, day: date, gives_up: Callable[[date | None], bool]
) -> Iterator[bool]:
    """Wait for the lock of a study's days, to work on `day`; yield whether this process has it.

    During the wait, `gives_up` is called repeatedly with the day on which the lock's holder works,
    or None if that is unknown. Once `gives_up` returns True, the wait ends without the lock.
    """
    with open_lock(folder.lock) as file:  # closing it, or the end of the process, releases the lock
        descriptor = file.fileno()
        while not _try_lock(descriptor):
            if gives_up(_read_day(descriptor)):
                yield False
                return
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(day).encode(), 0)
        yield True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_day(descriptor: int) -> date | None:
    try:
        return date.fromisoformat(os.pread(descriptor, 32, 0).decode())
    except ValueError:  # another process is just writing it
        return None
