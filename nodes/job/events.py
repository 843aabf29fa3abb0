"""Lets a job's agent wait for signals, ends of processes, messages and a time limit."""

from __future__ import annotations

import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from trialfleet.nodes.job.chirp import TransferError

AGAIN, AGAIN_AT_MOST = 0.1, 2.0  # seconds until a retry, at first and at most
LEAVE_SECONDS = 45.0  # after SIGTERM; HTCondor kills the job after 60
_WANTED_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_WANTED_BACK, signal.SIGUSR1, signal.SIGUSR2)
T = TypeVar("T")


class WantedBackError(Exception):
    """The job's machine is being vacated, so the job must end."""


class Events:
    """Receives this process's signals, and calls `pass_on` to send them to the trainer.

    A process may make only one object of this class.
    """

    def __init__(self) -> None:
        self._wanted_back_at: float | None = None
        self.pass_on: Callable[[int], None] = lambda _number: None
        self._woken, wakes = socket.socketpair()
        self._wakes = wakes  # kept open as long as signals may come
        for end in (self._woken, wakes):
            end.settimeout(0)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)

    @property
    def is_wanted_back(self) -> bool:
        """True once the machine is being vacated."""
        return self._wanted_back_at is not None

    def is_free(self) -> bool:
        """Return True until the machine is being vacated."""
        return not self.is_wanted_back

    def has_time(self) -> bool:
        """Return True until LEAVE_SECONDS after HTCondor began to vacate the machine."""
        at = self._wanted_back_at
        return at is None or time.monotonic() <= at + LEAVE_SECONDS

    def check(self) -> None:
        """Raise WantedBackError once `has_time` returns False."""
        if not self.has_time():
            raise WantedBackError

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Delay signals during the `with` block, so that the block can safely set `pass_on`."""
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def wait(self, seconds: float, other: socket.socket | None = None) -> None:
        """Wait for `seconds`, or until a signal or data on the socket `other` arrives."""
        ends = [self._woken, other] if other else [self._woken]
        if self._woken in select.select(ends, [], [], max(0.0, seconds))[0]:
            with suppress(BlockingIOError):
                while self._woken.recv(4096):
                    pass

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if number in _WANTED_BACK and self._wanted_back_at is None:
            self._wanted_back_at = time.monotonic()
        with suppress(ProcessLookupError):
            self.pass_on(number)


def until_done(action: Callable[[], T], events: Events, may_retry: Callable[[], bool]) -> T:
    """Call `action` until it raises no TransferError, and return its result.

    After a TransferError, raise WantedBackError if `may_retry` returns False.
    """
    pause, is_printed = AGAIN, False
    while True:
        try:
            return action()
        except TransferError as error:
            if not is_printed:
                words = "a transfer failed, and is repeated until it succeeds"
                print(f"{words}: {error}", file=sys.stderr)
            is_printed = True
        if not may_retry():
            raise WantedBackError
        events.wait(pause)
        pause = min(pause * 1.5, AGAIN_AT_MOST)
