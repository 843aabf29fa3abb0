"""A wall clock that somebody may set: NTP after a start, a person, a virtual machine.

By a clock that jumped ahead, every node would seem to have been silent or idle, every dollar to
have been spent, every deadline to be over, for as long as it jumped. Where it is soon set right,
nothing of that may come true. So the time to go by is the former one for a while, carried on by a
clock that nobody sets; what others have noted by the former time is renewed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

SET = timedelta(seconds=30)  # from one look to the next, no clock that is kept right gains so much
SETTLED_SECONDS = 120.0  # by then HTCondor's collector has forgotten what daemons said before


def real_time() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)  # noqa: UP017  a node may have Python 3.10


class WallClock:
    """Tells the time, and whether the clock was set just now."""

    def __init__(
        self,
        clock: Callable[[], datetime] = real_time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin by trusting the clock, in UTC; `ticks` are seconds of one that nobody sets."""
        self._clock, self._ticks = clock, ticks
        self._wall, self._tick = clock(), ticks()
        self._trusted = (self._wall, self._tick)
        self._until = float("-inf")

    def now(self) -> datetime:
        """Return the time to go by."""
        wall, tick = self._clock(), self._ticks()
        former = self._wall + timedelta(seconds=tick - self._tick)
        if abs(wall - former) > SET:
            self._trusted = (self._carried_on(tick), tick)
            self._until = tick + SETTLED_SECONDS
        self._wall, self._tick = wall, tick
        if self.is_set:
            return self._carried_on(tick)
        self._trusted = (wall, tick)
        return wall

    @property
    def is_set(self) -> bool:
        """Whether it was set so short a time before the last look that no age is known."""
        return self._tick < self._until

    def _carried_on(self, tick: float) -> datetime:
        wall, then = self._trusted
        return wall + timedelta(seconds=tick - then)
