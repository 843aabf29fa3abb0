"""Cost and resilience of a system: counts and kills all descendants of this process.

This process adopts orphans (PR_SET_CHILD_SUBREAPER, prctl(2)). So daemons that leave their parents
stay its descendants, and their time is in RUSAGE_CHILDREN once they have ended.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 1.0


def adopt_orphans() -> None:
    """Let this process adopt its descendants' orphans.

    Raises:
        OSError: the kernel refused.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants() -> list[psutil.Process]:
    """Return every living descendant of this process."""
    return psutil.Process().children(recursive=True)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each process that still exists."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def kill_everything(own: int = 0) -> None:
    """Kill all descendants, including those that are started meanwhile, like a power cut."""
    while any(alive(process) for process in descendants()):
        kill(descendants())
        time.sleep(0.1)
        reap_orphans(own)


def alive(process: psutil.Process) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def reap_orphans(own: int) -> None:
    """Wait for ended orphans, so that their time counts; leave out `own`, which others await."""
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.pid != own and process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


def children_cpu() -> float:
    """Return the processor seconds of descendants that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class Memory:
    """The largest memory seen, in MB (PSS: shared memory is divided among its processes).

    Attributes:
        machinery: of processes that never trained.
        trainers: of those that did.
    """

    trained: Callable[[], set[int]]
    machinery: float = 0.0
    trainers: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Memory:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            pids = self.trained()
            sums = {True: 0.0, False: 0.0}
            for process in descendants():
                with suppress(psutil.Error):
                    sums[process.pid in pids] += process.memory_full_info().pss / 1e6
            self.machinery = max(self.machinery, sums[False])
            self.trainers = max(self.trainers, sums[True])
