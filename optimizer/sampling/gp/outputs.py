"""What the model is given in place of a metric's values.

A Gaussian process expects values that spread evenly on both sides, which losses seldom do: one
training that diverges would flatten all others. So a long tail on the bad side is taken in by its
logarithm. What remains may spread the more evenly for Yeo and Johnson's transformation; but where
values are noisy it also stretches the noise among the best ones. Several strengths of it are
offered, and the likelihood of the results chooses (a warped Gaussian process: Snelson, Rasmussen
and Ghahramani 2004). All keep the order: the best stays the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import yeojohnson, yeojohnson_normmax

from trialfleet.optimizer.sampling.gp.domain import Array

_FLAT = 1e-12  # of the largest value: less than that is rounding
_TAIL = 3.0  # begins so many times farther from the median than the best value is
_EXPONENTS = (-2.0, 2.0)


@dataclass(frozen=True)
class Warped:
    """Transformed values.

    Attributes:
        values: with mean 0 and variance 1; zeros where all are equal.
        log_slopes: the logarithm of the transformation's slope at each value, but for a constant
            that all transformations of the same values share.
    """

    values: Array
    log_slopes: Array


def warpings(values: Array) -> list[Warped]:
    """Return several transformations of n values: without a warping first.

    Args:
        values: finite ones, of any size; smaller is better.
    """
    largest = float(np.abs(values).max())
    if largest == 0.0 or np.ptp(values / largest) <= _FLAT:
        return [Warped(np.zeros_like(values), np.zeros_like(values))]
    scaled = _standard(_without_tail(values / largest))
    found = [Warped(scaled, np.zeros_like(scaled))]
    if len(values) < 3:
        return found
    exponent = float(np.clip(yeojohnson_normmax(scaled), *_EXPONENTS))
    for each in (0.5 + exponent / 2, exponent):  # 1 changes nothing
        warped = np.asarray(yeojohnson(scaled, each))
        slopes = (each - 1) * np.sign(scaled) * np.log1p(np.abs(scaled)) - np.log(warped.std())
        if np.isfinite(warped).all() and np.isfinite(slopes).all():
            found.append(Warped(_standard(warped), slopes))
    return found


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
