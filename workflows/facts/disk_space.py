"""A run's disk space: the reserve, and waiting until the disk has space."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trialfleet.optimizer.client import FULL
from trialfleet.optimizer.may_begin import Facts, refusal

PAUSE_SECONDS = 10.0

T = TypeVar("T")


def free_bytes(folder: Path) -> int:
    """Return the free bytes for files in a folder."""
    return shutil.disk_usage(folder).free


def lack_of_space(folder: Path) -> str:
    """Return why nothing may start until a folder's disk has more space; empty if it has enough."""
    refused = refusal("anything", Facts(free=free_bytes(folder), folder=str(folder)))
    return refused.reason if refused else ""


def when_there_is_space(
    action: Callable[[], T], progress: Callable[[str], None], pause: float = PAUSE_SECONDS
) -> T:
    """Return the result of `action`; repeat it while the disk is full.

    Args:
        action: the action; safe to repeat, wherever it failed.
        progress: called with a line for each failure.
        pause: the seconds between two attempts.

    Raises:
        OSError: the action failed, and not because the disk is full.
    """
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in FULL:
                raise
            progress(f"waits for space: {error}")
        time.sleep(pause)
