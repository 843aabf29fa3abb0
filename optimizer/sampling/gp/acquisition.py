"""The logarithm of the expected improvement, averaged over samples of θ (hyperparameters).

    EI(x) = √v h((y* - μ) / √v),    h(z) = φ(z) + z Φ(z)

y* is the least posterior mean at a tried or pending point. φ and Φ are the density and cumulative
distribution function of the standard normal distribution. Where μ is far above y*, EI is 0 in
double precision. But log EI is finite and has a gradient (Ament et al. 2023).
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr

from trialfleet.optimizer.sampling.gp.domain import Array
from trialfleet.optimizer.sampling.gp.posterior import Posteriors

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_FAR = -1e4  # below it h(z) equals φ(z) / z² to the last digit


class ExpectedImprovement:
    """The expected improvement over the best known point, averaged over `posteriors`."""

    def __init__(self, posteriors: Posteriors) -> None:
        self._posteriors = posteriors
        self._best = posteriors.best_means()

    def log(self, rows: Array) -> Array:
        """Return log EI at m points."""
        means, deviations = self._posteriors.means_and_deviations(rows)
        logs = np.log(deviations) + log_h((self._best[:, None] - means) / deviations)
        return np.asarray(np.logaddexp.reduce(logs) - np.log(len(logs)))

    def log_with_gradient(self, rows: Array) -> tuple[Array, Array]:
        """Return log EI at m points, and its gradients by the d coordinates, an m × d matrix."""
        means, deviations, by_means, by_deviations = self._posteriors.with_gradient(rows)
        z = (self._best[:, None] - means) / deviations
        log_of_h = log_h(z)
        logs = np.log(deviations) + log_of_h
        total = np.logaddexp.reduce(logs)
        # EI = √v h(z) gives dEI = -Φ(z) dμ + φ(z) d√v
        shares = np.exp(logs - total) / deviations
        cumulative = shares * np.exp(log_ndtr(z) - log_of_h)
        density = shares * np.exp(-0.5 * z * z - _LOG_SQRT_2PI - log_of_h)
        gradient = density[..., None] * by_deviations - cumulative[..., None] * by_means
        return total - np.log(len(logs)), np.asarray(gradient.sum(axis=0))


def log_h(z: Array) -> Array:
    """Return log(φ(z) + z Φ(z)), accurate to double precision for every z."""
    z = np.asarray(z, dtype=float)
    above = np.maximum(z, -1.0)
    near = np.log(np.exp(-0.5 * above * above - _LOG_SQRT_2PI) + above * np.exp(log_ndtr(above)))
    below = np.clip(z, _FAR, -1.0)
    tail = np.log1p(np.sqrt(np.pi / 2) * below * erfcx(-below / np.sqrt(2)))
    farther = np.minimum(z, _FAR)
    tail = np.where(z < _FAR, -2 * np.log(-farther), tail)
    return np.asarray(np.where(z > -1.0, near, -0.5 * z * z - _LOG_SQRT_2PI + tail))
