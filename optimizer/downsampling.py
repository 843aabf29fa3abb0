"""Downsampling of learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")


def downsample(points: Sequence[Point], max_points: int) -> Sequence[Point]:
    """Return at most `max_points` points, evenly spaced, with the first and the last.

    `max_points` is at least 2.
    """
    if len(points) <= max_points:
        return points
    last = len(points) - 1
    return [points[at * last // (max_points - 1)] for at in range(max_points)]
