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
    """Return the free bytes of a folder's disk."""
    return shutil.disk_usage(folder).free


def lack_of_space(folder: Path) -> str:
    """Return why a folder's disk is too full to start anything; empty if the space suffices."""
    refused = refusal("anything", Facts(free=free_bytes(folder), folder=str(folder)))
    return refused.reason if refused else ""


def retry_while_disk_full(
    action: Callable[[], T], progress: Callable[[str], None], pause: float = PAUSE_SECONDS
) -> T:
    """Return the result of `action`; retry `action` as long as it fails because a disk is full.

    `action` must be safe to repeat, at whatever point it failed. After each failure, `progress` is
    called with a line of text, and the next try follows after `pause` seconds.

    Raises:
        OSError: the action failed for another reason than a full disk.
    """
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in FULL:
                raise
            progress(f"waits for free disk space: {error}")
        time.sleep(pause)
