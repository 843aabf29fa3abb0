"""Processes of this machine, as tests look at them."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from trialfleet import programs


def is_alive(pid: int) -> bool:
    """Return whether a process exists and runs; a zombie, which has ended, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_program(words: Sequence[str], name: str) -> bool:
    """Return whether a command line is that of one of trialfleet's programs, by any Python."""
    start = programs.command(name)[1:]
    return [*words[1 : 1 + len(start)]] == start
