"""How often to look at something that a training step is too short for."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 0.05  # between two looks, about


class Pace:
    """Counts steps between two looks: as many as take SECONDS, but at most so many.

    It begins with a look at every step, and lets their distance grow twofold at most: the first
    steps of a GPU are only asked for, and seem to take no time.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self.begin(1)

    def begin(self, steps: int) -> None:
        """Count anew: so many steps until the next look."""
        self._steps = self._left = steps
        self._since = self._clock()

    def due(self) -> bool:
        """Count a step; tell whether a look is due."""
        self._left -= 1
        return self._left <= 0

    def proposal(self) -> int:
        """Return how many steps there should be until the next look, by those since the last."""
        taken = max(self._clock() - self._since, 1e-9)
        fitting = int(self._steps * SECONDS / taken)
        return max(1, min(fitting, 2 * self._steps, self._most))
