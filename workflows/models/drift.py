"""Whether a model in force has drifted: its metric on today's rows against its own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

PAST = 5  # evaluations before a band is drawn
DEVIATIONS = 3.0  # Leys et al., Journal of Experimental Social Psychology 49, 2013
_CONSISTENT = 1.4826  # makes the MAD a normal's standard deviation: Rousseeuw and Croux, 1993
_ROUNDING = 1e-9  # of the median: what never varied may vary by as much


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A value outside of the band of those before it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """In a line, without the metric's name."""
        return f"{self.value:.4g}, outside of its own past, {self.low:.4g} to {self.high:.4g}"


def drift(values: Sequence[float]) -> Drift | None:
    """Return how the last of some values left the band of those before it; None if it didn't.

    The band is median ± 3 · 1.4826 · MAD, which one or two odd days among five don't widen, as they
    would a standard deviation.

    Args:
        values: of one metric of one model, oldest first; five of them before the last, or nothing
            is said.
    """
    *past, last = values or [0.0]
    if len(past) < PAST:
        return None
    middle = median(past)
    spread = _CONSISTENT * median(abs(value - middle) for value in past)
    width = max(DEVIATIONS * spread, _ROUNDING * abs(middle))
    low, high = middle - width, middle + width
    return None if low <= last <= high else Drift(value=last, low=low, high=high)
