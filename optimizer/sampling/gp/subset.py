"""A subset of the results for a model, if there are too many.

A Gaussian process takes time by the cube of the number of results. Half of the subset are the best
results, because improvements are near the best results. The other half covers the space. Without
this half, the model would be uncertain in tried parts of the space. Each result of this half is the
farthest from all chosen before (Gonzalez: Clustering to minimize the maximum intercluster distance,
1985).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import differences

MOST = 200  # results of a model


def informative(rows: Array, values: Array, is_categorical: Mask) -> NDArray[np.intp]:
    """Return the places of the model's results, all up to `MOST`; smaller values are better."""
    order = np.argsort(values, kind="stable")
    if len(values) <= MOST:
        return np.arange(len(values))
    best, others = np.split(order, [MOST // 2])
    distances = np.full(len(others), np.inf)
    for row in rows[best]:
        distances = np.minimum(distances, _squared(rows[others], row, is_categorical))
    chosen: list[np.intp] = []
    while len(chosen) < MOST - len(best):
        farthest = int(distances.argmax())
        chosen.append(others[farthest])
        row = rows[others[farthest]]
        distances = np.minimum(distances, _squared(rows[others], row, is_categorical))
        distances[farthest] = -1.0
    return np.concatenate([best, chosen])


def _squared(rows: Array, row: Array, is_categorical: Mask) -> Array:
    deltas = differences(rows, row, is_categorical)
    return np.asarray((deltas * deltas) @ np.ones(len(row)))
