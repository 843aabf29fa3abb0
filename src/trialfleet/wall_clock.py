"""A wall clock that tolerates jumps: NTP, a person or a virtual machine may set the time.

After a jump ahead, all machines would seem silent or idle, and all deadlines would be over. So for
SETTLED_SECONDS after a jump, WallClock counts on with a monotonic clock. Meanwhile, other programs
renew their time stamps. If the clock is set back in this time, neither jump has an effect.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TextIO

SET = timedelta(seconds=30)  # a larger difference between two calls is a jump
SETTLED_SECONDS = 120.0  # until HTCondor's collector has dropped all earlier ads


def real_time() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)  # noqa: UP017  a node may have Python 3.10


def log_in_utc(form: str, stream: TextIO | None = None) -> None:
    """Log to `stream` (default: standard error), with times in UTC.

    `form` is a message's format without its time.
    """
    logging.Formatter.converter = time.gmtime
    form = f"%(asctime)s.%(msecs)03dZ {form}"
    logging.basicConfig(
        stream=stream or sys.stderr, level=logging.INFO, format=form, datefmt="%Y-%m-%dT%H:%M:%S"
    )


class WallClock:
    """The time, and whether the system's clock was set just now."""

    def __init__(
        self,
        clock: Callable[[], datetime] = real_time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read `clock`, which returns the time in UTC, and take its first value as correct.

        `ticks` returns the seconds of a monotonic clock.
        """
        self._clock, self._ticks = clock, ticks
        self._wall, self._tick = clock(), ticks()
        self._trusted = (self._wall, self._tick)
        self._until = float("-inf")

    def now(self) -> datetime:
        """Return the time in UTC. Ignore a jump for SETTLED_SECONDS."""
        wall, tick = self._clock(), self._ticks()
        expected = self._wall + timedelta(seconds=tick - self._tick)
        if abs(wall - expected) > SET:
            self._trusted = (self._extrapolate(tick), tick)
            self._until = tick + SETTLED_SECONDS
        self._wall, self._tick = wall, tick
        if self.is_set:
            return self._extrapolate(tick)
        self._trusted = (wall, tick)
        return wall

    @property
    def is_set(self) -> bool:
        """True if the last call of `now` came less than SETTLED_SECONDS after a jump."""
        return self._tick < self._until

    def _extrapolate(self, tick: float) -> datetime:
        wall, then = self._trusted
        return wall + timedelta(seconds=tick - then)
