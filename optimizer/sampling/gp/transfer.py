"""What other tasks teach: their posteriors' means, weighted, are the prior mean of this one.

    f(x) = Σ_i w_i (μ_i(x) - c_i) + r(x),    w_i = max(0, z_i)

μ_i is the posterior mean of task i, c_i its mean over this task's points, r a Gaussian process with
the usual covariance. Weights aren't negative, and half of a weight's prior lies at 0: a task that
doesn't help teaches nothing (the model of ScaML-GP, Tighineanu et al. 2023, arXiv 2312.00742, of
whose covariance only the residual is kept: other tasks have many results, and their own doubt is
small beside that of how far they apply). The weights are found with θ, by the likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from trialfleet.optimizer.sampling.gp.domain import Array
from trialfleet.optimizer.sampling.gp.posterior import Posterior, Posteriors

MOST_TEACHERS = 5  # tasks that teach at a time: each is a hyperparameter more
_PORTFOLIO_BEST = 3  # points of each task that a portfolio is chosen from


class Teachers:
    """The posteriors of other tasks."""

    def __init__(self, tasks: Sequence[Posterior]) -> None:
        """Take k posteriors, the one that is likeliest to help first."""
        self._tasks = list(tasks)
        self._stacks = [Posteriors([task]) for task in tasks]

    def __len__(self) -> int:
        return len(self._tasks)

    def means(self, rows: Array) -> Array:
        """Return every μ_i at m points, m × k."""
        return np.array([task.mean(rows) for task in self._tasks]).T

    def with_gradient(self, rows: Array) -> tuple[Array, Array]:
        """Return every μ_i at m points, k × m, and its gradients by d numbers, k × m × d."""
        found = [stack.with_gradient(rows) for stack in self._stacks]
        means = [means[0] for means, *_ in found]
        return np.array(means), np.array([by[0] for _, _, by, _ in found])

    def nearest(self, rows: Array, values: Array) -> list[int]:
        """Return which tasks order this one's results best, by rank correlation; at most a few."""
        means = self.means(rows)
        ranks = _centred(rankdata(values))
        scores = [float(_centred(rankdata(means[:, i])) @ ranks) for i in range(len(self))]
        best = np.argsort(-np.array(scores), kind="stable")[:MOST_TEACHERS]
        return [int(i) for i in best if scores[i] > 0]

    def only(self, chosen: Sequence[int]) -> Teachers:
        """Return some of them."""
        return Teachers([self._tasks[i] for i in chosen])

    def portfolio(self, count: int) -> Array:
        """Return points that together are good for every task: start-up trials for a new one.

        Chosen one after the other, each for the best summed rank by all tasks' means (Wistuba,
        Schilling, Schmidt-Thieme: Sequential model-free hyperparameter tuning, 2015). There are at
        most `count`, and no more than the tasks' best differ.
        """
        best = [task.rows[np.argsort(task.values, kind="stable")] for task in self._tasks]
        candidates = np.unique(np.concatenate([rows[:_PORTFOLIO_BEST] for rows in best]), axis=0)
        ranks = rankdata(self.means(candidates), axis=0)
        chosen: list[int] = []
        reached = np.full(len(self), np.inf)
        while len(chosen) < min(count, len(candidates)):
            sums = np.minimum(ranks, reached).sum(axis=1)
            sums[chosen] = np.inf
            chosen.append(int(sums.argmin()))
            reached = np.minimum(reached, ranks[chosen[-1]])
        return np.asarray(candidates[chosen])


class TaughtMeans:
    """The prior mean of a task, by S samples of its teachers' weights."""

    def __init__(self, teachers: Teachers, centres: Array, weights: Array) -> None:
        """Weigh the teachers.

        Args:
            teachers: k of them.
            centres: their means over the task's points, k.
            weights: S × k.
        """
        self._teachers = teachers
        self._centres = centres
        self.weights = weights

    def at(self, rows: Array) -> Array:
        """Return the means at m points, S × m."""
        return np.asarray(self.weights @ (self._teachers.means(rows) - self._centres).T)

    def with_gradient(self, rows: Array) -> tuple[Array, Array]:
        """Return the means at m points, S × m, and their gradients by d numbers, S × m × d."""
        means, by_rows = self._teachers.with_gradient(rows)
        by_means = np.tensordot(self.weights, by_rows, 1)
        return self.weights @ (means - self._centres[:, None]), np.asarray(by_means)


def _centred(ranks: Array) -> Array:
    centred = ranks - ranks.mean()
    size = float(np.sqrt(centred @ centred))
    return np.asarray(centred / size if size else centred)
