"""The covariance of two points: a joint part of all parameters, and an additive part.

    k(x, x') = s² m(Σ_d δ_d² / ℓ_d²)  +  a² / d Σ_d m(δ_d² / ℓ_d²)
    m(r²)    = (1 + √5 r + 5/3 r²) exp(-√5 r)                        (Matérn 5/2)

δ_d is the difference between the points in parameter d. For choices, δ_d is 0 if they are equal,
else 1. ℓ_d is the length scale of parameter d. In the factor a² / d, d is the number of parameters.
m is equation 4.17 of Rasmussen and Williams. With the joint part alone, a trial with one choice
says little about trials with another choice. The additive part (first order, Duvenaud, Nickisch and
Rasmussen 2011) learns the effect of one parameter for all values of the others.

All gradients follow from dm/d(r²) = -5/6 (1 + √5 r) exp(-√5 r), which is finite at r = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trialfleet.optimizer.sampling.gp.domain import Array, Mask

_SQRT5 = 5**0.5


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of the covariance. Samples of them are stacked along the first axis."""

    lengths: Array  # ℓ, d numbers in the last axis
    joint: float | Array  # s², the variance of the joint effect of all parameters
    additive: float | Array  # a², the variance of the separate effects
    noise: float | Array  # σ²

    @classmethod
    def from_logs(cls, logs: Array) -> Hyperparameters:
        """Return the hyperparameters whose logarithms are θ: all ℓ, s², a², σ²."""
        values = np.exp(logs)
        return cls(values[:-3], *(float(value) for value in values[-3:]))

    @classmethod
    def stack(cls, given: Sequence[Hyperparameters]) -> Hyperparameters:
        """Return S samples, stacked to broadcast over covariances of shape S × m × n."""
        joint, additive, noise = (
            np.array([getattr(each, name) for each in given])[:, None, None]
            for name in ("joint", "additive", "noise")
        )
        lengths = np.array([each.lengths for each in given])[:, None, None]
        return cls(lengths, joint, additive, noise)

    @property
    def variance(self) -> float | Array:
        """The variance of the function at any point, k(x, x)."""
        return self.joint + self.additive


def differences(left: Array, right: Array, is_categorical: Mask) -> Array:
    """Return the differences δ between `left` and `right`. For choices, δ is 0 or 1.

    The last axis of each array has the d parameters.
    """
    found: Array = left - right
    found[..., is_categorical] = found[..., is_categorical] != 0
    return found


def covariance(distances: Array, given: Hyperparameters) -> tuple[Array, Array]:
    """Return k's joint and additive parts for the distances |δ|, whose last axis has length d."""
    scaled = distances * (_SQRT5 / given.lengths)
    joint = given.joint * _matern(_norm(scaled))
    return joint, given.additive * _mean(_matern(scaled))


def covariance_and_slopes(distances: Array, given: Hyperparameters) -> tuple[Array, Array, Array]:
    """Return k's joint and additive parts, and dk / d(δ_d²) in the shape of `distances`."""
    scaled = distances * (_SQRT5 / given.lengths)
    joint, joint_slope = _matern_and_slope(_norm(scaled))
    additive, additive_slope = _matern_and_slope(scaled)
    share = np.asarray(given.additive / distances.shape[-1])[..., None]
    by_square = (np.asarray(given.joint) * joint_slope)[..., None] + share * additive_slope
    by_square *= given.lengths**-2
    return given.joint * joint, given.additive * _mean(additive), np.asarray(by_square)


def _norm(vectors: Array) -> Array:
    # BLAS is faster here than NumPy's sum
    return np.asarray(np.sqrt((vectors * vectors) @ np.ones(vectors.shape[-1])))


def _mean(vectors: Array) -> Array:
    d = vectors.shape[-1]
    return np.asarray(vectors @ np.full(d, 1 / d))


def _matern(r: Array) -> Array:
    return np.asarray((1 + r + r * r / 3) * np.exp(-r))


def _matern_and_slope(r: Array) -> tuple[Array, Array]:
    """Return the Matérn function, and its derivative by the square of the distance.

    `r` is √5 times the distance.
    """
    falling = np.exp(-r)
    linear = (1 + r) * falling
    return linear + r * r / 3 * falling, -5 / 6 * linear
