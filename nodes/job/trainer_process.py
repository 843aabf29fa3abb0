"""The trainer's process, for one trial or (if it stays) several.

$TRIALFLEET_STAYS is the descriptor of a socket to the job's agent. After a successful trial, a
trainer that stays sends `{"code": 0}` there, and then receives the next trial's paths. Any other
trainer ends with its trial.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trialfleet.nodes import TRIAL
from trialfleet.nodes.job.events import Events
from trialfleet.nodes.job.folder import ERR, OUT
from trialfleet.nodes.job.process_tree import ProcessTree
from trialfleet.nodes.job.trial_limits import Bounds

STAYS = "TRIALFLEET_STAYS"  # in a trainer's environment: the number of its socket
KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
FIRST_CARRY = 0.02  # seconds after a trial's begin: shorter trials end without a turn
_LONGEST = 1 << 16  # maximum bytes of a message on the socket
# Python ignores these signals; programs that it starts must not inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
# The shell runs the command, so that a missing program gives exit code 127.
_SHELL = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh")


class Trainer:
    """A process that runs the trainer's command, at first for the trial in `folder`.

    `folder` is kept until the process ends, because the process may read files there. By `socket`
    the process reports that it has ended a trial and waits for another. `socket` is None once it is
    closed.
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
        processes.add(self.pid)

    def begin(self, folder: Path) -> bool:
        """Start another trial, in `folder`; return False if the process does not wait for one."""
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
        """Return the trial's wait status (of waitpid); None while the trial is trained."""
        if not self._is_idle and self.socket:
            with suppress(OSError, ValueError, AttributeError, RecursionError):
                word = self.socket.recv(_LONGEST)
                if not word:
                    self.close()
                self._is_idle = json.loads(word).get("code") == 0
        return 0 if self._is_idle else self._processes.wait_status(self.pid)

    def send(self, number: int) -> None:
        """Send the process the signal `number`, unless it has ended; safe in a signal handler."""
        if not self._processes.has_reaped(self.pid):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def is_reusable(self) -> bool:
        """Return whether the process waits for another trial and left no other processes."""
        return self._is_idle and self._processes.is_alone(self.pid)

    def close(self) -> None:
        """Close the socket."""
        if self.socket:
            self.socket.close()
        self.socket = None


class Training:
    """The training of one trial, which `trainer` has begun.

    `grace_seconds` is the time from the order to stop until the trial is ended; None: it is never
    ended for that. `carry` transfers reports. It returns whether the trial is to stop, and when to
    call `carry` again.
    """

    def __init__(
        self,
        trainer: Trainer,
        processes: ProcessTree,
        bounds: Bounds,
        grace_seconds: float | None,
        carry: Callable[[], tuple[bool, float]],
    ) -> None:
        self._trainer, self._processes, self._bounds = trainer, processes, bounds
        self._grace_seconds, self._carry = grace_seconds, carry
        self._is_to_stop = False
        self._ends: list[tuple[float, int]] = []  # times and signals after an order to stop

    def run(self, events: Events) -> int:
        """Wait for the trial's end, enforce its limits, and return its wait status.

        WantedBackError if the job must end first.
        """
        carry_at = time.monotonic() + FIRST_CARRY
        while (status := self._trainer.status()) is None:
            events.check()
            now = time.monotonic()
            self._bounds.check(now)
            if self._bounds.over:
                self._processes.end()
                continue
            self._send_due_signals(now)
            if now >= carry_at:
                is_to_stop, carry_at = self._carry()
                self._note_stop(now, is_to_stop=is_to_stop)
            times = [carry_at, self._bounds.next_check, *(at for at, _ in self._ends[:1])]
            events.wait(min(times) - time.monotonic(), self._trainer.socket)
        if status == 0:
            self._bounds.over = None  # it had ended already
        return status

    def _note_stop(self, now: float, *, is_to_stop: bool) -> None:
        if is_to_stop and not self._is_to_stop and self._grace_seconds is not None:
            self._is_to_stop = True
            at = now + self._grace_seconds
            self._ends = [(at, signal.SIGTERM), (at + KILL_SECONDS, signal.SIGKILL)]

    def _send_due_signals(self, now: float) -> None:
        while self._ends and now >= self._ends[0][0]:
            self._trainer.send(self._ends.pop(0)[1])
