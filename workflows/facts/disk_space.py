"""The check of a run's free disk space, and the wait for space."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.optimizer.service_client import FULL

PAUSE_SECONDS = 10.0

T = TypeVar("T")


def free_bytes(folder: Path) -> int:
    """Return the number of free bytes on a folder's disk."""
    return shutil.disk_usage(folder).free


def lack_of_space(folder: Path) -> str:
    """Return a message if a folder's disk is too full to start anything; empty if it isn't."""
    refused = refusal("anything", Facts(free=free_bytes(folder), folder=str(folder)))
    return refused.reason if refused else ""


def retry_while_disk_full(
    action: Callable[[], T], progress: Callable[[str], None], pause: float = PAUSE_SECONDS
) -> T:
    """Repeat `action` while a disk is full, and return its result.

    After each failure, `progress` is called with a message. The next try follows after `pause`
    seconds. `action` must be safe to repeat after a failure at any step.

    Raises:
        OSError: `action` failed for another reason than a full disk.
    """
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in FULL:
                raise
            progress(f"waits for free disk space: {error}")
        time.sleep(pause)
