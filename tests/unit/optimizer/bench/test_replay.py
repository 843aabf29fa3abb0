"""Tests of the replay of optimisers over a table: results, choices, measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from tests.bench.optimizer import charts, flights_trainings, pool_rivals, replay
from tests.bench.optimizer.flights_table import SPACE
from tests.bench.optimizer.pool import (
    Array,
    Pool,
    PoolRival,
    RandomDesign,
    Results,
    one_hot,
    previous_task,
    replayed,
)
from tests.bench.optimizer.spearmint import Spearmint
from tests.search_spaces import value_at
from trialfleet.optimizer.sampling.warm_start import PreviousTask, PreviousTasks
from trialfleet.optimizer.space import SearchSpace

pytestmark = pytest.mark.slow


SETTINGS = 60


@pytest.fixture(scope="module")
def pool() -> Pool:
    space = SearchSpace.model_validate(SPACE)
    return Pool.of(space, flights_trainings.settings(SETTINGS))


def losses_of(pool: Pool, away: float = 0.0) -> Array:
    """Return the values of a bowl over all parameters."""
    return np.asarray(((pool.rows - 0.5 - away) ** 2).sum(axis=1))


def previous(pool: Pool, name: str = "other") -> PreviousTask:
    results = Results()
    replayed(losses_of(pool, 0.05), RandomDesign(pool, 9), 40, 4, results)
    return previous_task(name, name, pool, results)


class Recorder:
    """A rival that chooses the first remaining setting and records the results it got."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.values: list[list[float]] = []

    def choose(self, results: Results, left: Sequence[int]) -> int:
        self.pending.append(len(results.pending))
        self.values.append(results.values.tolist())
        return left[0]


def test_the_number_of_pending_trials_is_kept_and_a_failed_one_counts_as_the_worst() -> None:
    rival = Recorder()
    result = replayed(np.array([0.3, 0.9, np.nan, 0.1, 0.2, 0.5]), rival, 6, 2)
    assert result.chosen == [0, 1, 2, 3, 4, 5]
    assert rival.pending == [0, 1, 1, 1, 1, 1]
    assert rival.values[-1] == [0.3, 0.9, 0.9, 0.1]


RIVALS: dict[str, Callable[[Pool], PoolRival]] = {
    "random": lambda pool: RandomDesign(pool, 3),
    "tpe": lambda pool: pool_rivals.NearestTPE(pool, 3),
    "gp": lambda pool: pool_rivals.GPSampler(pool, 3),
    "spearmint": lambda pool: Spearmint(pool, 3),
    "ours": lambda pool: pool_rivals.Ours(pool, 3, 24),
    "taught": lambda pool: pool_rivals.Ours(pool, 3, 24, PreviousTasks((previous(pool),), "today")),
    "zero-shot": lambda pool: pool_rivals.ZeroShot(pool, [previous(pool)]),
    "quantiles": lambda pool: pool_rivals.QuantileTransfer(
        pool, 3, [previous(pool, "a"), previous(pool, "b")]
    ),
}


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_chooses_each_setting_once_and_reproducibly(name: str, pool: Pool) -> None:
    losses = losses_of(pool)
    result = replayed(losses, RIVALS[name](pool), 24, 4)
    assert len(set(result.chosen)) == 24
    assert replayed(losses, RIVALS[name](pool), 24, 4).chosen == result.chosen


@pytest.mark.parametrize("name", ["gp", "spearmint", "ours", "taught", "zero-shot"])
def test_every_learning_rival_finds_the_best_of_few_parameters(name: str) -> None:
    entries = {n: SPACE[n] for n in ("learning_rate", "optimizer", "dropout")}
    space = SearchSpace.model_validate(entries)
    random = np.random.default_rng(0)
    points = [
        {n: value_at(x, random.uniform()) for n, x in space.parameters.items()} for _ in range(99)
    ]
    pool = Pool.of(space, [space.canonical(x) for x in [space.defaults(), *points]])
    losses = losses_of(pool)
    ranks = np.argsort(np.argsort(losses))
    found = replayed(losses, RIVALS[name](pool), 30, 4).chosen
    assert np.sort(ranks[found])[:3].mean() < 4


def test_a_portfolio_covers_every_task_before_it_repeats_itself() -> None:
    means = np.array([[0.0, 9.0], [1.0, 8.0], [9.0, 0.0], [5.0, 5.0]])
    assert set(pool_rivals.portfolio(means)[:2]) == {0, 2} or pool_rivals.portfolio(means)[0] == 1
    assert sorted(pool_rivals.portfolio(means)) == [0, 1, 2, 3]


def test_one_hot_gives_a_choice_one_dimension_for_each_value(pool: Pool) -> None:
    assert one_hot(pool.domain, pool.rows).shape == (SETTINGS, len(SPACE) + 1)


def test_an_unreached_target_counts_as_one_and_a_half_times_all_trials() -> None:
    curve = np.array([0.5, 0.2, 0.2, 0.1])
    assert replay.trials_to(curve, 0.2) == 2
    assert replay.trials_to(curve, 0.05) == 6


def test_the_ratio_of_means_works_with_a_regret_of_zero() -> None:
    assert replay.ratio_of_means(np.zeros(3), np.ones(3)).startswith("**0** (0 to 0)")
    assert replay.ratio_of_means(np.ones(3), np.ones(3) * 2).startswith("**0.5** (0.5 to 0.5)")


def test_replicates_have_different_regions_that_have_an_earlier_month() -> None:
    regions = [replay.region_of(number) for number in range(33)]
    assert len(set(regions)) == 33
    assert not any(region.endswith("-01") for region in regions)


def test_a_chart_is_an_image_with_a_line_and_a_name_for_each_curve() -> None:
    values = np.array([1.0, 0.3, 0.0])
    drawn = [charts.Curve(f"a < {i}", values, values * 0.9, values * 1.1) for i in range(2)]
    image = ET.fromstring(charts.chart(drawn, x="trials", y="regret"))  # noqa: S314
    lines = [each for each in image if each.tag.endswith("polyline")]
    assert len(lines) == 2
    assert {"a < 0", "a < 1"} <= {each.text for each in image}
