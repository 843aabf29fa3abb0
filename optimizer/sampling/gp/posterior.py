"""A Gaussian process with known hyperparameters: its likelihood and its posterior."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import (
    Hyperparameters,
    covariance,
    differences,
    slopes,
    squared_differences,
)

JITTER = 1e-9  # beside the noise, of the signal: a Cholesky factor exists in double precision


class Pairs:
    """All pairs of n points: what a likelihood needs that depends on nothing else.

    Attributes:
        places: of each pair in a matrix of n × n.
        squares: its δ², n (n - 1) / 2 × d.
    """

    def __init__(self, rows: Array, is_categorical: Mask) -> None:
        """Take the differences of points X."""
        self.places = np.triu_indices(len(rows), k=1)
        left, right = (rows[places] for places in self.places)
        self.squares = squared_differences(left, right, is_categorical)


class Likelihood:
    """The likelihood of n results under any hyperparameters."""

    def __init__(self, pairs: Pairs, values: Array) -> None:
        """Take the pairs of the points, and their values y."""
        self._values = values
        self._pairs = pairs.places
        self._squares = pairs.squares

    def negative_log(self, logs: Array) -> float:
        """Return -log p(y | X, θ) without its constant.

        Raises:
            LinAlgError: the covariance is singular in double precision.
        """
        given = Hyperparameters.of(logs)
        joint, additive = covariance(self._squares, given)
        factor = self._factor(joint + additive, given)
        half = solve_triangular(factor, self._values, lower=True)
        return float(0.5 * half @ half + np.log(factor.diagonal()).sum())

    def with_gradient(self, logs: Array) -> tuple[float, Array]:
        """Return -log p(y | X, θ) without its constant, and its gradient by θ.

        Rasmussen and Williams, equations 5.8 and 5.9.

        Raises:
            LinAlgError: the covariance is singular in double precision.
        """
        given = Hyperparameters.of(logs)
        joint, additive = covariance(self._squares, given)
        factor = self._factor(joint + additive, given)
        inverse = cho_solve((factor, True), np.eye(len(self._values)))
        alpha = inverse @ self._values
        value = 0.5 * float(self._values @ alpha) + float(np.log(factor.diagonal()).sum())
        by_covariance = 0.5 * (inverse - np.outer(alpha, alpha))
        of_pairs = 2 * by_covariance[self._pairs]  # each pair stands in K twice
        by_square = of_pairs @ (slopes(self._squares, given) * self._squares)
        diagonal = float(by_covariance.trace())
        return value, np.array(
            [
                *(-2 * by_square),  # δ²/ℓ² changes by -2 δ²/ℓ² with log ℓ
                of_pairs @ joint + (1 + JITTER) * given.joint * diagonal,
                of_pairs @ additive + (1 + JITTER) * given.additive * diagonal,
                given.noise * diagonal,
            ]
        )

    def _factor(self, pairs: Array, given: Hyperparameters) -> Array:
        n = len(self._values)
        whole = np.empty((n, n))
        whole[self._pairs] = whole.T[self._pairs] = pairs
        whole.flat[:: n + 1] = (1 + JITTER) * given.variance + given.noise
        return np.asarray(cholesky(whole, lower=True, check_finite=False))


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
        whole = self._covariance(rows)
        whole.flat[:: len(rows) + 1] += given.noise + JITTER * given.variance
        self._factor = cholesky(whole, lower=True)
        self._alpha = cho_solve((self._factor, True), values)

    def mean(self, rows: Array) -> Array:
        """Return μ at m points."""
        return np.asarray(self._covariance(rows) @ self._alpha)

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Return μ and √v at m points."""
        cross = self._covariance(rows)
        solved = solve_triangular(self._factor, cross.T, lower=True)
        variance = self.given.variance - (solved * solved).sum(axis=0)
        return np.asarray(cross @ self._alpha), self._deviation(variance)

    def with_gradient(self, row: Array) -> tuple[float, float, Array, Array]:
        """Return μ and √v at one point, and their gradients by its d numbers.

        The gradient by a choice is 0.
        """
        deltas = differences(row, self.rows, self._is_categorical)
        squares = deltas * deltas
        joint, additive = covariance(squares, self.given)
        cross = joint + additive
        by_row = 2 * deltas * slopes(squares, self.given)
        by_row[:, self._is_categorical] = 0.0
        solved = cho_solve((self._factor, True), cross)
        variance = np.array(self.given.variance - cross @ solved)
        deviation = float(self._deviation(variance))
        by_deviation = -(by_row.T @ solved) / deviation  # dv = -2 K⁻¹k · dk; d√v = dv / 2√v
        return float(cross @ self._alpha), deviation, by_row.T @ self._alpha, by_deviation

    def believing(self, rows: Array) -> Posterior:
        """Return the posterior when pending points come out as predicted."""
        if not len(rows):
            return self
        values = np.concatenate([self.values, self.mean(rows)])
        both = np.concatenate([self.rows, rows])
        return Posterior(both, values, self._is_categorical, self.given)

    def _covariance(self, rows: Array) -> Array:
        squares = squared_differences(rows[:, None], self.rows, self._is_categorical)
        joint, additive = covariance(squares, self.given)
        return joint + additive

    def _deviation(self, variance: Array) -> Array:
        return np.sqrt(np.maximum(variance, JITTER * self.given.variance))
