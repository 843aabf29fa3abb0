"""The middle and the spread of values, of which a few may be far off."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

_NORMAL = 1.4826  # a normal distribution's standard deviation per MAD: Rousseeuw and Croux, 1993


def middle_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of `values`, and an estimate of their standard deviation.

    The estimate is 1.4826 · MAD. MAD is the median absolute deviation, which one or two odd values
    hardly change.
    """
    middle = median(values)
    return middle, _NORMAL * median(abs(value - middle) for value in values)
