"""Another model of learning curves, for comparison: a Gaussian process over settings and steps.

Lin, Ament, Balandat and Bakshy (2024, arXiv 2410.09239): the covariance of the loss of setting x at
step t with that of x' at t' is s² k(x, x') k(t, t'), a Kronecker product of which only the reported
part is observed. k is Gaussian in x and exponential (Matérn 1/2) in log t. Their method is for
thousands of curves; for one region the reported part is small enough for a Cholesky decomposition.
Lengths, scale and noise are those with the largest likelihood on a grid, given the complete curves.
Without settings, each curve is an independent draw around the complete curves' mean.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky

from trialfleet.optimizer.stopping.curves import Curve, Prediction

Array = NDArray[np.float64]

STEPS = 10  # of a curve that are used, evenly in log t
_GRID = ((0.3, 1.0, 3.0), (0.5, 2.0, 8.0), (0.5, 1.0), (0.01, 0.03, 0.1))


@dataclass(frozen=True)
class SettingsCurve(Curve):
    """A curve and its settings, scaled to about one; with empty settings only steps matter."""

    settings: Array


class KroneckerModel:
    """A model with the interface of `CurveModel`."""

    def __init__(self, complete: list[Curve], end: float) -> None:
        self._end = end
        self._grid = np.unique(np.geomspace(1, end, STEPS).round())
        values = np.array([np.interp(self._grid, c.steps, c.losses) for c in complete])
        self._mean, self._scale = values.mean(axis=0), float(values.std()) or 1.0
        self._known = [self._rows(curve) for curve in complete]
        candidates = list(itertools.product(*_GRID))
        self._best = max(candidates, key=lambda each: self._likelihood(*each))

    def predict(self, curve: Curve) -> Prediction:
        """Predict the end of a curve, given the complete ones."""
        x, log_t, y = self._joined([*self._known, self._rows(curve)])
        length_x, length_t, scale, noise = self._best
        cov = _covariance(x, log_t, x, log_t, length_x, length_t, scale)
        lower = cholesky(cov + noise**2 * np.eye(len(y)), lower=True)
        cross = _covariance(
            x[-1:], np.log([self._end]), x, log_t, length_x, length_t, scale
        )[0]  # fmt: skip
        mean = cross @ cho_solve((lower, True), y)
        variance = scale**2 - cross @ cho_solve((lower, True), cross) + noise**2
        return Prediction(
            np.ones(1),
            np.array([self._mean[-1] + self._scale * mean]),
            np.array([self._scale * np.sqrt(max(variance, noise**2))]),
        )

    def _rows(self, curve: Curve) -> tuple[Array, Array, Array]:
        """Return settings, log steps and losses of a curve at the grid's steps that it reached."""
        seen = self._grid[self._grid <= curve.steps[-1]]
        losses = np.interp(seen, curve.steps, curve.losses)
        settings = curve.settings if isinstance(curve, SettingsCurve) else np.zeros(0)
        if not len(settings):  # a place far from the others
            settings = np.array([1e3 * (1 + zlib.crc32(curve.losses[:1].tobytes()))])
        y = (losses - self._mean[: len(seen)]) / self._scale
        return np.tile(settings, (len(seen), 1)), np.log(seen), y

    @staticmethod
    def _joined(rows: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
        x, log_t, y = zip(*rows, strict=True)
        return np.concatenate(x), np.concatenate(log_t), np.concatenate(y)

    def _likelihood(self, length_x: float, length_t: float, scale: float, noise: float) -> float:
        x, log_t, y = self._joined(self._known)
        cov = _covariance(x, log_t, x, log_t, length_x, length_t, scale)
        lower = cholesky(cov + noise**2 * np.eye(len(y)), lower=True)
        return float(-0.5 * y @ cho_solve((lower, True), y) - np.log(np.diag(lower)).sum())


def _covariance(
    x: Array, log_t: Array, x2: Array, log_t2: Array, length_x: float, length_t: float, scale: float
) -> Array:
    squares = ((x[:, None, :] - x2[None, :, :]) ** 2).sum(axis=-1)
    over_x = np.exp(-0.5 * squares / (length_x**2 * x.shape[1]))
    over_t = np.exp(-np.abs(log_t[:, None] - log_t2[None, :]) / length_t)
    return np.asarray(scale**2 * over_x * over_t)
