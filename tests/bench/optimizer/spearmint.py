"""A reimplementation of Spearmint: expected improvement, integrated over hyperparameters.

Snoek, Larochelle and Adams 2012 (arXiv 1206.2944). A Gaussian process has Matérn 5/2 and a length
per dimension. Ten samples of its hyperparameters come from slice sampling, one coordinate after the
other. Pending trials get random results of the model, a hundred times for each sample, and the
improvement is averaged. A choice has a dimension for each value. Spearmint's package
(github.com/HIPS/Spearmint) is for Python 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.spatial.distance import cdist
from scipy.stats import norm

from tests.bench.optimizer.pool import Array, Pool, RandomDesign, Results, one_hot
from tests.bench.optimizer.pool_rivals import STARTUP

SAMPLES = 10
BURN_IN = 20  # sweeps before the first sample; the chain restarts with each result
FANTASIES = 100
_LONGEST = 2.0  # lengths are uniform in (0, 2), as Spearmint's top-hat prior
_NOISE = 0.1  # scale of the noise's horseshoe prior
_JITTER = 1e-8


class Spearmint:
    """A rival that chooses from a pool as Spearmint does from its grid of candidates."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._design = RandomDesign(pool, seed)
        self._random = np.random.default_rng([seed, 4])
        self._rows = one_hot(pool.domain, pool.rows)
        self._at: Array | None = None  # the last state of the chain of hyperparameters

    def choose(self, results: Results, left: Sequence[int]) -> int:
        if len(results.losses) < STARTUP:
            return self._design.choose(results, left)
        values = results.values
        scaled = (values - values.mean()) / (values.std() or 1.0)
        known, pending = self._rows[results.known], self._rows[results.pending]
        candidates = self._rows[list(left)]
        improvements = [
            expected_improvement(sample, known, scaled, pending, candidates, self._random)
            for sample in self._samples(known, scaled)
        ]
        return left[int(np.mean(improvements, axis=0).argmax())]

    def _samples(self, rows: Array, values: Array) -> list[Array]:
        """Return samples of log lengths, log amplitude, log noise and mean."""
        d = rows.shape[1]
        start = np.concatenate([np.zeros(d), [0.0, np.log(1e-3), 0.0]])
        point = start if self._at is None else self._at

        def density(x: Array) -> float:
            return log_density(x, rows, values)

        found = []
        for sweep in range((BURN_IN if self._at is None else 2) + SAMPLES):
            for place in range(len(point)):
                point = slice_step(density, point, place, self._random)
            found.append((sweep, point))
        self._at = point
        return [at for _, at in found[-SAMPLES:]]


def covariance(point: Array, left: Array, right: Array) -> Array:
    """Return the Matérn 5/2 covariance of two sets of rows."""
    lengths = np.exp(point[:-3])
    r = np.sqrt(5.0) * cdist(left / lengths, right / lengths)
    return np.asarray(np.exp(point[-3]) * (1 + r + r * r / 3) * np.exp(-r))


def log_density(point: Array, rows: Array, values: Array) -> float:
    """Return the logarithm of likelihood times prior of hyperparameters."""
    lengths, (amplitude, noise, mean) = point[:-3], point[-3:]
    if (lengths > np.log(_LONGEST)).any() or abs(mean) > 2 or noise < np.log(1e-8):
        return -np.inf
    horseshoe = np.log(np.log1p((_NOISE / np.exp(noise)) ** 2))
    prior = float(lengths.sum()) + horseshoe + noise - 0.5 * amplitude**2
    whole = covariance(point, rows, rows)
    whole.flat[:: len(rows) + 1] += np.exp(noise) + _JITTER
    try:
        factor = cholesky(whole, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return -np.inf
    half = solve_triangular(factor, values - mean, lower=True, check_finite=False)
    return float(prior - 0.5 * half @ half - np.log(factor.diagonal()).sum())


def slice_step(
    density: Callable[[Array], float], point: Array, place: int, random: np.random.Generator
) -> Array:
    """Move one coordinate by slice sampling: Neal 2003, stepping out and shrinking."""
    level = density(point) + np.log(random.uniform())

    def at(value: float) -> Array:
        moved = point.copy()
        moved[place] = value
        return moved

    low = point[place] - random.uniform()
    high = low + 1.0
    for _ in range(5):
        if density(at(low)) <= level:
            break
        low -= 1.0
    for _ in range(5):
        if density(at(high)) <= level:
            break
        high += 1.0
    for _ in range(100):
        proposed = at(random.uniform(low, high))
        if density(proposed) > level:
            return proposed
        low, high = (
            (proposed[place], high) if proposed[place] < point[place] else (low, proposed[place])
        )
    return point


def expected_improvement(
    point: Array,
    rows: Array,
    values: Array,
    pending: Array,
    candidates: Array,
    random: np.random.Generator,
) -> Array:
    """Return each candidate's expected improvement, averaged over random pending results."""
    noise, mean = np.exp(point[-2]), point[-1]
    fantasies = values[:, None]
    known = rows
    if len(pending):
        factor = _factor(point, rows, noise)
        cross = covariance(point, pending, rows)
        half = solve_triangular(factor, cross.T, lower=True)
        means = mean + cross @ cho_solve((factor, True), values - mean)
        spread = covariance(point, pending, pending) - half.T @ half
        spread.flat[:: len(pending) + 1] += noise + _JITTER
        drawn = cholesky(spread, lower=True) @ random.standard_normal((len(pending), FANTASIES))
        fantasies = np.concatenate(
            [np.repeat(values[:, None], FANTASIES, 1), means[:, None] + drawn]
        )
        known = np.concatenate([rows, pending])
    factor = _factor(point, known, noise)
    cross = covariance(point, candidates, known)
    half = solve_triangular(factor, cross.T, lower=True)
    roots = np.sqrt(np.maximum(np.exp(point[-3]) - (half * half).sum(axis=0), 1e-12))[:, None]
    means = mean + cross @ cho_solve((factor, True), fantasies - mean)
    z = (fantasies.min(axis=0) - means) / roots
    return np.asarray((roots * (z * norm.cdf(z) + norm.pdf(z))).mean(axis=1))


def _factor(point: Array, rows: Array, noise: float) -> Array:
    whole = covariance(point, rows, rows)
    whole.flat[:: len(rows) + 1] += noise + _JITTER
    return np.asarray(cholesky(whole, lower=True))
