"""The trainer's process, which trains one trial or several.

A trainer that can train several trials uses the socket whose file descriptor is $TRIALFLEET_STAYS.
After a successful trial, it sends `{"code": 0}` to the socket, and then receives the next trial's
paths. Any other trainer ends with its trial.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trialfleet.nodes import TRIAL
from trialfleet.nodes.job.folder import ERR, OUT
from trialfleet.nodes.job.messages import parse_object
from trialfleet.nodes.job.process_tree import ProcessTree

STAYS = "TRIALFLEET_STAYS"  # in a trainer's environment: the number of its socket
_LONGEST = 1 << 16  # maximum bytes of a message on the socket
# Python ignores these signals; programs that it starts must not inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
# The shell runs the command, so that a missing program gives exit code 127.
_SHELL = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh")


class Trainer:
    """A process that runs the trainer's command, at first for the trial in `folder`.

    Keep `folder` until the process ends, because the process may read files there. When the process
    has ended a trial and waits for another, `socket` becomes readable. After `close`, it is None.
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
                "TRIALFLEET_TRIAL": str(folder / TRIAL),
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
        """Start the trial in `folder`. Return False if the process does not wait for a trial."""
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
        """Return the trial's wait status, as from `os.waitpid`, or None until it has ended."""
        if not self._is_idle and self.socket:
            with suppress(OSError):
                word = self.socket.recv(_LONGEST)
                if not word:
                    self.close()
                self._is_idle = parse_object(word).get("code") == 0
        return 0 if self._is_idle else self._processes.wait_status(self.pid)

    def send(self, number: int) -> None:
        """Send the signal `number` to the process, unless it has ended.

        A signal handler may call this.
        """
        if not self._processes.has_reaped(self.pid):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def is_reusable(self) -> bool:
        """Return whether the process waits for another trial and has no descendants."""
        return self._is_idle and self._processes.is_alone(self.pid)

    def close(self) -> None:
        """Close the socket."""
        if self.socket:
            self.socket.close()
        self.socket = None
