"""The results that a model is made of, where there are too many for all of them.

A Gaussian process costs the cube of their number. Half of those that are kept are the best ones,
since an improvement is near them. The others cover the space: without them the model would take
what was tried there for unknown. They are chosen one after the other, each the farthest from those
chosen before (Gonzalez: Clustering to minimize the maximum intercluster distance, 1985).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trialfleet.optimizer.sampling.gp.domain import Array, Mask
from trialfleet.optimizer.sampling.gp.kernel import differences

MOST = 200  # results that a model is made of


def informative(rows: Array, values: Array, is_categorical: Mask) -> NDArray[np.intp]:
    """Return the places of the results that the model is made of: all of them up to `MOST`.

    Args:
        rows: canonical points, n × d.
        values: their results; smaller is better.
        is_categorical: which parameters are choices.
    """
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
