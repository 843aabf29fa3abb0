"""The manager's wall clock, which somebody may set: NTP after a start, a person, a virtual machine.

By a clock that jumped ahead, every node would seem to have been silent or idle, and every dollar to
have been spent, for as long as it jumped. What AWS and the pool have noted by the former time is
renewed within two minutes; until then the time to go by is the former one, carried on by a clock
that nobody sets, and nothing is to be decided by the age of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

SET = timedelta(seconds=30)  # from one look to the next, no clock that is kept right gains so much
SETTLED_SECONDS = 120.0  # the collector has forgotten by then what daemons said before


class WallClock:
    """Tells the time, and whether the clock was set just now."""

    def __init__(self, clock: Callable[[], datetime], ticks: Callable[[], float]) -> None:
        """Begin by trusting the clock.

        Args:
            clock: the time, in UTC.
            ticks: seconds of a clock that nobody sets.
        """
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
