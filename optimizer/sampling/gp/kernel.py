"""The covariance: parameters by themselves, and all of them together.

    k(x, x') = s² m(Σ_d δ_d² / ℓ_d²)  +  a² / d Σ_d m(δ_d² / ℓ_d²)
    m(r²)    = (1 + √5 r + 5/3 r²) exp(-√5 r)                        (Matérn 5/2)

δ_d is the difference of two numbers; of two choices it is 1 where they differ. The first part is
the usual one with a length per parameter (Rasmussen and Williams, equation 4.17). Alone it takes a
trial with another choice as a trial of something else; the second part, the additive kernel of
first order (Duvenaud, Nickisch and Rasmussen 2011), lets what was learned of one parameter hold
whatever the others are.

All gradients follow from dm/d(r²) = -5/6 (1 + √5 r) exp(-√5 r), which is finite at r = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trialfleet.optimizer.sampling.gp.domain import Array, Mask

_SQRT5 = 5**0.5


@dataclass(frozen=True)
class Hyperparameters:
    """What a covariance depends on.

    Attributes:
        lengths: ℓ, d of them.
        joint: s², the variance of what parameters do together.
        additive: a², the variance of what they do by themselves.
        noise: σ².
    """

    lengths: Array
    joint: float
    additive: float
    noise: float

    @classmethod
    def of(cls, logs: Array) -> Hyperparameters:
        """Return them by their logarithms θ: all ℓ, s², a², σ²."""
        values = np.exp(logs)
        return cls(values[:-3], *(float(value) for value in values[-3:]))

    @property
    def variance(self) -> float:
        """k(x, x): the variance of the function at any point."""
        return self.joint + self.additive


def squared_differences(left: Array, right: Array, is_categorical: Mask) -> Array:
    """Return δ² of rows against rows: d parameters last, the other axes as NumPy broadcasts."""
    deltas = differences(left, right, is_categorical)
    return deltas * deltas


def differences(left: Array, right: Array, is_categorical: Mask) -> Array:
    """Return δ, as `squared_differences` does its square; choices that differ are at 1."""
    found: Array = left - right
    found[..., is_categorical] = found[..., is_categorical] != 0
    return found


def covariance(squares: Array, given: Hyperparameters) -> tuple[Array, Array]:
    """Return both parts of k, whose sum it is.

    Args:
        squares: δ², with the d parameters last.
        given: the hyperparameters.
    """
    scaled = squares * given.lengths**-2
    joint = given.joint * _matern(scaled.sum(axis=-1))
    return joint, given.additive * _matern(scaled).mean(axis=-1)


def slopes(squares: Array, given: Hyperparameters) -> Array:
    """Return dk / d(δ_d²) for every d, in the shape of `squares`."""
    weights = given.lengths**-2
    scaled = squares * weights
    joint = given.joint * _matern_slope(scaled.sum(axis=-1))
    share = given.additive / len(given.lengths)
    return np.asarray(weights * (joint[..., None] + share * _matern_slope(scaled)))


def _matern(squared: Array) -> Array:
    r = _SQRT5 * np.sqrt(squared)
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def _matern_slope(squared: Array) -> Array:
    r = _SQRT5 * np.sqrt(squared)
    return np.asarray(-5 / 6 * (1 + r) * np.exp(-r))
