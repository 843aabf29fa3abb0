"""The lock of a study's days. Its file has the date of the day on which the lock's holder works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date

from trialfleet.files import lock_file, unless_damaged
from trialfleet.workflows.facts.journal.folder import DailyFolder

POLL_SECONDS = 1.0


@contextmanager
def day_lock(
    folder: DailyFolder, day: date, gives_up: Callable[[date | None], bool | None]
) -> Iterator[bool]:
    """Wait for the lock to work on `day`, and yield True. Yield False if `gives_up` returns True.

    During the wait, `gives_up` is called repeatedly with the day on which the lock's holder works,
    or with None if that day is unknown.
    """
    while True:
        with lock_file(folder.lock, wait=False) as ours:
            if ours:
                folder.lock.write_text(str(day))
                yield True
                return
        # None while another process writes the file
        if gives_up(unless_damaged(lambda: date.fromisoformat(folder.lock.read_text()), None)):
            yield False
            return
        time.sleep(POLL_SECONDS)
