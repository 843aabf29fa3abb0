"""The processes of a pool on this machine, identified by their environment variables.

A pid file would be wrong after a reboot, and would not list processes that a killed condor_master
left. A process belongs to a pool in either of two cases:

- Its environment has trialfleet's own variable that names the pool. condor_master, its daemons and
  their jobs have this variable.
- Its CONDOR_CONFIG is the pool's, and it has a variable `_CONDOR_ANCESTOR_…`. HTCondor sets such
  variables in all processes that its daemons start, but a user's shell has none.
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
        environment: the variables with which it was started, as `NAME=VALUE`.
        namespace: identity of its user namespace, `user:[…]`.
        handle: sends signals to this process, never to a later one with the same number.
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


def list_processes() -> list[Process]:
    """Return all processes that this user may inspect, without zombies, by process number."""
    return [process for pid in sorted(psutil.pids()) if (process := read(pid)) is not None]


def read(pid: int) -> Process | None:
    """Return the process with this number, or None if it is gone, a zombie or unreadable."""
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
                namespace=user_namespace(pid),
                handle=handle,
            )
    except (psutil.Error, OSError):
        return None


def user_namespace(pid: int | str) -> str:
    """Return the identity of a process's user namespace. OSError if it can't be read."""
    return str(Path(f"/proc/{pid}/ns/user").readlink())


def pool_processes(processes: Iterable[Process], *, mark: str, config: str) -> list[Process]:
    """Return a pool's processes and their descendants.

    `config` is the path of the pool's configuration file. It is the value of CONDOR_CONFIG and of
    trialfleet's own variable `mark`.
    """
    everyone = list(processes)
    chosen = {
        process.pid: process
        for process in everyone
        if process.has(mark, config)
        or (process.has("CONDOR_CONFIG", config) and ancestors(process))
    }
    return include_relatives(everyone, chosen)


def include_relatives(everyone: list[Process], chosen: dict[int, Process]) -> list[Process]:
    """Return the processes in `chosen` and their descendants, sorted by process number.

    The descendants are also added to `chosen`. A descendant is recognized by its parent, its user
    namespace, or HTCondor's variable `_CONDOR_ANCESTOR_…`.
    """
    own = user_namespace("self")
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
    """Return a process's variables `_CONDOR_ANCESTOR_…`, which name the daemons above it."""
    return frozenset(entry for entry in process.environment if entry.startswith(ANCESTOR))


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to `process`. Do nothing if the process is gone."""
    with suppress(psutil.NoSuchProcess):
        process.handle.send_signal(number)


def run_captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its exit code and output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def wait_until(done: Callable[[], bool], *, seconds: float, poll: float = POLL) -> bool:
    """Return True as soon as `done()` is true, or False after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True
