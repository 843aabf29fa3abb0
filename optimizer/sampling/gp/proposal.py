"""The points that the Gaussian process proposes, from all results and the running trials."""

from __future__ import annotations

import numpy as np

from trialfleet.optimizer.sampling.gp.acquisition import ExpectedImprovement
from trialfleet.optimizer.sampling.gp.domain import Array, Domain
from trialfleet.optimizer.sampling.gp.fitting import posteriors
from trialfleet.optimizer.sampling.gp.search import best_points
from trialfleet.optimizer.sampling.gp.standardized_results import standardize
from trialfleet.optimizer.sampling.gp.subset import choose_subset
from trialfleet.optimizer.sampling.gp.transfer import Teachers

_GOOD = 5  # best known points, near which the search starts


def proposals(
    domain: Domain,
    rows: Array,
    values: Array,
    pending: Array,
    seed: int,
    teachers: Teachers | None = None,
) -> tuple[Array, list[float]]:
    """Return points to try, the most promising first, and each teacher's weight.

    Points that are already in `rows` or `pending` come last. A teacher that does not help has
    the weight 0. The result depends only on the arguments.

    `rows` are n × d points, with n ≥ 1. `values` are their results, which are finite: smaller is
    better. `pending` are p × d points without a result yet. All points are canonical (`domain.py`).
    `teachers` are models of other tasks in the same domain.
    """
    random = np.random.default_rng(seed)
    improvement, weights = build_acquisition(domain, rows, values, pending, random, teachers)
    good = rows[np.argsort(values, kind="stable")[:_GOOD]]
    found = best_points(domain, improvement, good, random)
    known = {row.tobytes() for row in np.concatenate([rows, pending])}
    is_new = np.array([row.tobytes() not in known for row in found])
    return np.concatenate([found[is_new], found[~is_new]]), weights


def build_acquisition(
    domain: Domain,
    rows: Array,
    values: Array,
    pending: Array,
    random: np.random.Generator,
    teachers: Teachers | None = None,
) -> tuple[ExpectedImprovement, list[float]]:
    """Return the acquisition function and each teacher's weight.

    The arguments are those of `proposals`.
    """
    modelled = choose_subset(rows, values, domain.is_categorical)
    rows, scaled = rows[modelled], standardize(values[modelled])
    nearest = teachers.nearest_tasks(rows, scaled) if teachers else []
    chosen = teachers.select(nearest) if teachers and nearest else None
    models = posteriors(rows, scaled, domain.is_categorical, random, chosen)
    weights = [0.0] * (len(teachers) if teachers else 0)
    for place, weight in zip(nearest, models.mean_weights(), strict=True):
        weights[place] = weight
    return ExpectedImprovement(models.fantasize(pending)), weights
