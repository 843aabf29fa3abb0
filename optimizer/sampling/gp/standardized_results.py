"""The standardized results for the Gaussian process, in which large losses are compressed.

A Gaussian process expects values that spread evenly on both sides of the mean. But next to one
diverged training, all other losses would look equal. So losses far above the median are compressed
by the logarithm. Power transformations were measured and rejected, because they enlarge the noise
of the best values.
"""

from __future__ import annotations

import numpy as np

from trialfleet.optimizer.sampling.gp.domain import Array

_FLAT = 1e-12  # relative to the largest value: smaller differences are rounding errors
_TAIL = 3.0  # losses farther above the median, in distances of the best loss, are compressed


def standardize(values: Array) -> Array:
    """Return finite losses, compressed and scaled to mean 0 and variance 1.

    The ranking of the losses stays the same. If all losses are equal, they become 0.
    """
    largest = float(np.abs(values).max())
    if largest == 0.0 or np.ptp(values / largest) <= _FLAT:
        return np.zeros_like(values)
    scaled = _without_tail(values / largest)
    centred = scaled - scaled.mean()
    return np.asarray(centred / centred.std())


def _without_tail(values: Array) -> Array:
    centred = values - np.median(values)
    unit = -float(centred.min())
    if unit <= _FLAT:  # half of the values equal the best one
        return centred
    units = centred / unit
    beyond = np.maximum(units - _TAIL, 0.0)
    return np.asarray(np.where(beyond > 0, _TAIL + np.log1p(beyond), units))
