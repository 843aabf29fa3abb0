"""A Gaussian process with known hyperparameters: its likelihood and its posterior."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import (
    Hyperparameters,
    covariance,
    covariance_and_slopes,
    differences,
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
        joint, additive, by_square = covariance_and_slopes(self._squares, given)
        factor = self._factor(joint + additive, given)
        inverse = cho_solve((factor, True), np.eye(len(self._values)))
        alpha = inverse @ self._values
        value = 0.5 * float(self._values @ alpha) + float(np.log(factor.diagonal()).sum())
        by_covariance = 0.5 * (inverse - np.outer(alpha, alpha))
        of_pairs = 2 * by_covariance[self._pairs]  # each pair stands in K twice
        by_square = of_pairs @ (by_square * self._squares)
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
        self.is_categorical = is_categorical
        whole = self._covariance(rows)
        whole.flat[:: len(rows) + 1] += given.noise + JITTER * given.variance
        self.factor = cholesky(whole, lower=True)
        self.alpha = cho_solve((self.factor, True), values)

    def mean(self, rows: Array) -> Array:
        """Return μ at m points."""
        return np.asarray(self._covariance(rows) @ self.alpha)

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Return μ and √v at m points."""
        cross = self._covariance(rows)
        solved = solve_triangular(self.factor, cross.T, lower=True)
        variance = self.given.variance - (solved * solved).sum(axis=0)
        return np.asarray(cross @ self.alpha), deviation(variance, self.given)

    def believing(self, rows: Array) -> Posterior:
        """Return the posterior when pending points come out as predicted."""
        if not len(rows):
            return self
        values = np.concatenate([self.values, self.mean(rows)])
        both = np.concatenate([self.rows, rows])
        return Posterior(both, values, self.is_categorical, self.given)

    def _covariance(self, rows: Array) -> Array:
        squares = squared_differences(rows[:, None], self.rows, self.is_categorical)
        joint, additive = covariance(squares, self.given)
        return joint + additive


class Posteriors:
    """The posteriors of the same points under several samples of hyperparameters, at once.

    One at a time, what NumPy needs for a call would be most of the time of a gradient.
    """

    def __init__(self, posteriors: Sequence[Posterior]) -> None:
        """Stack S posteriors, whose points and choices are the same."""
        self._each = list(posteriors)
        self._rows = posteriors[0].rows
        self._is_categorical = posteriors[0].is_categorical
        self._given = Hyperparameters.stacked([each.given for each in posteriors])
        self._alphas = np.array([each.alpha for each in posteriors])
        identity = np.eye(len(self._rows))
        self._inverses = np.array([cho_solve((each.factor, True), identity) for each in posteriors])

    def best_means(self) -> Array:
        """Return the least μ at a known point, of each."""
        return np.array([each.mean(each.rows).min() for each in self._each])

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Return μ and √v at m points, S × m."""
        found = [each.at(rows) for each in self._each]  # at once they would take S times the memory
        return np.array([mean for mean, _ in found]), np.array([root for _, root in found])

    def with_gradient(self, row: Array) -> tuple[Array, Array, Array, Array]:
        """Return μ and √v at one point, and their gradients by its d numbers, S × d.

        The gradient by a choice is 0.
        """
        deltas = differences(row, self._rows, self._is_categorical)
        joint, additive, by_square = covariance_and_slopes(deltas * deltas, self._given)
        cross = joint + additive
        deltas[:, self._is_categorical] = 0.0
        by_row = 2 * deltas * by_square
        solved = np.matmul(self._inverses, cross[..., None])[..., 0]
        variance = self._given.variance - (cross * solved).sum(axis=1, keepdims=True)
        root = deviation(variance, self._given)
        both = np.matmul(np.stack([self._alphas, solved], axis=1), by_row)
        means = (cross * self._alphas).sum(axis=1)
        return (
            means,
            root[:, 0],
            both[:, 0],
            -both[:, 1] / root,
        )  # dv = -2 K⁻¹k · dk, d√v = dv / 2√v


def deviation(variance: Array, given: Hyperparameters) -> Array:
    """Return √v, where rounding may have left v at nothing."""
    return np.asarray(np.sqrt(np.maximum(variance, JITTER * given.variance)))
