"""The processes of a pool on this machine, identified by their environment.

A pid file is wrong after a reboot, and does not list orphans of a killed master. The environment of
a process identifies its pool:

- The daemons inherit the pool's mark from their master, and the starter passes it to jobs.
- HTCondor adds `_CONDOR_ANCESTOR_…` to all processes of its daemons (also DAGMan and its scripts).
  Together with CONDOR_CONFIG it identifies the pool. A user's shell in the pool has no ancestor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ANCESTOR = "_CONDOR_ANCESTOR_"
POLL = 0.02  # seconds between polls of processes that are to end


@dataclass(frozen=True)
class Process:
    """One live process.

    Attributes:
        environment: its initial environment, as `NAME=VALUE`.
        namespace: identity of its user namespace, `user:[…]`.
        handle: sends signals to this process, never to a later process with the same number.
    """

    pid: int
    parent: int
    name: str
    environment: frozenset[str]
    namespace: str
    handle: psutil.Process = field(compare=False, repr=False)

    def has(self, variable: str, value: str) -> bool:
        """Return whether the process was started with `variable=value`."""
        return f"{variable}={value}" in self.environment


def living() -> list[Process]:
    """Return all processes that this user may inspect, without zombies, by pid."""
    return [process for pid in sorted(psutil.pids()) if (process := read(pid)) is not None]


def read(pid: int) -> Process | None:
    """Return the process with this number; None if it is gone, a zombie or unreadable."""
    try:
        handle = psutil.Process(pid)
        with handle.oneshot():
            if handle.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                return None
            environment = handle.environ().items()
            return Process(
                pid=pid,
                parent=handle.ppid(),
                name=handle.name(),
                environment=frozenset(f"{name}={value}" for name, value in environment),
                namespace=namespace_of(pid),
                handle=handle,
            )
    except (psutil.Error, OSError):
        return None


def namespace_of(pid: int | str) -> str:
    """Return the identity of a process's user namespace; OSError if it may not be read."""
    return str(Path(f"/proc/{pid}/ns/user").readlink())


def of_pool(processes: Iterable[Process], *, mark: str, config: str) -> list[Process]:
    """Return the processes of the pool with this configuration file, and their descendants."""
    everyone = list(processes)
    chosen = {
        process.pid: process
        for process in everyone
        if process.has(mark, config)
        or (process.has("CONDOR_CONFIG", config) and ancestors(process))
    }
    return include_relatives(everyone, chosen)


def include_relatives(everyone: list[Process], chosen: dict[int, Process]) -> list[Process]:
    """Add the descendants, found by parent, HTCondor's ancestor or user namespace, to `chosen`."""
    own = namespace_of("self")
    while True:
        marks = frozenset().union(*(ancestors(process) for process in chosen.values()))
        spaces = {process.namespace for process in chosen.values()} - {own}
        found = [
            process
            for process in everyone
            if process.pid not in chosen
            and process.pid != os.getpid()
            and (
                process.parent in chosen
                or process.namespace in spaces
                or not marks.isdisjoint(process.environment)
            )
        ]
        if not found:
            return [chosen[pid] for pid in sorted(chosen)]
        chosen |= {process.pid: process for process in found}


def ancestors(process: Process) -> frozenset[str]:
    """Return the variables with which HTCondor marks a daemon's descendants; each is unique."""
    return frozenset(entry for entry in process.environment if entry.startswith(ANCESTOR))


def send(process: Process, number: signal.Signals) -> None:
    """Signal `process`, unless it is gone or another process has its number."""
    with suppress(psutil.NoSuchProcess):
        process.handle.send_signal(number)


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its exit code and output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def wait_until(done: Callable[[], bool], *, seconds: float, poll: float = POLL) -> bool:
    """Return True as soon as `done()` is true; False after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True
