"""Processes of this machine, as tests look at them."""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """Whether a process is there and more than a zombie, which waits for nothing but its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
