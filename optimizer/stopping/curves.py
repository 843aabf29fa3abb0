"""Prediction of where a learning curve ends: a weighted combination of basis curves.

Notation, for one curve of n reports (smaller is better):

    t     (n,)     steps, shifted and scaled: the first is 1, and reports are typically 1 apart
    y     (n,)     reported values
    T              the last step of the training, on the scale of t
    φ_k            one of the K basis curves, which falls from φ_k(1) = 1 towards 0
    θ     (2,)     asymptote c and amplitude a of y = c + a φ_k(t) + ε,  ε ~ N(0, σ²)
    m, S  (2,), (2, 2)   the mean and covariance of the normal prior of θ
    w     (K,)     the probability of each basis curve

The basis curves are power laws t^-α (pow3) and exponentials exp(-(t - 1)/τ) of Domhan, Springenberg
and Hutter (IJCAI 2015, "Speeding up automatic hyperparameter optimization of deep neural networks
by extrapolation of learning curves"), with α and τ from a grid. For a given α or τ, the curve is
linear in θ. So posterior, evidence and prediction are those of Bayesian linear regression (Bishop,
"Pattern Recognition and Machine Learning", eq. 3.50, 3.58, 3.86). Domhan et al. use a Markov chain
instead. A prediction takes a fraction of a millisecond, and is the same to the last bit for the
same reports.

The prior comes from the region's complete curves. For each k, m and S are the median and the spread
of the θ that fit these curves. The better φ_k fits them, the larger its w. σ² is the mean squared
error of the best fits. If the curves differ much, the prediction has a large deviation. A curve
that diverged, or has a spike, is left out: it would make all predictions too uncertain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

POWERS = tuple(np.geomspace(0.1, 3.0, 18).tolist())  # α
TIMES = tuple(np.geomspace(0.02, 1.0, 10).tolist())  # τ as part of T
MOST_REPORTS = 100  # of a curve: more do not improve the prediction
_WIDER = 1.5  # the prior's spread, relative to that of the few complete curves
_OWN_SPREAD = 0.1  # the least spread of θ, as part of the curves' range
_DOUBT = 2.0  # deviations added to the misses: few complete curves are weak evidence
_MOST_RISE = 5.0  # of a complete curve, relative to how far a typical one is from the median loss
_LEAST_NOISE = 3e-3  # the noise's deviation as part of the curves' range: no curve is that exact


@dataclass(frozen=True)
class Curve:
    """A trial's reports: steps in rising order, and finite losses. Smaller losses are better."""

    steps: Array
    losses: Array


@dataclass(frozen=True)
class Prediction:
    """The predicted end of a curve: a mixture of normal distributions, whose weights sum to one."""

    weights: Array
    means: Array
    deviations: Array

    @property
    def mean(self) -> float:
        """The mean of the mixture."""
        return float(self.weights @ self.means)

    @property
    def deviation(self) -> float:
        """The standard deviation of the mixture."""
        away = np.hypot(self.deviations, self.means - self.mean)
        most = float(away.max())  # the squares of huge losses overflow
        return most * math.sqrt(float(self.weights @ (away / most) ** 2))

    def shifted(self, by: float, deviation: float) -> Prediction:
        """Return the prediction plus a random difference.

        The difference has the mean `by` and the standard deviation `deviation`.
        """
        return Prediction(self.weights, self.means + by, np.hypot(self.deviations, deviation))

    def probability_below(self, loss: float) -> float:
        """Return the probability that the curve ends below `loss`."""
        away = (self.means - loss) / (self.deviations * math.sqrt(2))
        return float(self.weights @ [0.5 * math.erfc(each) for each in away.tolist()])


class CurveModel:
    """A predictor of how curves end, fitted to two or more complete curves.

    `end` is the last step of a training.
    """

    def __init__(self, complete: list[Curve], end: float) -> None:
        assert len(complete) >= 2, "the spread of curves needs two curves"
        complete = _without_odd(complete)
        self._first = min(float(curve.steps[0]) for curve in complete)
        gaps = np.concatenate([np.diff(curve.steps) for curve in complete])
        self._unit = float(np.median(gaps)) if len(gaps) else 1.0
        self._end = self._time(max(end, *(float(curve.steps[-1]) for curve in complete)))
        all_losses = np.concatenate([curve.losses for curve in complete])
        low, high = np.quantile(all_losses, [0.05, 0.95])
        self._center = float(np.median(all_losses))
        self._scale = float(high - low) or abs(self._center) or 1.0
        self._curves = [self._scale_curve(curve) for curve in complete]
        self._misses: dict[float, float] = {}  # by step
        self._learn()

    def predict(self, curve: Curve) -> Prediction:
        """Predict the end of a curve with one or more reports."""
        return self._calibrate(self._predict(*self._scale_curve(curve)), float(curve.steps[-1]))

    def _predict(self, t: Array, y: Array) -> Prediction:
        """Return the prediction for steps `t` and values `y`, in the model's own scaled units."""
        means, covariances, logs = self._posteriors(self._basis(t), y)
        at_end = _with_ones(self._basis(np.array([self._end])))[:, 0, :]  # (K, 2)
        variances = np.einsum("kp,kpq,kq->k", at_end, covariances, at_end)
        evidence = logs + np.log(self._weights)
        weights = np.exp(evidence - evidence.max())
        return Prediction(
            weights / weights.sum(),
            np.einsum("kp,kp->k", at_end, means),
            np.sqrt(variances + self._noise),
        )

    def _calibrate(self, found: Prediction, step: float) -> Prediction:
        """Convert `found` to the units of the reports, and widen it if it is too certain.

        `found` was made from the reports up to `step`. It is widened if the calibration factor for
        `step` is above 1. Then the variance of the mixture's means is added to the variance of each
        normal distribution in the mixture, and the deviations are multiplied by the factor.
        """
        wider = self._misses.get(step)
        if wider is None:
            wider = self._misses[step] = self._calibration_factor(self._time(step))
        spread = float(np.sqrt(found.weights @ (found.means - found.mean) ** 2))
        deviations = np.hypot(found.deviations, spread) * wider if wider > 1 else found.deviations
        return Prediction(
            found.weights, self._center + self._scale * found.means, self._scale * deviations
        )

    def _calibration_factor(self, until: float) -> float:
        """Return the factor by which the standard deviations of predictions are too small.

        The complete curves that have reports after `until` are used: the end of each is predicted
        from its reports up to `until`. z is a prediction's error in standard deviations. For n
        curves, the result is √((Σ z² + _DOUBT²) / n). The constant _DOUBT makes the result larger
        if n is small. If n is 0, the result is 1.
        """
        away = []
        for t, y in self._curves:
            seen = t <= until
            if seen.any() and not seen.all():
                found = self._predict(t[seen], y[seen])
                away.append((y[-1] - found.mean) / found.deviation)
        return math.sqrt((sum(z * z for z in away) + _DOUBT**2) / len(away)) if away else 1.0

    def _posteriors(self, basis: Array, y: Array) -> tuple[Array, Array, Array]:
        """Return θ's mean and covariance given the reports, and the log evidence, for each φ_k."""
        rows = _with_ones(basis)  # (K, n, 2)
        inverse = np.linalg.inv(self._spreads)
        precisions = inverse + np.einsum("knp,knq->kpq", rows, rows) / self._noise
        covariances = np.linalg.inv(precisions)
        right = np.einsum("kpq,kq->kp", inverse, self._means)
        right += np.einsum("knp,n->kp", rows, y) / self._noise
        means = np.einsum("kpq,kq->kp", covariances, right)
        rest = y - np.einsum("knp,kp->kn", rows, means)
        moved = means - self._means
        logs = -0.5 * (
            (rest**2).sum(axis=1) / self._noise
            + np.einsum("kp,kpq,kq->k", moved, inverse, moved)
            + len(y) * math.log(2 * math.pi * self._noise)
            + np.linalg.slogdet(self._spreads)[1]
            + np.linalg.slogdet(precisions)[1]
        )
        return means, covariances, logs

    def _learn(self) -> None:
        """Set the prior, the weights and the noise from separate fits of the complete curves."""
        fits, squares = [], []
        for t, y in self._curves:
            rows = _with_ones(self._basis(t))
            fit = np.linalg.pinv(rows, rcond=1e-6) @ y  # (K, 2): least squares
            fits.append(fit)
            squares.append(((y - np.einsum("knp,kp->kn", rows, fit)) ** 2).mean(axis=1))
        found, missed = np.array(fits), np.array(squares)  # (curves, K, 2), (curves, K)
        self._noise = max(float(missed.min(axis=1).mean()), _LEAST_NOISE**2)
        self._means = np.median(found, axis=0)  # (K, 2): robust to one odd curve
        away = found - self._means
        spreads = np.einsum("ikp,ikq->kpq", away, away) / (len(found) - 1)
        self._spreads = _WIDER**2 * spreads + np.eye(2) * _OWN_SPREAD**2
        sizes = np.array([len(y) for _, y in self._curves])
        logs = -0.5 * (missed * sizes[:, None]).mean(axis=0) / self._noise
        weights = np.exp(logs - logs.max()) + 1.0 / len(logs)  # no basis curve is ruled out
        self._weights = weights / weights.sum()

    def _scale_curve(self, curve: Curve) -> tuple[Array, Array]:
        at = np.unique(np.linspace(0, len(curve.steps) - 1, MOST_REPORTS).round().astype(int))
        t = np.array([self._time(step) for step in curve.steps[at]])
        return t, (curve.losses[at] - self._center) / self._scale

    def _time(self, step: float) -> float:
        return max((step - self._first) / self._unit, 0.0) + 1.0

    def _basis(self, t: Array) -> Array:
        """Return the values of the K basis curves at the scaled steps `t`, in the shape (K, n)."""
        powers = [t**-alpha for alpha in POWERS]
        exponentials = [np.exp(-(t - 1.0) / (part * self._end)) for part in TIMES]
        return np.array(powers + exponentials)


def _without_odd(curves: list[Curve]) -> list[Curve]:
    """Return the curves that neither diverged nor have a spike: at least two.

    A curve that falls far is kept with its noise, even if most curves are flat. Without it, the
    model would stop each trial that still learns.
    """
    # the half with the lowest peaks: more than half of the curves may have diverged
    lowest = sorted(curves, key=lambda curve: float(curve.losses.max()))
    lowest = lowest[: max(2, math.ceil(len(curves) / 2))]
    center = float(np.median(np.concatenate([curve.losses for curve in lowest])))
    typical = float(np.median([np.abs(curve.losses - center).max() for curve in lowest]))
    return [curve for curve in curves if not _is_odd(curve, center, typical or math.inf)]


def _is_odd(curve: Curve, center: float, typical: float) -> bool:
    """Return whether a curve ends far above `center`, or rises far above its own best loss.

    `typical` is how far a typical curve is from `center`.
    """
    losses = curve.losses
    rise, fall = (losses - np.minimum.accumulate(losses)).max(), losses[0] - losses.min()
    too_high, too_steep = _MOST_RISE * typical, _MOST_RISE * max(typical, fall)
    return bool(losses[-1] - center > too_high or rise > too_steep)


def _with_ones(basis: Array) -> Array:
    """Return the regression's rows (1, φ_k(t)) in the shape (K, n, 2), from `basis` (K, n)."""
    return np.stack([np.ones_like(basis), basis], axis=-1)
