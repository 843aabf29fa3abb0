"""Downsampling of learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")


def downsample(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most `most` of `points`, evenly spaced, with the first and the last; `most` ≥ 2."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[at * last // (most - 1)] for at in range(most)]
