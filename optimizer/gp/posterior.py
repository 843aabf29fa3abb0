"""A Gaussian process with known hyperparameters: its likelihood and its posterior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from trialfleet.optimizer.gp.domain import Array, Mask
from trialfleet.optimizer.gp.kernel import differences, matern, matern_slope

JITTER = 1e-9  # beside the noise, of the signal: a Cholesky factor exists in double precision


@dataclass(frozen=True)
class Hyperparameters:
    """What a covariance depends on.

    Attributes:
        lengths: ℓ, d of them.
        signal: s².
        noise: σ².
    """

    lengths: Array
    signal: float
    noise: float

    @classmethod
    def of(cls, logs: Array) -> Hyperparameters:
        """Return them by their logarithms θ: all ℓ, s², σ²."""
        values = np.exp(logs)
        return cls(values[:-2], float(values[-2]), float(values[-1]))


def negative_log_likelihood(logs: Array, squares: Array, values: Array) -> tuple[float, Array]:
    """Return -log p(y | X, θ) without its constant, and its gradient by θ.

    Rasmussen and Williams, equations 5.8 and 5.9.

    Args:
        logs: θ.
        squares: δ² of the n points, d × n × n.
        values: y.

    Raises:
        LinAlgError: the covariance is singular in double precision.
    """
    given = Hyperparameters.of(logs)
    weights = given.lengths**-2
    squared = np.tensordot(weights, squares, 1)
    covariance = given.signal * matern(squared)
    noisy = covariance.copy()
    noisy.flat[:: len(values) + 1] += given.noise + JITTER * given.signal
    factor = cholesky(noisy, lower=True)
    inverse = cho_solve((factor, True), np.eye(len(values)))
    alpha = inverse @ values
    value = 0.5 * float(values @ alpha) + float(np.log(factor.diagonal()).sum())
    inner = inverse - np.outer(alpha, alpha)  # gradient by K, times 2
    by_squared = inner * given.signal * matern_slope(squared)
    gradient = np.empty_like(logs)
    gradient[:-2] = -weights * np.tensordot(squares, by_squared, 2)
    gradient[-2] = 0.5 * float((inner * covariance).sum())
    gradient[-1] = 0.5 * given.noise * float(inner.trace())
    return value, gradient


class Posterior:
    """What is known of the function at any point, given hyperparameters and results."""

    def __init__(
        self, rows: Array, values: Array, is_categorical: Mask, given: Hyperparameters
    ) -> None:
        """Condition on results.

        Args:
            rows: X, canonical.
            values: y.
            is_categorical: which parameters are choices.
            given: the hyperparameters.

        Raises:
            LinAlgError: the covariance is singular in double precision.
        """
        self.rows = rows
        self.values = values
        self.given = given
        self._is_categorical = is_categorical
        covariance = given.signal * matern(self._squared(rows))
        covariance.flat[:: len(rows) + 1] += given.noise + JITTER * given.signal
        self._factor = cholesky(covariance, lower=True)
        self._alpha = cho_solve((self._factor, True), values)

    def mean(self, rows: Array) -> Array:
        """Return μ at m points."""
        return np.asarray(self.given.signal * matern(self._squared(rows)) @ self._alpha)

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Return μ and √v at m points."""
        cross = self.given.signal * matern(self._squared(rows))
        solved = solve_triangular(self._factor, cross.T, lower=True)
        variance = self.given.signal - (solved * solved).sum(axis=0)
        return np.asarray(cross @ self._alpha), self._deviation(variance)

    def with_gradient(self, row: Array) -> tuple[float, float, Array, Array]:
        """Return μ and √v at one point, and their gradients by its d numbers.

        The gradient by a choice is 0.
        """
        deltas = differences(row[None], self.rows, self._is_categorical)[0]
        weights = self.given.lengths**-2
        squared = (deltas * deltas) @ weights
        cross = self.given.signal * matern(squared)
        slopes = 2 * self.given.signal * matern_slope(squared)[:, None] * deltas * weights
        slopes[:, self._is_categorical] = 0.0
        solved = cho_solve((self._factor, True), cross)
        deviation = float(self._deviation(np.array(self.given.signal - cross @ solved)))
        by_deviation = -(slopes.T @ solved) / deviation  # dv = -2 K⁻¹k · dk; d√v = dv / 2√v
        return float(cross @ self._alpha), deviation, slopes.T @ self._alpha, by_deviation

    def believing(self, rows: Array) -> Posterior:
        """Return the posterior when pending points come out as predicted."""
        if not len(rows):
            return self
        values = np.concatenate([self.values, self.mean(rows)])
        both = np.concatenate([self.rows, rows])
        return Posterior(both, values, self._is_categorical, self.given)

    def _squared(self, rows: Array) -> Array:
        deltas = differences(rows, self.rows, self._is_categorical)
        return np.asarray((deltas * deltas) @ self.given.lengths**-2)

    def _deviation(self, variance: Array) -> Array:
        return np.sqrt(np.maximum(variance, JITTER * self.given.signal))
