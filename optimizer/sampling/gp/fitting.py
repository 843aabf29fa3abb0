"""Hyperparameters that explain the results: the likeliest, and samples around them.

Every θ has a normal prior. Samples come from the posterior by elliptical slice sampling (Murray,
Adams and MacKay 2010), which needs no step size; it starts at the likeliest. Averaging over them
keeps a model of few results from being sure of the wrong thing, such as that a choice doesn't
matter (Snoek, Larochelle and Adams 2012).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.optimize import minimize

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import Hyperparameters
from trialfleet.optimizer.sampling.gp.outputs import Warped
from trialfleet.optimizer.sampling.gp.posterior import Likelihood, Pairs, Posterior

SAMPLES = 8
MOST_FITTED = 150  # results; a likelihood costs their number's cube
_SAMPLED_RESULTS = 480  # beyond 60 results there are fewer samples
_SPACING = 3  # steps of the sampler between two samples
_BURN_IN = 6
_MOST_STEPS = 100  # of L-BFGS
_BOUND = 4.0  # standard deviations of the prior


@dataclass(frozen=True)
class Prior:
    """A normal distribution of each θ.

    Attributes:
        means: of the logarithms: all ℓ, s², a², σ².
        deviations: their standard deviations.
    """

    means: Array
    deviations: Array


def prior(is_categorical: Mask) -> Prior:
    """Return the prior for d parameters.

    Lengths grow with √d, so that the variance between two random points does not depend on d
    (arXiv 2402.02229). The metric is standardized: s² + a² is about 1. Noise is anything from none
    to a tenth of the variance.
    """
    d = len(is_categorical)
    lengths = np.where(is_categorical, 0.5, -0.5) + 0.5 * np.log(d)
    means = np.concatenate([lengths, [0.0, 0.0, np.log(1e-4)]])
    deviations = np.concatenate([np.full(d, 1.0), [1.0, 1.5, 2.5]])
    return Prior(means, deviations)


def posteriors(
    rows: Array, warpings: Sequence[Warped], is_categorical: Mask, random: np.random.Generator
) -> list[Posterior]:
    """Return the posterior under each of a few samples of θ, of the likeliest warping.

    Args:
        rows: X, canonical, n × d.
        warpings: y, transformed in different ways.
        is_categorical: which parameters are choices.
        random: decides the samples.
    """
    fitted = _fitted(warpings[0].values)
    known = prior(is_categorical)
    pairs = Pairs(rows[fitted], is_categorical)
    chosen = []
    for each in warpings:
        likelihood = Likelihood(pairs, each.values[fitted])
        best, density = _likeliest(likelihood, known)
        chosen.append((density + float(each.log_slopes[fitted].sum()), best, likelihood, each))
    _, best, likelihood, warped = max(chosen, key=lambda one: one[0])

    def log_likelihood(logs: Array) -> float:
        try:
            return -likelihood.negative_log(logs)
        except LinAlgError:
            return -np.inf

    samples = _samples(log_likelihood, best, known, _number(len(fitted)), random)
    given = [Hyperparameters.of(logs) for logs in samples]
    return [Posterior(rows, warped.values, is_categorical, each) for each in given]


def _fitted(values: Array) -> NDArray[np.intp]:
    """The results that hyperparameters are fitted to: the best ones, and some of the others."""
    order = np.argsort(values, kind="stable")
    if len(values) <= MOST_FITTED:
        return order
    best, others = np.split(order, [MOST_FITTED // 2])
    some = np.linspace(0, len(others) - 1, MOST_FITTED - len(best)).round().astype(int)
    return np.concatenate([best, others[some]])


def _number(results: int) -> int:
    """How many samples: more results leave less to doubt, and make each sample dearer."""
    return int(np.clip(_SAMPLED_RESULTS // results, 2, SAMPLES))


def _likeliest(likelihood: Likelihood, known: Prior) -> tuple[Array, float]:
    """The θ of the largest posterior density that two starts lead to, and its logarithm."""

    def objective(z: Array) -> tuple[float, Array]:
        try:
            value, gradient = likelihood.with_gradient(known.means + known.deviations * z)
        except LinAlgError:
            return np.inf, np.zeros_like(z)
        return value + 0.5 * float(z @ z), gradient * known.deviations + z

    d = len(known.means) - 3
    short = np.concatenate([np.full(d, -1.0), [0.0, 0.0, 0.0]])
    noisy = np.concatenate([np.zeros(d), [0.0, 0.0, 1.5]])
    found = [
        minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(-_BOUND, _BOUND)] * len(start),
            options={"maxiter": _MOST_STEPS},
        )
        for start in (short, noisy)
    ]
    best = min(found, key=lambda result: float(result.fun))
    return np.asarray(known.means + known.deviations * best.x), -float(best.fun)


def _samples(
    log_likelihood: Callable[[Array], float],
    start: Array,
    known: Prior,
    number: int,
    random: np.random.Generator,
) -> list[Array]:
    logs, level = start, log_likelihood(start)
    found = []
    for step in range(_BURN_IN + number * _SPACING):
        logs, level = _slice_step(log_likelihood, logs, level, known, random)
        if step >= _BURN_IN and (step - _BURN_IN) % _SPACING == _SPACING - 1:
            found.append(logs)
    return found


def _slice_step(
    log_likelihood: Callable[[Array], float],
    logs: Array,
    level: float,
    known: Prior,
    random: np.random.Generator,
) -> tuple[Array, float]:
    """One step along an ellipse through θ and a draw of the prior."""
    draw = known.deviations * random.standard_normal(len(logs))
    threshold = level + np.log(random.uniform())
    angle = random.uniform(0, 2 * np.pi)
    low, high = angle - 2 * np.pi, angle
    while True:
        offset = (logs - known.means) * np.cos(angle) + draw * np.sin(angle)
        proposed = known.means + np.clip(
            offset, -_BOUND * known.deviations, _BOUND * known.deviations
        )
        reached = log_likelihood(proposed)
        if reached > threshold:
            return proposed, reached
        if high - low < 1e-9:
            return logs, level
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = random.uniform(low, high)
