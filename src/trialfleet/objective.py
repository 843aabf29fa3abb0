"""The order of results, for all comparisons, rankings and gains. Pure.

A smaller loss is better. A missing result or NaN has the worst loss, so no other result is worse.
Infinite results are compared by their value. Among equal results, the first is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Literal, TypeGuard, TypeVar

Direction = Literal["minimize", "maximize"]

T = TypeVar("T")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def loss(result: float | None, direction: Direction) -> float:
    """Return the loss of a result; given a loss, return the result."""
    if result is None or math.isnan(result):
        return math.inf
    return -result if direction == "maximize" else result


def losses(results: Iterable[float | None], direction: Direction) -> list[float]:
    """Return the losses of results; infinite losses become the nearest finite loss, or 0 if none.

    As in Optuna's GPSampler: a model without the failed trials would propose their points again.
    """
    known = [loss(result, direction) for result in results]
    finite = [value for value in known if math.isfinite(value)] or [0.0]
    least, most = min(finite), max(finite)
    return [min(max(value, least), most) for value in known]


def is_better(result: float | None, other: float | None, direction: Direction) -> bool:
    """Return whether a result is better than another."""
    return loss(result, direction) < loss(other, direction)


def gain(result: float | None, other: float | None, direction: Direction) -> float | None:
    """Return by how much a result is better than another; None if the difference isn't finite."""
    difference = loss(other, direction) - loss(result, direction)
    return difference if math.isfinite(difference) else None


def best(items: Iterable[T], direction: Direction, result: Callable[[T], float | None]) -> T | None:
    """Return the item with the best result, the first among equals; None without a result."""
    return next(iter(ranked(items, direction, result)), None)


def ranked(
    items: Iterable[T], direction: Direction, result: Callable[[T], float | None]
) -> list[T]:
    """Return the items that have results, the best first; equally good items keep their order."""
    found = ((result(item), item) for item in items)
    known = [(value, item) for value, item in found if value is not None and value == value]
    known.sort(key=itemgetter(0), reverse=direction == "maximize")
    return [item for _, item in known]
