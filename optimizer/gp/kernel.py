"""Matérn-5/2 covariance with a length per parameter, and its gradients.

    k(x, x') = (1 + √5 r + 5/3 r²) exp(-√5 r),    r² = Σ_d δ_d² / ℓ_d²

δ_d is the difference of two numbers; of two choices it is 1 where they differ. (Rasmussen and
Williams, equation 4.17.) All gradients follow from dk/d(r²) = -5/6 (1 + √5 r) exp(-√5 r), which is
finite at r = 0.
"""

from __future__ import annotations

import numpy as np

from trialfleet.optimizer.gp.domain import Array, Mask

_SQRT5 = 5**0.5


def differences(left: Array, right: Array, is_categorical: Mask) -> Array:
    """Return δ of m rows against n rows: m × n × d; choices that differ are at 1."""
    found: Array = left[:, None, :] - right[None, :, :]
    found[:, :, is_categorical] = found[:, :, is_categorical] != 0
    return found


def matern(squared: Array) -> Array:
    """Return k for squared distances r²."""
    r = _SQRT5 * np.sqrt(squared)
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def matern_slope(squared: Array) -> Array:
    """Return dk / d(r²)."""
    r = _SQRT5 * np.sqrt(squared)
    return np.asarray(-5 / 6 * (1 + r) * np.exp(-r))
