"""Optimisers that choose from a list of settings, each of whose results a table knows.

A table answers for its own settings alone. Every rival therefore ranks the settings that are left,
by its own acquisition function, in place of searching the whole space; HPO-B does so, too (Pineda
Arango et al. 2021, arXiv 2106.06257). Proposals anywhere in the space, answered by the nearest
setting, would blunt the best rivals most: with some hundred settings in nine dimensions the nearest
one is far. A model fitted to the table (YAHPO Gym, Pfisterer et al. 2022, arXiv 2109.03670) would
answer everywhere, smoothly, and so favour those whose model is like it. How well a rival searches
the space is what the families of functions measure.

All rivals begin with the same settings: the defaults, then others at random. A setting that failed
is told as the worst result so far.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trialfleet.optimizer.sampling.former import FormerTask, domain_of
from trialfleet.optimizer.sampling.gp.domain import Domain
from trialfleet.optimizer.space import SearchSpace

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pool:
    """The settings to choose from.

    Attributes:
        space: their search space.
        settings: canonical points of it, the defaults first.
        domain: the space as a model sees it.
        rows: the settings as the model sees them, [settings, d].
    """

    space: SearchSpace
    settings: Sequence[dict[str, Any]]
    domain: Domain
    rows: Array

    @classmethod
    def of(cls, space: SearchSpace, settings: Sequence[dict[str, Any]]) -> Pool:
        """Return the pool of some settings."""
        domain = domain_of(space)
        return cls(space, settings, domain, domain.encode(settings))

    def distances(self, row: Array) -> Array:
        """Return how far each setting is from a point; choices that differ are 1 apart."""
        deltas = self.rows - row
        deltas[:, self.domain.is_categorical] = deltas[:, self.domain.is_categorical] != 0
        return np.asarray((deltas * deltas).sum(axis=1))


@dataclass
class Results:
    """What a rival knows: settings by their number, in the order in which they were asked.

    Attributes:
        asked: all of them.
        losses: of those that ended, smaller being better.
    """

    asked: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def known(self) -> list[int]:
        """Return the settings with a result."""
        return [number for number in self.asked if number in self.losses]

    @property
    def values(self) -> Array:
        """Return the results of `known`."""
        return np.array([self.losses[number] for number in self.known])

    @property
    def pending(self) -> list[int]:
        """Return the settings whose result is awaited."""
        return [number for number in self.asked if number not in self.losses]


class PoolRival(Protocol):
    """What chooses the next setting."""

    def choose(self, results: Results, left: Sequence[int]) -> int:
        """Return one of the settings that are left."""


class RandomDesign:
    """Settings in random order, the defaults first: how all rivals begin."""

    def __init__(self, pool: Pool, seed: int) -> None:
        others = np.random.default_rng([seed, 2]).permutation(np.arange(1, len(pool.settings)))
        self._order = [0, *map(int, others)]

    def choose(self, results: Results, left: Sequence[int]) -> int:  # noqa: ARG002
        return next(number for number in self._order if number in set(left))


@dataclass
class Told:
    """What came of a replay.

    Attributes:
        chosen: settings in the order in which they ended.
        seconds: that each choice took.
    """

    chosen: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def replayed(
    losses: Array, rival: PoolRival, trials: int, parallel: int, known: Results | None = None
) -> Told:
    """Let a rival choose, so many trials of which are pending at a time.

    Args:
        losses: of every setting; NaN for those that failed.
        rival: what chooses.
        trials: how many at most.
        parallel: how many are pending at a time.
        known: filled with what the rival was told; a new one if left out.
    """
    results = Results() if known is None else known
    told = Told()

    def finish() -> None:
        number = results.pending[0]
        worst = max(results.losses.values(), default=1.0)
        loss = float(losses[number])
        results.losses[number] = worst if np.isnan(loss) else loss
        told.chosen.append(number)

    for _ in range(min(trials, len(losses))):
        if len(results.pending) == parallel:
            finish()
        left = sorted(set(range(len(losses))) - set(results.asked))
        begun = time.perf_counter()
        chosen = rival.choose(results, left)
        told.seconds.append(time.perf_counter() - begun)
        assert chosen in left
        results.asked.append(chosen)
    while results.pending:
        finish()
    return told


def one_hot(domain: Domain, rows: Array) -> Array:
    """Return settings with a dimension for each value of a choice."""
    columns = []
    for place, column in enumerate(domain.columns.values()):
        values = rows[:, place]
        if column.is_categorical:
            columns += [(values == choice).astype(float) for choice in range(column.count or 1)]
        else:
            columns.append(values)
    return np.stack(columns, axis=1)


def former_task(name: str, region: str, pool: Pool, results: Results) -> FormerTask:
    """Return a replay as a former run's results of a region."""
    points = tuple(pool.settings[number] for number in results.known)
    return FormerTask(name, region, points, tuple(results.values.tolist()))
