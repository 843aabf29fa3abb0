"""Fit of the hyperparameters θ to results: the likeliest θ, and samples of θ's posterior.

θ has a normal prior. The objective's prior mean is a weighted sum of the means of "teachers". A
teacher is the model of another task, a region of an earlier run (`transfer.py`). A teacher's weight
is max(0, z), and z also has a normal prior.

With few results, a single θ would make the model too certain, for example that a choice does not
matter. So the expected improvement is averaged over several samples of θ and z
(Snoek, Larochelle and Adams 2012). The samples come from elliptical slice sampling (Murray, Adams
and MacKay 2010). The sampling starts at the likeliest θ and z.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.optimize import minimize

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import Hyperparameters
from trialfleet.optimizer.sampling.gp.posterior import Likelihood, Posterior, Posteriors
from trialfleet.optimizer.sampling.gp.transfer import TaughtMeans, Teachers

SAMPLES = 8
MOST_FITTED = 100  # results; the time of a likelihood grows as the cube of their number
_SAMPLED_RESULTS = 480  # beyond 60 results there are fewer samples
_SPACING = 3  # steps of the sampler between two samples
_BURN_IN = 6
_MOST_STEPS = 100  # of L-BFGS
_BOUND = 4.0  # standard deviations of the prior


@dataclass(frozen=True)
class Prior:
    """The normal prior of θ, and of the z of each teacher. `tasks` is the number of teachers."""

    means: Array  # of the logarithms of all ℓ, s², a², σ²; then of all z
    deviations: Array
    tasks: int

    def split(self, point: Array) -> tuple[Array, Array]:
        """Split `point` into θ and the teachers' weights max(0, z)."""
        hyperparameters = len(self.means) - self.tasks
        return point[:hyperparameters], np.maximum(point[hyperparameters:], 0.0)


def prior(is_categorical: Mask, tasks: int = 0) -> Prior:
    """Return the prior for d parameters and k = `tasks` teachers.

    Length scales grow with √d. So the distance between two random points, measured in length
    scales, does not depend on d (arXiv 2402.02229). The results are standardized, so s² and a² are
    expected near 1. σ² is expected between 0 and 0.1. With more teachers, each weight is expected
    to be smaller.

    A categorical parameter has a longer length scale than a number. Equal scales were tried on
    tasks with both types in the benchmark `tests/bench/optimizer`. They increased the regret (the
    distance from the best value) in 13 of 18 tasks with noise. Without noise, they decreased it in
    21 of 38 tasks.
    """
    d = len(is_categorical)
    lengths = np.where(is_categorical, 0.5, -0.5) + 0.5 * np.log(d)
    means = np.concatenate([lengths, [0.0, 0.0, np.log(1e-4)], np.zeros(tasks)])
    of_weights = np.full(tasks, max(1, tasks) ** -0.5)
    deviations = np.concatenate([np.full(d, 1.0), [1.0, 1.5, 2.5], of_weights])
    return Prior(means, deviations, tasks)


def posteriors(
    rows: Array,
    values: Array,
    is_categorical: Mask,
    random: np.random.Generator,
    teachers: Teachers | None = None,
) -> Posteriors:
    """Return the posterior under each of a few samples of θ, for X (`rows`) and y (`values`).

    The rows are canonical (`domain.py`). `teachers` are models of other tasks.
    """
    taught = teachers.means(rows) if teachers else np.empty((len(rows), 0))
    centres = taught.mean(axis=0)
    taught = taught - centres
    known = prior(is_categorical, taught.shape[1])
    fitted = _choose_results(values)
    likelihood = Likelihood(rows[fitted], values[fitted], is_categorical, taught[fitted])

    def log_likelihood(point: Array) -> float:
        try:
            return -likelihood.negative_log(*known.split(point))
        except LinAlgError:
            return -np.inf

    start = _posterior_mode(likelihood, known)
    # with more results the posterior is narrower and each sample takes longer
    number = int(np.clip(_SAMPLED_RESULTS // len(fitted), 2, SAMPLES))
    points = _slice_samples(log_likelihood, start, known, number, random)
    samples = [known.split(point) for point in points]
    each = [
        Posterior(rows, values - taught @ weights, is_categorical, Hyperparameters.from_logs(logs))
        for logs, weights in samples
    ]
    if not teachers:
        return Posteriors(each)
    weights = np.array([weights for _, weights in samples])
    return Posteriors(each, TaughtMeans(teachers, centres, weights))


def fit_teacher(rows: Array, values: Array, is_categorical: Mask) -> Hyperparameters:
    """Return the likeliest θ of a task whose posterior is to be a teacher for other tasks.

    The rows are canonical (`domain.py`). `values` are standardized, and smaller is better.
    """
    fitted = _choose_results(values)
    likelihood = Likelihood(rows[fitted], values[fitted], is_categorical)
    return Hyperparameters.from_logs(_posterior_mode(likelihood, prior(is_categorical)))


def _choose_results(values: Array) -> NDArray[np.intp]:
    """Return the indices of the results for the fit: the best, and others evenly spaced in rank."""
    order = np.argsort(values, kind="stable")
    if len(values) <= MOST_FITTED:
        return order
    best, others = np.split(order, [MOST_FITTED // 2])
    some = np.linspace(0, len(others) - 1, MOST_FITTED - len(best)).round().astype(int)
    return np.concatenate([best, others[some]])


def _posterior_mode(likelihood: Likelihood, known: Prior) -> Array:
    def objective(u: Array) -> tuple[float, Array]:
        point = known.means + known.deviations * u
        logs, weights = known.split(point)
        try:
            value, by_logs, by_weights = likelihood.with_gradient(logs, weights)
        except LinAlgError:
            return np.inf, np.zeros_like(u)
        gradient = np.concatenate([by_logs, by_weights * (weights > 0)]) * known.deviations
        return value + 0.5 * float(u @ u), gradient + u

    d = len(known.means) - 3 - known.tasks
    short = np.concatenate([np.full(d, -1.0), [0.0, 0.0, 0.0], np.zeros(known.tasks)])
    noisy = np.concatenate([np.zeros(d), [0.0, 0.0, 1.5], np.full(known.tasks, 0.5)])
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
    return np.asarray(known.means + known.deviations * best.x)


def _slice_samples(
    log_likelihood: Callable[[Array], float],
    start: Array,
    known: Prior,
    number: int,
    random: np.random.Generator,
) -> list[Array]:
    logs, level = start, log_likelihood(start)
    steps = []
    for _ in range(_BURN_IN + number * _SPACING):
        logs, level = _slice_step(log_likelihood, logs, level, known, random)
        steps.append(logs)
    return steps[_BURN_IN + _SPACING - 1 :: _SPACING]


def _slice_step(
    log_likelihood: Callable[[Array], float],
    logs: Array,
    level: float,
    known: Prior,
    random: np.random.Generator,
) -> tuple[Array, float]:
    """Return θ and z after a step of elliptical slice sampling, and their log likelihood.

    `logs` are θ and z before the step, `level` is their log likelihood, `known` is their prior.
    """
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
