"""What the model is given in place of a metric's values.

A Gaussian process expects values that spread evenly on both sides, which losses seldom do: one
training that diverges would flatten all others. So a long tail on the bad side is taken in by its
logarithm, and then all values by Yeo and Johnson's transformation, whose exponent is chosen by
likelihood. Both keep the order: the best stays the best.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import yeojohnson, yeojohnson_normmax

from trialfleet.optimizer.sampling.gp.domain import Array

_FLAT = 1e-12  # of the largest value: less than that is rounding
_TAIL = 3.0  # begins so many times farther from the median than the best value is
_EXPONENTS = (-2.0, 2.0)


def standardized(values: Array) -> Array:
    """Return n values with mean 0 and variance 1, their tail taken in; zeros where all are equal.

    Args:
        values: finite ones, of any size; smaller is better.
    """
    largest = float(np.abs(values).max())
    if largest == 0.0 or np.ptp(values / largest) <= _FLAT:
        return np.zeros_like(values)
    scaled = _standard(_without_tail(values / largest))
    if len(values) < 3:
        return scaled
    exponent = float(np.clip(yeojohnson_normmax(scaled), *_EXPONENTS))
    found = _standard(np.asarray(yeojohnson(scaled, exponent)))
    return found if np.isfinite(found).all() else scaled


def _without_tail(values: Array) -> Array:
    """Values far worse than the median, by the logarithm of how far."""
    centred = values - np.median(values)
    unit = -float(centred.min())
    if unit <= _FLAT:  # half of the values are the best one
        return centred
    units = centred / unit
    beyond = np.maximum(units - _TAIL, 0.0)
    return np.asarray(np.where(beyond > 0, _TAIL + np.log1p(beyond), units))


def _standard(values: Array) -> Array:
    centred = values - values.mean()
    return np.asarray(centred / centred.std())
