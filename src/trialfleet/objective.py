"""The comparison of results, for all comparisons, rankings and gains. Pure.

A smaller loss is better. A result that is missing or NaN has the worst loss, so it is never better
than another; infinite ones are compared by their value. Of equal results none is better, and the
first one is the best.
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
    """Return the loss of a result; of a loss, the result."""
    if result is None or math.isnan(result):
        return math.inf
    return -result if direction == "maximize" else result


def losses(results: Iterable[float | None], direction: Direction) -> list[float]:
    """Return the losses of results, all finite: one beyond is the worst or best of the others.

    A model without the failed trials would propose their points again. As Optuna's GPSampler
    does, an infinite loss becomes the nearest finite one; 0 if there is none.
    """
    known = [loss(result, direction) for result in results]
    finite = [value for value in known if math.isfinite(value)] or [0.0]
    least, most = min(finite), max(finite)
    return [min(max(value, least), most) for value in known]


def is_better(result: float | None, other: float | None, direction: Direction) -> bool:
    """Return whether a result is better than another."""
    return loss(result, direction) < loss(other, direction)


def gain(result: float | None, other: float | None, direction: Direction) -> float | None:
    """Return by how much a result is better than another; None unless that is a finite number."""
    difference = loss(other, direction) - loss(result, direction)
    return difference if math.isfinite(difference) else None


def best(items: Iterable[T], direction: Direction, result: Callable[[T], float | None]) -> T | None:
    """Return the item with the best result, the first among equals; None if none has any."""
    return next(iter(ranked(items, direction, result)), None)


def ranked(
    items: Iterable[T], direction: Direction, result: Callable[[T], float | None]
) -> list[T]:
    """Return the items that have results, the best first; equals in their order."""
    found = ((result(item), item) for item in items)
    known = [(value, item) for value, item in found if value is not None and value == value]
    known.sort(key=itemgetter(0), reverse=direction == "maximize")
    return [item for _, item in known]
