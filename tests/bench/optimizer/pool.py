"""Optimisers that choose from a list of settings with results in a table.

A table has results only for its own settings. So every rival ranks the remaining settings by its
own acquisition function, in place of a search over the whole space. HPO-B does the same (Pineda
Arango et al. 2021, arXiv 2106.06257). The alternatives are worse. Proposals anywhere in the space
with the result of the nearest setting would harm the best rivals most: with a few hundred settings
in nine dimensions the nearest one is far away. A model fitted to the table (YAHPO Gym, Pfisterer et
al. 2022, arXiv 2109.03670) would be smooth and favour rivals with a similar model. The families of
functions measure the rivals' search over the space.

All rivals begin with the same settings: the defaults, then random ones. The result of a failed
setting is the worst result so far.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trialfleet.optimizer.sampling.gp.domain import Domain
from trialfleet.optimizer.sampling.warm_start import PreviousTask, build_domain
from trialfleet.optimizer.space import SearchSpace

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pool:
    """The list of settings from which optimisers choose.

    Attributes:
        space: their search space.
        settings: canonical points of it, the defaults first.
        domain: the search space in the form that the Gaussian process uses.
        rows: the settings as rows for the Gaussian process, [settings, d].
    """

    space: SearchSpace
    settings: Sequence[dict[str, Any]]
    domain: Domain
    rows: Array

    @classmethod
    def of(cls, space: SearchSpace, settings: Sequence[dict[str, Any]]) -> Pool:
        """Return the pool of some settings."""
        domain = build_domain(space)
        return cls(space, settings, domain, domain.encode(settings))

    def distances(self, row: Array) -> Array:
        """Return each setting's distance from a point; different choices have distance 1."""
        deltas = self.rows - row
        deltas[:, self.domain.is_categorical] = deltas[:, self.domain.is_categorical] != 0
        return np.asarray((deltas * deltas).sum(axis=1))


@dataclass
class Results:
    """An optimiser's results so far: settings by number, in the order in which they were chosen.

    Attributes:
        asked: all chosen settings.
        losses: of the finished ones; smaller is better.
    """

    asked: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def known(self) -> list[int]:
        """Return the numbers of the settings with a result."""
        return [number for number in self.asked if number in self.losses]

    @property
    def values(self) -> Array:
        """Return the results of `known`."""
        return np.array([self.losses[number] for number in self.known])

    @property
    def pending(self) -> list[int]:
        """Return the numbers of the settings without a result yet."""
        return [number for number in self.asked if number not in self.losses]


class PoolRival(Protocol):
    """An optimiser that chooses the next setting."""

    def choose(self, results: Results, left: Sequence[int]) -> int:
        """Return the number of one of the remaining settings."""


class RandomDesign:
    """The first settings of all optimisers: the defaults, then random ones."""

    def __init__(self, pool: Pool, seed: int) -> None:
        others = np.random.default_rng([seed, 2]).permutation(np.arange(1, len(pool.settings)))
        self._order = [0, *map(int, others)]

    def choose(self, results: Results, left: Sequence[int]) -> int:  # noqa: ARG002
        return next(number for number in self._order if number in set(left))


@dataclass
class ReplayResult:
    """The result of a replay.

    Attributes:
        chosen: settings in the order of their ends.
        seconds: duration of each choice.
    """

    chosen: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def replayed(
    losses: Array, rival: PoolRival, trials: int, parallel: int, known: Results | None = None
) -> ReplayResult:
    """Let a rival choose settings, with several trials pending at a time.

    Args:
        losses: of all settings; NaN for failed ones.
        rival: the optimiser.
        trials: largest number of trials.
        parallel: number of pending trials.
        known: is filled with the rival's results; a new one if left out.
    """
    results = Results() if known is None else known
    result = ReplayResult()

    def finish() -> None:
        number = results.pending[0]
        worst = max(results.losses.values(), default=1.0)
        loss = float(losses[number])
        results.losses[number] = worst if np.isnan(loss) else loss
        result.chosen.append(number)

    for _ in range(min(trials, len(losses))):
        if len(results.pending) == parallel:
            finish()
        left = sorted(set(range(len(losses))) - set(results.asked))
        begun = time.perf_counter()
        chosen = rival.choose(results, left)
        result.seconds.append(time.perf_counter() - begun)
        assert chosen in left
        results.asked.append(chosen)
    while results.pending:
        finish()
    return result


def one_hot(domain: Domain, rows: Array) -> Array:
    """Return settings with a dimension for each value of a choice, for models without choices."""
    columns = []
    for place, column in enumerate(domain.columns.values()):
        values = rows[:, place]
        if column.is_categorical:
            columns += [(values == choice).astype(float) for choice in range(column.count or 1)]
        else:
            columns.append(values)
    return np.stack(columns, axis=1)


def previous_task(name: str, region: str, pool: Pool, results: Results) -> PreviousTask:
    """Return a replay's results as those of a region in an earlier run."""
    points = tuple(pool.settings[number] for number in results.known)
    return PreviousTask(name, region, points, tuple(results.values.tolist()))
