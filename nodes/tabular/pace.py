"""Decides how many training steps to take between two checks.

A check is a vote of the ranks, or a wait for the GPU. A check in each step would take too long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 0.05  # between checks, approximately


class Pace:
    """Counts the steps until the next check.

    A check is due about SECONDS seconds after the previous one, and at the latest after `max_steps`
    steps. The number of steps between two checks begins with 1, and at most doubles each time. A
    GPU's first steps are only queued and seem to take no time, so they don't show the true speed.
    """

    def __init__(self, max_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = max_steps, clock
        self.begin(1)

    def begin(self, steps: int) -> None:
        """Restart the count, so that the next check is due after `steps` steps."""
        self._steps = self._left = steps
        self._since = self._clock()

    def is_due(self) -> bool:
        """Count a step, and return whether a check is due."""
        self._left -= 1
        return self._left <= 0

    def proposal(self) -> int:
        """Estimate, from the speed since `begin`, how many steps to take until the next check."""
        taken = max(self._clock() - self._since, 1e-9)
        fitting = int(self._steps * SECONDS / taken)
        return max(1, min(fitting, 2 * self._steps, self._most))
