"""A wall clock that may be set by NTP after a start, by a person or by a virtual machine.

After a jump ahead all nodes would seem silent or idle, money spent and deadlines over. So for a
while after a jump a monotonic clock continues the previous time. A jump that is soon corrected has
no effect. Meanwhile other programs renew their times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

SET = timedelta(seconds=30)  # a well-kept clock gains less between two calls
SETTLED_SECONDS = 120.0  # until HTCondor's collector has dropped all earlier ads


def real_time() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)  # noqa: UP017  a node may have Python 3.10


class WallClock:
    """The time, and whether the clock was set just now."""

    def __init__(
        self,
        clock: Callable[[], datetime] = real_time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Trust the clock (UTC) at first; `ticks` returns seconds of a clock that nobody sets."""
        self._clock, self._ticks = clock, ticks
        self._wall, self._tick = clock(), ticks()
        self._trusted = (self._wall, self._tick)
        self._until = float("-inf")

    def now(self) -> datetime:
        """Return the time to use."""
        wall, tick = self._clock(), self._ticks()
        expected = self._wall + timedelta(seconds=tick - self._tick)
        if abs(wall - expected) > SET:
            self._trusted = (self._carried_on(tick), tick)
            self._until = tick + SETTLED_SECONDS
        self._wall, self._tick = wall, tick
        if self.is_set:
            return self._carried_on(tick)
        self._trusted = (wall, tick)
        return wall

    @property
    def is_set(self) -> bool:
        """True if the clock was set so recently before the last call that ages are unknown."""
        return self._tick < self._until

    def _carried_on(self, tick: float) -> datetime:
        wall, then = self._trusted
        return wall + timedelta(seconds=tick - then)
