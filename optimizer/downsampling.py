"""Fewer points of a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Point = TypeVar("Point")


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most so many (two or more) of the points, evenly by place: the ends remain."""
    if len(points) <= most:
        return points
    last = len(points) - 1
    return [points[at * last // (most - 1)] for at in range(most)]
