"""What a model is given in place of a metric's values.

A Gaussian process expects values that spread evenly on both sides, which losses seldom do: one
training that diverges would flatten all others. So a long tail on the bad side is taken in by its
logarithm. More than that, such as a power transformation, was measured and left out: where values
are noisy it stretches the noise among the best ones.
"""

from __future__ import annotations

import numpy as np

from trialfleet.optimizer.sampling.gp.domain import Array

_FLAT = 1e-12  # of the largest value: less than that is rounding
_TAIL = 3.0  # begins so many times farther from the median than the best value is


def standardized(values: Array) -> Array:
    """Return n values with mean 0 and variance 1, in the same order; zeros where all are equal.

    Args:
        values: finite ones, of any size; smaller is better.
    """
    largest = float(np.abs(values).max())
    if largest == 0.0 or np.ptp(values / largest) <= _FLAT:
        return np.zeros_like(values)
    scaled = _without_tail(values / largest)
    centred = scaled - scaled.mean()
    return np.asarray(centred / centred.std())


def _without_tail(values: Array) -> Array:
    """Values far worse than the median, by the logarithm of how far."""
    centred = values - np.median(values)
    unit = -float(centred.min())
    if unit <= _FLAT:  # half of the values are the best one
        return centred
    units = centred / unit
    beyond = np.maximum(units - _TAIL, 0.0)
    return np.asarray(np.where(beyond > 0, _TAIL + np.log1p(beyond), units))
