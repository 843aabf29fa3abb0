"""Selection of evenly spaced points of a learning curve, to store or draw fewer points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")
MOST_STORED = 50  # per trial: a learning curve needs no more points


def downsample(points: Sequence[Point], max_points: int) -> Sequence[Point]:
    """Return at most `max_points` evenly spaced points, including the first and the last point.

    `max_points` is at least 2.
    """
    if len(points) <= max_points:
        return points
    last = len(points) - 1
    return [points[at * last // (max_points - 1)] for at in range(max_points)]
