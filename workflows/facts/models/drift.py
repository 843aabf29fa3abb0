"""Drift: whether the last measurement of a model is unusual, compared with the earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from trialfleet.spread import middle_and_spread

_PAST = 5  # evaluations that a range needs
_DEVIATIONS = 3.0  # Leys et al., Journal of Experimental Social Psychology 49, 2013
_ROUNDING = 1e-9  # of the median: allowed even if the values never varied


def drift(values: Sequence[float]) -> str:
    """Return a text if the last of `values` is outside the usual range of the earlier ones.

    The text is empty if the value is inside the range, or if there are fewer than six values. The
    range is median ± 3 · 1.4826 · MAD of the earlier values. MAD is the median absolute deviation,
    which one or two odd measurements hardly change.
    """
    *past, last = values or [0.0]
    if len(past) < _PAST:
        return ""
    middle, spread = middle_and_spread(past)
    width = max(_DEVIATIONS * spread, _ROUNDING * abs(middle))
    low, high = middle - width, middle + width
    if low <= last <= high:
        return ""
    return f"{last:.4g}, outside its past range, {low:.4g} to {high:.4g}"
