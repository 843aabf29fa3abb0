"""A Gaussian process with known hyperparameters: its likelihood and its posterior.

LinAlgError: a covariance is singular in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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

NO_WEIGHTS: Array = np.empty(0)
JITTER = 1e-9  # beside the noise, of the signal: a Cholesky factor exists in double precision


class PriorMeans(Protocol):
    """What is expected of a function before its own results, by S samples.

    Attributes:
        weights: of k teachers, S × k.
    """

    weights: Array

    def at(self, rows: Array) -> Array:
        """Return the means at m points, S × m."""

    def with_gradient(self, row: Array) -> tuple[Array, Array]:
        """Return the means at one point, and their gradients by its d numbers, S × d."""


class Likelihood:
    """The likelihood of n results under any hyperparameters, and weights of other tasks."""

    def __init__(
        self, rows: Array, values: Array, is_categorical: Mask, taught: Array | None = None
    ) -> None:
        """Take results y at points X, and the differences of each two points.

        M, the means of k other tasks at the points, n × k, is none if `taught` is left out.
        """
        self._values = values
        self._taught = np.empty((len(values), 0)) if taught is None else taught
        self._pairs = np.triu_indices(len(rows), k=1)  # places of pairs in a matrix of n × n
        left, right = (rows[places] for places in self._pairs)
        self._squares = squared_differences(left, right, is_categorical)  # n (n - 1) / 2 × d

    def negative_log(self, logs: Array, weights: Array = NO_WEIGHTS) -> float:
        """Return -log p(y | X, θ, w) without its constant."""
        given = Hyperparameters.of(logs)
        joint, additive = covariance(self._squares, given)
        factor = self._factor(joint + additive, given)
        half = solve_triangular(factor, self._values - self._taught @ weights, lower=True)
        return float(0.5 * half @ half + np.log(factor.diagonal()).sum())

    def with_gradient(self, logs: Array, weights: Array = NO_WEIGHTS) -> tuple[float, Array, Array]:
        """Return -log p(y | X, θ, w) without its constant, and its gradients by θ and by w.

        Rasmussen and Williams, equations 5.8 and 5.9.
        """
        given = Hyperparameters.of(logs)
        joint, additive, by_square = covariance_and_slopes(self._squares, given)
        factor = self._factor(joint + additive, given)
        inverse = cho_solve((factor, True), np.eye(len(self._values)))
        values = self._values - self._taught @ weights
        alpha = inverse @ values
        value = 0.5 * float(values @ alpha) + float(np.log(factor.diagonal()).sum())
        by_covariance = 0.5 * (inverse - np.outer(alpha, alpha))
        of_pairs = 2 * by_covariance[self._pairs]  # each pair stands in K twice
        by_square = of_pairs @ (by_square * self._squares)
        diagonal = float(by_covariance.trace())
        by_logs = np.array(
            [
                *(-2 * by_square),  # δ²/ℓ² changes by -2 δ²/ℓ² with log ℓ
                of_pairs @ joint + (1 + JITTER) * given.joint * diagonal,
                of_pairs @ additive + (1 + JITTER) * given.additive * diagonal,
                given.noise * diagonal,
            ]
        )
        return value, by_logs, -alpha @ self._taught

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
        """Condition on results y at canonical points X."""
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

    def __init__(self, posteriors: Sequence[Posterior], prior: PriorMeans | None = None) -> None:
        """Stack S posteriors, whose points and choices are the same.

        Args:
            posteriors: of what the prior means leave over.
            prior: what other tasks say, by as many samples of their weights; nothing if left out.
        """
        self.each = list(posteriors)
        self._prior = prior
        self._rows = posteriors[0].rows
        self._is_categorical = posteriors[0].is_categorical
        self._given = Hyperparameters.stacked([each.given for each in posteriors])
        self._alphas = np.array([each.alpha for each in posteriors])
        identity = np.eye(len(self._rows))
        self._inverses = np.array([cho_solve((each.factor, True), identity) for each in posteriors])

    def believing(self, rows: Array) -> Posteriors:
        """Return the posteriors when pending points come out as predicted."""
        return Posteriors([each.believing(rows) for each in self.each], self._prior)

    def mean_weights(self) -> list[float]:
        """Return the weight of each teacher, on average over the samples."""
        return [float(x) for x in self._prior.weights.mean(axis=0)] if self._prior else []

    def mean(self, rows: Array) -> Array:
        """Return μ at m points, S × m."""
        means = np.array([each.mean(rows) for each in self.each])
        return means + self._prior.at(rows) if self._prior else means

    def best_means(self) -> Array:
        """Return the least μ at a known point, of each."""
        return np.asarray(self.mean(self._rows).min(axis=1))

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Return μ and √v at m points, S × m."""
        found = [each.at(rows) for each in self.each]  # at once they would take S times the memory
        means = np.array([mean for mean, _ in found])
        if self._prior:
            means += self._prior.at(rows)
        return means, np.array([root for _, root in found])

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
        means, by_means = (cross * self._alphas).sum(axis=1), both[:, 0]
        if self._prior:
            prior, by_prior = self._prior.with_gradient(row)
            means, by_means = means + prior, by_means + by_prior
        by_roots = -both[:, 1] / root  # dv = -2 K⁻¹k · dk, d√v = dv / 2√v
        return means, root[:, 0], by_means, by_roots


def deviation(variance: Array, given: Hyperparameters) -> Array:
    """Return √v, where rounding may have left v at nothing."""
    return np.asarray(np.sqrt(np.maximum(variance, JITTER * given.variance)))
