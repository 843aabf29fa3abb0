"""Downsampling of curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most `most` evenly spaced points, with both ends; `most` is two or more."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[at * last // (most - 1)] for at in range(most)]
