"""For tests that try a kill -9 at each call of the system that something makes, or at each line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_OF_THE_SYSTEM = {"os", "open", "shutil", "fcntl", "tempfile"}  # audit events, up to the dot


def status_of(act: Callable[[], object], kill_at: int) -> int:
    """Return how a child process ended that did `act`: the status that `os.waitpid` returns.

    Args:
        act: what it did.
        kill_at: it was killed at this call of the system, counted from 1; 0: never.
    """
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    calls = 0

    def count(event: str, _given: object) -> None:
        nonlocal calls
        if event.partition(".")[0] in _OF_THE_SYSTEM:
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    act()
    os._exit(0)


def status_at_line(act: Callable[[], object], kill_at: int, where: str) -> int:
    """Return how a child process ended that did `act`, as `status_of`.

    Args:
        act: what it did.
        kill_at: it was killed at this line, counted from 1; 0: never.
        where: a part of the path of the files whose lines count.
    """
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    lines = 0

    def trace(frame: FrameType, event: str, _given: object) -> Any:
        nonlocal lines
        if event == "line" and where in frame.f_code.co_filename:
            lines += 1
            if lines == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        act()
        os._exit(0)
    finally:
        os._exit(1)
