"""The choice of the results that the Gaussian process uses, if there are more than 200.

A Gaussian process's time grows as the cube of the number of results. Half of the chosen results are
the best ones, because better points are likely near them. The other half is spread over the space,
so that the model remains certain about bad parts of the space. Each result of this half is the
farthest from all chosen before it (Gonzalez: Clustering to minimize the maximum intercluster
distance, 1985).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import differences

MOST = 200  # results that the model uses


def choose_subset(rows: Array, values: Array, is_categorical: Mask) -> NDArray[np.intp]:
    """Return the indices of at most `MOST` results for the model. Smaller values are better."""
    order = np.argsort(values, kind="stable")
    if len(values) <= MOST:
        return np.arange(len(values))
    best, others = np.split(order, [MOST // 2])
    distances = np.full(len(others), np.inf)
    for row in rows[best]:
        distances = np.minimum(distances, _squared_distances(rows[others], row, is_categorical))
    chosen: list[np.intp] = []
    while len(chosen) < MOST - len(best):
        farthest = int(distances.argmax())
        chosen.append(others[farthest])
        row = rows[others[farthest]]
        distances = np.minimum(distances, _squared_distances(rows[others], row, is_categorical))
        distances[farthest] = -1.0
    return np.concatenate([best, chosen])


def _squared_distances(rows: Array, row: Array, is_categorical: Mask) -> Array:
    deltas = differences(rows, row, is_categorical)
    return np.asarray((deltas * deltas) @ np.ones(len(row)))
