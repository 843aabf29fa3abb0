"""The comparison of results: which of two is better, and by how much.

A result's loss is the result itself, or its negative if larger results are better. So a smaller
loss is always better. A missing result or NaN has an infinite loss, which is the worst. An infinite
result is compared like any number. Among equal results, the first is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Literal, TypeGuard, TypeVar

Direction = Literal["minimize", "maximize"]

T = TypeVar("T")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether `value` is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def loss(result: float | None, direction: Direction) -> float:
    """Return `result`, or its negative if larger results are better. None and NaN give infinity.

    The function also converts a loss back to the result.
    """
    if result is None or math.isnan(result):
        return math.inf
    return -result if direction == "maximize" else result


def losses(results: Iterable[float | None], direction: Direction) -> list[float]:
    """Return finite losses of results: +∞ becomes the greatest finite loss, and -∞ the least.

    So the sampler avoids the parameters of a failed trial, as Optuna's GPSampler does. If no loss
    is finite, all are 0.
    """
    known = [loss(result, direction) for result in results]
    finite = [value for value in known if math.isfinite(value)] or [0.0]
    least, most = min(finite), max(finite)
    return [min(max(value, least), most) for value in known]


def gain(result: float | None, other: float | None, direction: Direction) -> float | None:
    """Return by how much `result` is better than `other`, or None if the gain is not finite."""
    difference = loss(other, direction) - loss(result, direction)
    return difference if math.isfinite(difference) else None


def best(items: Iterable[T], direction: Direction, result: Callable[[T], float | None]) -> T | None:
    """Return the item with the best result (the first among equals), or None without results."""
    return next(iter(rank(items, direction, result)), None)


def rank(items: Iterable[T], direction: Direction, result: Callable[[T], float | None]) -> list[T]:
    """Return the items that have results, the best first. Equally good items keep their order."""
    found = ((result(item), item) for item in items)
    known = [(value, item) for value, item in found if value is not None and value == value]
    known.sort(key=itemgetter(0), reverse=direction == "maximize")
    return [item for _, item in known]
