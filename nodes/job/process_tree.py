"""Observes the descendants of this process and their use of resources, and kills them.

`chirp_access.py` makes this process a subreaper, so that orphans become its children.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

VANISH_SECONDS = 3.0  # time for a killed process to disappear
FIRST_LOOK, LAST_LOOK = 0.0005, 0.05  # seconds between polls of killed processes
_PROC = Path("/proc")
_ARE_LISTED = (_PROC / "thread-self/children").exists()  # by the kernel, CONFIG_PROC_CHILDREN
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_TICKS = os.sysconf("SC_CLK_TCK")  # in a second


class ProcessTree:
    """All descendants of this process, including orphans, and their exit statuses."""

    def __init__(self) -> None:
        self.largest_mb = 0.0  # largest resident memory of an ended process
        self._cpu_seconds = 0.0  # of ended processes
        self._statuses: dict[int, int] = {}
        self._stuck: set[int] = set()  # killed, but not gone

    def add(self, pid: int) -> None:
        """Register the new child `pid`, and forget an ended process that had the same pid."""
        self._statuses.pop(pid, None)
        self._stuck.discard(pid)

    def wait_status(self, pid: int) -> int | None:
        """Return a child's wait status, as from `os.waitpid`, or None while the child runs."""
        self._reap()
        return self._statuses.get(pid)

    def has_reaped(self, pid: int) -> bool:
        """Return whether a child is known to have ended. Its pid may then be reused."""
        return pid in self._statuses

    def end(self, but: int = 0) -> None:
        """Kill all descendants except `but`, and wait until they are gone.

        A process that hangs in a GPU's driver counts as killed after VANISH_SECONDS.
        """
        since: dict[int, float] = {}
        pause = FIRST_LOOK
        while found := [one for one in children(os.getpid()) if one not in {but, *self._stuck}]:
            now = time.monotonic()
            since = {child: since.get(child, now) for child in found}
            for child in found:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                if now - since[child] > VANISH_SECONDS:
                    self._stuck.add(child)
                    self._statuses[child] = signal.SIGKILL
            self._reap()
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)

    def is_alone(self, pid: int) -> bool:
        """Return whether the child `pid` is the only descendant."""
        self._reap()
        return children(os.getpid()) == [pid] and not children(pid)

    def cpu_seconds(self, pid: int) -> float:
        """Return the processor seconds of all ended descendants and of the child `pid`."""
        return self._cpu_seconds + _cpu_seconds(pid)

    def memory_mb(self) -> float:
        """Return the present memory of all descendants in MB. Shared memory counts once."""
        found, total = children(os.getpid()), 0.0
        while found:
            pid = found.pop()
            total += _memory_mb(pid)
            found += children(pid)
        return total

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status, used = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                self._statuses[pid] = status
                self._cpu_seconds += used.ru_utime + used.ru_stime
                self.largest_mb = max(self.largest_mb, used.ru_maxrss / 1024)


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, or [] if the process has ended."""
    if not _ARE_LISTED:
        return [child for child in map(int, _numbers(_PROC)) if _parent_pid(child) == pid]
    found: list[int] = []
    for task in _numbers(_PROC / f"{pid}/task"):
        with suppress(OSError):
            found += map(int, (_PROC / f"{pid}/task/{task}/children").read_bytes().split())
    return found


def resident_mb(pid: int) -> float:
    """Return a process's resident memory in MB, with shared memory, or 0 if it has ended."""
    try:
        return int((_PROC / f"{pid}/statm").read_bytes().split()[1]) * _PAGE_MB
    except OSError:
        return 0.0


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended (SIGSTOP)."""
    with suppress(OSError):
        return _stat(pid)[0] == b"T"
    return False


def _numbers(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 - 3.10
    except OSError:
        return []


def _parent_pid(pid: int) -> int:
    with suppress(OSError):
        return int(_stat(pid)[1])
    return 0


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat that follow the program's name."""
    return (_PROC / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _cpu_seconds(pid: int) -> float:
    try:
        return sum(map(int, _stat(pid)[11:15])) / _TICKS
    except OSError:
        return 0.0


def _memory_mb(pid: int) -> float:
    try:
        found = _PSS.search((_PROC / f"{pid}/smaps_rollup").read_bytes())
    except OSError:  # another account's process, perhaps
        found = None
    return int(found[1]) / 1024 if found else resident_mb(pid)
