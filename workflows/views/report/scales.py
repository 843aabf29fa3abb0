"""The scale of a chart's axis, which is linear, logarithmic, or clipped to leave out outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

FLAT = 10.0  # times the median distance; farther values press half of all into a tenth of the axis


@dataclass(frozen=True)
class Scale:
    """The possible scales of an axis for some values, and the default scale.

    Attributes:
        chosen: the default scale. It is "linear" if no value is an outlier. If there are outliers,
            it is "log" if logarithms are possible and have no outliers, otherwise "clipped".
        log: whether every value is positive, so that a logarithmic scale is possible.
        view: the range of a clipped axis, or None if there is no outlier.
    """

    chosen: str
    log: bool
    view: tuple[float, float] | None


def choose_scale(values: Sequence[float], anchor: float, flat: float = FLAT) -> Scale:
    """Return the possible scales of an axis for `values`.

    Values near `anchor` matter most. A value is an outlier if its distance from `anchor` is more
    than `flat` times the median distance. Values that equal `anchor` don't count for the median. A
    clipped axis shows the values whose distance is at most half of this limit.
    """
    log, view = bool(values) and min(values) > 0, clipped_range(values, anchor, flat)
    if view is None:
        return Scale("linear", log, None)
    evens = log and _shown_distance([math.log(v) for v in values], math.log(anchor), flat) is None
    return Scale("log" if evens else "clipped", log, view)


def clipped_range(
    values: Sequence[float], anchor: float, flat: float = FLAT
) -> tuple[float, float] | None:
    """Return the range of a clipped axis, or None if there is no outlier to leave out."""
    reach = _shown_distance(values, anchor, flat)
    if reach is None:
        return None
    inside = [value for value in values if abs(value - anchor) <= reach]
    return min(inside), max(inside)


def _shown_distance(values: Sequence[float], anchor: float, flat: float) -> float | None:
    """Return the greatest distance from `anchor` that is shown, or None if there is no outlier."""
    distances = [abs(value - anchor) for value in values if value != anchor]
    if not distances or not math.isfinite(max(distances)):
        return None
    middle = median_low(distances)
    return 0.5 * flat * middle if max(distances) > flat * middle else None


def round_for_chart(value: float | None, digits: int = 6) -> float | None:
    """Return a number rounded to `digits` significant digits, or None if it isn't finite.

    Integers stay as they are.
    """
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")
