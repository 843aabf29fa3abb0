"""The process that trains: for one trial or, if it stays, for several; and what bounds a trial.

A trainer that stays says so by the socket whose number is in $TRIALFLEET_STAYS: `{"code": 0}` when
a trial has ended well, and then reads where the next one lies. Any other ends with its trial.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trialfleet.nodes import TRIAL
from trialfleet.nodes.job.events import Events
from trialfleet.nodes.job.folder import ERR, OUT
from trialfleet.nodes.job.processes import ProcessTree

STAYS = "TRIALFLEET_STAYS"  # in a trainer's environment: the number of its socket
KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
# Seconds of a trial until its memory is looked at, and from one look to the next.
FIRST_MEMORY_CHECK, MEMORY_CHECK = 0.5, 1.0
FIRST_CARRY = 0.02  # seconds after a trial's begin: shorter ones end with no turn
_LONGEST = 1 << 16  # bytes of a word by the socket
# Ignored by Python; a program that it starts must not inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
# The shell runs it: a program that is missing is exit code 127.
_SHELL = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh")


class Trainer:
    """A process that runs the trainer's command in the first trial's folder.

    Attributes:
        pid: the process.
        folder: where it began: what it reads beside its program is there until it ends.
        socket: by which it says that it stays; None once it has closed its end.
    """

    def __init__(self, command: Sequence[str], folder: Path, processes: ProcessTree) -> None:
        self._processes, self._is_idle, self.folder = processes, False, folder
        self.socket: socket.socket | None
        self.socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(0)
        with its:
            its.set_inheritable(True)
            words = (*_SHELL, str(folder), *command)
            variables = {
                **os.environ,
                "TRIALFLEET_TRIAL": TRIAL,
                "PYTHONUNBUFFERED": "1",
                STAYS: str(its.fileno()),
            }
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            streams = [
                (os.POSIX_SPAWN_OPEN, number, str(folder / name), flags, 0o644)
                for number, name in ((1, OUT), (2, ERR))
            ]
            self.pid = os.posix_spawn(
                words[0],
                words,
                variables,
                file_actions=streams,
                setsigdef=_IGNORED,
                setsigmask=(),
                setsid=True,
            )
        processes.began(self.pid)

    def begin(self, folder: Path) -> bool:
        """Have it train another trial; False where it can't: it waits for none, or has ended."""
        if not self._is_idle or not self.socket:
            return False
        word = {"trial": folder / TRIAL, "out": folder / OUT, "err": folder / ERR}
        self._is_idle = False
        try:
            self.socket.send(json.dumps(word, default=str).encode())
        except OSError:
            return False
        return True

    def status(self) -> int | None:
        """Return how the trial ended, as waitpid would; None while it trains."""
        if not self._is_idle and self.socket:
            with suppress(OSError, ValueError, AttributeError, RecursionError):
                word = self.socket.recv(_LONGEST)
                if not word:
                    self.close()
                self._is_idle = json.loads(word).get("code") == 0
        return 0 if self._is_idle else self._processes.status_of(self.pid)

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended; a signal's handler may."""
        if not self._processes.has_reaped(self.pid):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stays(self) -> bool:
        """Tell whether it waits for another trial, and nothing else of this one runs."""
        return self._is_idle and self._processes.is_alone(self.pid)

    def close(self) -> None:
        """Let go of the socket."""
        if self.socket:
            self.socket.close()
        self.socket = None


@dataclass(frozen=True)
class Limits:
    """What bounds a trial; None: nothing does."""

    memory_mb: float | None  # that its processes have together
    until: float | None  # when it is ended, by `time.monotonic`
    grace_seconds: float | None  # from the order to stop until it is ended


class Bounds:
    """Whether a trial takes more than it may.

    Attributes:
        over: "memory" or "time", once it does.
        peak_mb: the most memory that it was seen to have; 0 of a short one.
    """

    def __init__(self, processes: ProcessTree, limits: Limits) -> None:
        self._processes, self._limits = processes, limits
        self.over: str | None = None
        self.peak_mb = 0.0
        self._memory_check_at = time.monotonic() + FIRST_MEMORY_CHECK

    @property
    def look_at(self) -> float:
        """When to look again, by `time.monotonic`."""
        until = self._limits.until
        return self._memory_check_at if until is None else min(until, self._memory_check_at)

    def look(self, now: float) -> None:
        """See whether it is over a limit, as often as that is due."""
        if self._limits.until is not None and now >= self._limits.until:
            self.over = "time"
        elif now >= self._memory_check_at:
            self._memory_check_at = now + MEMORY_CHECK
            self.peak_mb = max(self.peak_mb, self._processes.memory_mb())
            if self._limits.memory_mb is not None and self.peak_mb > self._limits.memory_mb:
                self.over = "memory"


class Training:
    """A trainer's time with one trial, which it has begun.

    Args:
        carry: takes its reports away, and returns whether the trial was told to stop and when it
            wants to be called next.

    Attributes:
        bounds: what it took, and whether that is more than it may.
    """

    def __init__(
        self,
        trainer: Trainer,
        processes: ProcessTree,
        limits: Limits,
        carry: Callable[[], tuple[bool, float]],
    ) -> None:
        self._trainer, self._processes = trainer, processes
        self._limits, self._carry = limits, carry
        self.bounds = Bounds(processes, limits)
        self._is_told = False
        self._ends: list[tuple[float, int]] = []  # when it gets which signal, once told to stop

    def run(self, events: Events) -> int:
        """Return how the trial ended, as waitpid would.

        Raises:
            WantedBackError: the machine is wanted back, and it has not ended in time.
        """
        carry_at = time.monotonic() + FIRST_CARRY
        while (status := self._trainer.status()) is None:
            events.check()
            now = time.monotonic()
            self.bounds.look(now)
            if self.bounds.over:
                self._processes.end()
                continue
            self._press(now)
            if now >= carry_at:
                is_told, carry_at = self._carry()
                self._tell_to_stop(now, is_told=is_told)
            times = [carry_at, self.bounds.look_at, *(at for at, _ in self._ends[:1])]
            events.wait(min(times) - time.monotonic(), self._trainer.socket)
        if status == 0:
            self.bounds.over = None  # it had ended already
        return status

    def _tell_to_stop(self, now: float, *, is_told: bool) -> None:
        if is_told and not self._is_told and self._limits.grace_seconds is not None:
            self._is_told = True
            at = now + self._limits.grace_seconds
            self._ends = [(at, signal.SIGTERM), (at + KILL_SECONDS, signal.SIGKILL)]

    def _press(self, now: float) -> None:
        """End one that goes on though it was told to stop."""
        while self._ends and now >= self._ends[0][0]:
            self._trainer.send(self._ends.pop(0)[1])
