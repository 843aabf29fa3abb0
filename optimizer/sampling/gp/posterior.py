"""A Gaussian process with known hyperparameters: its likelihood and its posterior.

Functions raise LinAlgError if a covariance is singular in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtri, dtrtrs

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import (
    Hyperparameters,
    covariance,
    covariance_and_slopes,
    differences,
)

if TYPE_CHECKING:
    from trialfleet.optimizer.sampling.gp.transfer import TaughtMeans

NO_WEIGHTS: Array = np.empty(0)
_CACHED = 100_000  # numbers of one step, so that they stay in the processor's cache
JITTER = 1e-9  # added to the noise, relative to the signal: makes the Cholesky factor exist


class Likelihood:
    """The likelihood of n results, given hyperparameters and the weights w of other tasks."""

    def __init__(
        self, rows: Array, values: Array, is_categorical: Mask, taught: Array | None = None
    ) -> None:
        """Take X (`rows`, n × d) and y (`values`).

        `taught` has the means of k other tasks' models at X, n × k.
        """
        self._values = values
        self._taught = np.empty((len(values), 0)) if taught is None else taught
        self._pairs = np.triu_indices(len(rows), k=1)  # places of pairs in a matrix of n × n
        left, right = (rows[places] for places in self._pairs)
        self._distances = np.abs(differences(left, right, is_categorical))  # n (n - 1) / 2 × d

    def negative_log(self, logs: Array, weights: Array = NO_WEIGHTS) -> float:
        """Return -log p(y | X, θ, w) without the constant."""
        given = Hyperparameters.from_logs(logs)
        joint, additive = covariance(self._distances, given)
        factor = self._cholesky_factor(joint + additive, given)
        half, _ = dtrtrs(factor, self._values - self._taught @ weights, lower=1)
        return float(0.5 * half @ half + np.log(factor.diagonal()).sum())

    def with_gradient(self, logs: Array, weights: Array = NO_WEIGHTS) -> tuple[float, Array, Array]:
        """Return `negative_log` and its gradients by θ and by w.

        The formulas are equations 5.8 and 5.9 of Rasmussen and Williams.
        """
        given = Hyperparameters.from_logs(logs)
        joint, additive, by_square = covariance_and_slopes(self._distances, given)
        factor = self._cholesky_factor(joint + additive, given)
        inverse, _ = dpotri(factor, lower=1)
        inverse = inverse + np.tril(inverse, -1).T
        values = self._values - self._taught @ weights
        alpha = inverse @ values
        value = 0.5 * float(values @ alpha) + float(np.log(factor.diagonal()).sum())
        by_covariance = 0.5 * (inverse - np.outer(alpha, alpha))
        of_pairs = 2 * by_covariance[self._pairs]  # each pair occurs twice in K
        by_square = of_pairs @ (by_square * self._distances * self._distances)
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

    def _cholesky_factor(self, pairs: Array, given: Hyperparameters) -> Array:
        n = len(self._values)
        whole = np.empty((n, n))
        whole[self._pairs] = whole.T[self._pairs] = pairs
        whole.flat[:: n + 1] = (1 + JITTER) * given.variance + given.noise
        return _cholesky(whole)


class Posterior:
    """The posterior of the function, given hyperparameters and results."""

    def __init__(
        self, rows: Array, values: Array, is_categorical: Mask, given: Hyperparameters
    ) -> None:
        """Condition the Gaussian process on results y at points X."""
        self.rows = rows
        self.values = values
        self.given = given
        self.is_categorical = is_categorical
        noise = given.noise + JITTER * given.variance
        self.factor = _cholesky(self._covariance(rows) + noise * np.eye(len(rows)))
        self.alpha, _ = dpotrs(self.factor, values, lower=1)

    def mean(self, rows: Array) -> Array:
        """Return μ at m points."""
        return np.asarray(self._covariance(rows) @ self.alpha)

    def fantasize(self, pending: Array) -> Posterior:
        """Return the posterior as if each pending point had returned its predicted mean.

        This reduces the variance and leaves the mean unchanged.
        """
        if not len(pending):
            return self
        rows = np.concatenate([self.rows, pending])
        values = np.concatenate([self.values, self.mean(pending)])
        return Posterior(rows, values, self.is_categorical, self.given)

    def _covariance(self, rows: Array) -> Array:
        distances = np.abs(differences(rows[:, None], self.rows, self.is_categorical))
        joint, additive = covariance(distances, self.given)
        return joint + additive


class Posteriors:
    """The posteriors for S samples of the hyperparameters, computed together for speed."""

    def __init__(self, posteriors: Sequence[Posterior], prior: TaughtMeans | None = None) -> None:
        """Take S posteriors with the same points.

        If there is a `prior`, `posteriors` must be computed from y minus the prior's means.
        """
        self.each = list(posteriors)
        self._prior = prior
        self._rows = posteriors[0].rows
        self._is_categorical = posteriors[0].is_categorical
        self._given = Hyperparameters.stack([each.given for each in posteriors])
        self._alphas = np.array([each.alpha for each in posteriors])[..., None]
        # (L⁻¹)ᵀ: the squares of k (L⁻¹)ᵀ sum to the variance that the results explain
        self._whitening = np.array([dtrtri(each.factor, lower=1)[0].T for each in posteriors])

    def fantasize(self, pending: Array) -> Posteriors:
        """Return the posteriors as if each pending point had returned its predicted mean."""
        return Posteriors([each.fantasize(pending) for each in self.each], self._prior)

    def mean_weights(self) -> list[float]:
        """Return the mean weight of each teacher (another task's model) over the samples."""
        return [float(x) for x in self._prior.weights.mean(axis=0)] if self._prior else []

    def best_means(self) -> Array:
        """Return each posterior's least mean at the tried and pending points: S numbers."""
        return np.asarray(self.means_and_deviations(self._rows)[0].min(axis=1))

    def means_and_deviations(self, rows: Array) -> tuple[Array, Array]:
        """Return μ and √v at m points, S × m."""
        numbers = len(self.each) * self._rows.size  # of covariances per point
        parts = np.array_split(rows, max(1, len(rows) * numbers // _CACHED))
        found = [self._cross_covariances(part) for part in parts]
        means, deviations = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
        return means + self._prior.means(rows) if self._prior else means, deviations

    def _cross_covariances(self, rows: Array) -> tuple[Array, Array]:
        distances = np.abs(differences(rows[:, None], self._rows, self._is_categorical))
        joint, additive = covariance(distances, self._given)
        cross = joint + additive
        return self._means(cross), self._deviations(np.matmul(cross, self._whitening))

    def with_gradient(self, rows: Array) -> tuple[Array, Array, Array, Array]:
        """Return μ and √v at m points, S × m, and their gradients by d coordinates, S × m × d.

        The gradient by a choice is 0.
        """
        deltas = differences(rows[:, None], self._rows, self._is_categorical)
        joint, additive, by_square = covariance_and_slopes(np.abs(deltas), self._given)
        cross = joint + additive
        deltas[..., self._is_categorical] = 0.0
        by_row = 2 * deltas * by_square
        white = np.matmul(cross, self._whitening)
        solved = np.matmul(white, self._whitening.swapaxes(1, 2))
        means, deviations = self._means(cross), self._deviations(white)
        weights = np.stack([np.broadcast_to(self._alphas[:, None, :, 0], cross.shape), solved], 2)
        both = np.matmul(weights, by_row)  # S × m × 2 × d
        by_means = both[:, :, 0]
        if self._prior:
            prior, by_prior = self._prior.with_gradient(rows)
            means, by_means = means + prior, by_means + by_prior
        by_deviations = -both[:, :, 1] / deviations[..., None]  # dv = -2 K⁻¹k · dk, d√v = dv / 2√v
        return means, deviations, by_means, by_deviations

    def _means(self, cross: Array) -> Array:
        return np.asarray(np.matmul(cross, self._alphas)[..., 0])

    def _deviations(self, white: Array) -> Array:
        whole = np.asarray(self._given.variance)[..., 0]
        explained = (white * white) @ np.ones(white.shape[-1])
        return np.asarray(np.sqrt(np.maximum(whole - explained, JITTER * whole)))


def _cholesky(whole: Array) -> Array:
    # SciPy's checks are slow
    factor, failed = dpotrf(whole, lower=1, clean=1)
    if failed:
        raise LinAlgError("the covariance is singular")
    return np.asarray(factor)
