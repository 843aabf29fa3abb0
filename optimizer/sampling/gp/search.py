"""Search for the best point of an acquisition function.

The parameters may be continuous, on a grid, categorical or conditional. Some candidates are spread
over the space, others lie near the best known points. A few of the best candidates are refined,
most of them with different choices of the categorical parameters. A gradient method refines
continuous parameters. All other parameters are changed one at a time.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.stats.qmc import Sobol

from trialfleet.optimizer.sampling.gp.acquisition import ExpectedImprovement
from trialfleet.optimizer.sampling.gp.domain import Array, Domain

SPREAD = 512  # candidates over the whole space
NEAR = 256  # candidates near good points
STARTS = 6
_ROUNDS = 3
_SCALES = (0.2, 0.05, 0.01)  # of steps from a good point
_MOST_STEPS = 40  # of L-BFGS


def best_points(
    domain: Domain, improvement: ExpectedImprovement, good: Array, random: np.random.Generator
) -> Array:
    """Return distinct points, the most promising first.

    `good` are the best known points. All points are canonical (`domain.py`).
    """
    sequence = Sobol(domain.size, scramble=True, rng=random)
    spread = domain.spread(sequence.random_base2(int(np.log2(SPREAD))))
    candidates = np.unique(np.concatenate([spread, _nearby_points(domain, good, random)]), axis=0)
    logs = improvement.log(candidates)
    order = np.argsort(-logs, kind="stable")
    starts = _diverse_points(domain, candidates[order])
    refined = _refine(domain, improvement, starts)
    points = np.concatenate([refined, candidates[order]])
    values = np.concatenate([improvement.log(refined), logs[order]])
    ranked = points[np.argsort(-values, kind="stable")]
    _, first = np.unique(ranked, axis=0, return_index=True)
    return np.asarray(ranked[np.sort(first)])


def _nearby_points(domain: Domain, good: Array, random: np.random.Generator) -> Array:
    """Return points that differ from `good` points in some parameters.

    Numbers are changed by steps of several sizes. Choices are drawn at random.
    """
    rows = good[np.arange(NEAR) % len(good)].copy()
    scales = np.array(_SCALES)[(np.arange(NEAR) // len(good)) % len(_SCALES)]
    changed = random.uniform(size=rows.shape) < max(0.3, 1.5 / domain.size)
    stepped = rows + scales[:, None] * random.standard_normal(rows.shape)
    drawn = random.uniform(size=rows.shape)
    for place, column in enumerate(domain.columns.values()):
        if column.is_categorical:
            stepped[:, place] = np.floor(drawn[:, place] * (column.count or 1))
    return domain.canonical(np.where(changed, stepped, rows))


def _diverse_points(domain: Domain, ranked: Array) -> Array:
    """Return at most STARTS of the points in `ranked`, which has the best point first.

    Up to STARTS - 2 of them are each the best point for one combination of choices. The rest are
    the best of the remaining points.
    """
    choices = ranked[:, domain.is_categorical]
    _, first = np.unique(choices, axis=0, return_index=True)
    chosen = list(np.sort(first)[: STARTS - 2])
    chosen += [place for place in range(len(ranked)) if place not in chosen][: STARTS - len(chosen)]
    return np.asarray(ranked[chosen])


def _refine(domain: Domain, improvement: ExpectedImprovement, starts: Array) -> Array:
    rows = starts
    left = np.arange(len(rows))  # starts that still change
    for _ in range(_ROUNDS):
        rows[left] = _climb(domain, improvement, rows[left])
        changes = [_single_changes(domain, row) for row in rows[left]]
        logs = improvement.log(np.concatenate([rows[left], *changes]))
        before, *after = np.split(logs, np.cumsum([len(left), *map(len, changes[:-1])]))
        better = []
        for row, log, changed, changed_logs in zip(left, before, changes, after, strict=True):
            if len(changed) and changed_logs.max() > log:
                rows[row] = changed[int(changed_logs.argmax())]
                better.append(row)
        left = np.array(better, dtype=int)
        if not len(left):
            break
    return rows


def _climb(domain: Domain, improvement: ExpectedImprovement, starts: Array) -> Array:
    """Return the starts, each moved to a local optimum in its active continuous parameters."""
    free = domain.is_continuous & domain.active(starts)
    if not free.any():
        return starts

    def objective(numbers: Array) -> tuple[float, Array]:
        rows = starts.copy()
        rows[free] = numbers
        logs, gradients = improvement.log_with_gradient(rows)
        return -float(logs.sum()), -gradients[free]

    found = minimize(
        objective,
        starts[free],
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * int(free.sum()),
        options={"maxiter": _MOST_STEPS},
    )
    rows = starts.copy()
    rows[free] = found.x
    return np.asarray(domain.canonical(rows))


def _single_changes(domain: Domain, row: Array) -> Array:
    """Return points that differ from `row` in one parameter: a choice, or a number on a grid."""
    found = []
    active = domain.active(row[None])[0]
    for place, column in enumerate(domain.columns.values()):
        count = column.count
        if not active[place] or domain.is_continuous[place] or count is None or count < 2:
            continue
        if column.is_categorical:
            others = [float(i) for i in range(count) if i != row[place]]
        else:
            others = [row[place] + step / count for step in (-4, -2, -1, 1, 2, 4)]
        for other in others:
            changed = row.copy()
            changed[place] = other
            found.append(changed)
    if not found:
        return np.empty((0, domain.size))
    rows = np.unique(domain.canonical(np.array(found)), axis=0)
    return np.asarray(rows[(rows != row).any(axis=1)])
