"""Learning from other tasks (regions of earlier runs): their models form a task's prior mean.

    f(x) = Σ_i w_i (μ_i(x) - c_i) + r(x),    w_i = max(0, z_i)

μ_i is the posterior mean of another task i, a teacher. c_i is the mean of μ_i over this task's
points. r is a Gaussian process with the usual covariance. In the prior, a weight is 0 with
probability 1/2, so a task that does not help gets no weight. The weights are fitted together with
θ, by the likelihood.

This is the model of ScaML-GP (Tighineanu et al. 2023, arXiv 2312.00742), except that its covariance
does not include the uncertainty of the means μ_i. This uncertainty is small, because other tasks
have many results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from trialfleet.optimizer.sampling.gp.domain import Array
from trialfleet.optimizer.sampling.gp.posterior import Posterior, Posteriors

MOST_TEACHERS = 5  # teachers at a time: each adds a hyperparameter
_PORTFOLIO_BEST = 3  # best points of each task, the candidates of a portfolio


class Teachers:
    """The posteriors of k other tasks."""

    def __init__(self, tasks: Sequence[Posterior]) -> None:
        self._tasks = list(tasks)
        self._stacks = [Posteriors([task]) for task in tasks]

    def __len__(self) -> int:
        return len(self._tasks)

    def means(self, rows: Array) -> Array:
        """Return each teacher's mean μ_i at m points, as an m × k matrix."""
        return np.array([task.mean(rows) for task in self._tasks]).T

    def with_gradient(self, rows: Array) -> tuple[Array, Array]:
        """Return every μ_i at m points, k × m, and its gradients by d coordinates, k × m × d."""
        found = [stack.with_gradient(rows) for stack in self._stacks]
        means = [means[0] for means, *_ in found]
        return np.array(means), np.array([by[0] for _, _, by, _ in found])

    def nearest_tasks(self, rows: Array, values: Array) -> list[int]:
        """Return the indices of the tasks whose means at `rows` correlate most with `values`.

        The most similar task is first. At most MOST_TEACHERS tasks are returned, all with a
        positive rank correlation.
        """
        means = self.means(rows)
        ranks = _normalise_ranks(rankdata(values))
        scores = [float(_normalise_ranks(rankdata(means[:, i])) @ ranks) for i in range(len(self))]
        best = np.argsort(-np.array(scores), kind="stable")[:MOST_TEACHERS]
        return [int(i) for i in best if scores[i] > 0]

    def select(self, chosen: Sequence[int]) -> Teachers:
        """Return the teachers with the indices `chosen`."""
        return Teachers([self._tasks[i] for i in chosen])

    def portfolio(self, count: int) -> Array:
        """Return at most `count` start-up points, with a good one for each task if possible.

        The candidates are the best points of each task. Each task ranks all candidates by its mean.
        Points are chosen one by one. A task's score is the best of its ranks of the chosen points.
        Each choice minimizes the sum of the scores (Wistuba, Schilling, Schmidt-Thieme 2015).
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
    """The prior mean of a task, for each of S samples of its teachers' weights."""

    def __init__(self, teachers: Teachers, centres: Array, weights: Array) -> None:
        """Combine k teachers: `centres` are their c_i, `weights` are S samples of their w_i."""
        self._teachers = teachers
        self._centres = centres
        self.weights = weights

    def means(self, rows: Array) -> Array:
        """Return the means at m points, S × m."""
        return np.asarray(self.weights @ (self._teachers.means(rows) - self._centres).T)

    def with_gradient(self, rows: Array) -> tuple[Array, Array]:
        """Return the means at m points, S × m, and their gradients by d coordinates, S × m × d."""
        means, by_rows = self._teachers.with_gradient(rows)
        by_means = np.tensordot(self.weights, by_rows, 1)
        return self.weights @ (means - self._centres[:, None]), np.asarray(by_means)


def _normalise_ranks(ranks: Array) -> Array:
    centred = ranks - ranks.mean()
    size = float(np.sqrt(centred @ centred))
    return np.asarray(centred / size if size else centred)
