"""The better of two results, and the best of several."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialfleet.objective import Direction, best, gain, loss, losses, rank
from trialfleet.optimizer.stored_trials import StoredTrial, TrialState, best_first, best_trial

RESULTS = st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf])
DIRECTIONS = st.sampled_from(get_args(Direction))


def is_missing(result: float | None) -> bool:
    return result is None or math.isnan(result)


def is_better(result: float | None, other: float | None, direction: Direction) -> bool:
    return loss(result, direction) < loss(other, direction)


def identity(result: float | None) -> float | None:
    return result


@pytest.mark.parametrize(
    ("result", "other", "direction", "expected"),
    [
        (0.5, 0.25, "maximize", 0.25),
        (0.5, 0.25, "minimize", -0.25),
        (0.5, 0.5, "minimize", 0.0),
        (None, 0.5, "minimize", None),
        (0.5, None, "maximize", None),
        (0.5, math.nan, "maximize", None),
        (math.inf, 0.5, "maximize", None),
        (math.inf, math.inf, "maximize", None),
        (1e308, -1e308, "maximize", None),
    ],
)
def test_a_gain_is_positive_where_the_result_is_better(
    result: float | None, other: float | None, direction: Direction, expected: float | None
) -> None:
    assert gain(result, other, direction) == expected


@given(one=RESULTS, other=RESULTS, direction=DIRECTIONS)
def test_at_most_one_of_two_results_is_better(
    one: float | None, other: float | None, direction: Direction
) -> None:
    assert not (is_better(one, other, direction) and is_better(other, one, direction))
    assert not is_better(one, one, direction)


@given(one=st.floats(allow_nan=False), other=st.floats(allow_nan=False))
def test_the_two_directions_are_opposites(one: float, other: float) -> None:
    assert is_better(one, other, "minimize") == (one < other)
    assert is_better(one, other, "maximize") == (one > other)


@given(one=RESULTS, other=RESULTS, direction=DIRECTIONS)
def test_a_gain_has_the_sign_of_what_is_better(
    one: float | None, other: float | None, direction: Direction
) -> None:
    known = gain(one, other, direction)
    if known is not None:
        assert (known > 0) == is_better(one, other, direction)
        assert known == -(gain(other, one, direction) or 0.0)


@given(one=RESULTS, direction=DIRECTIONS)
def test_a_missing_result_is_never_better(one: float | None, direction: Direction) -> None:
    assert not is_better(None, one, direction)
    assert not is_better(math.nan, one, direction)
    assert is_missing(one) or loss(loss(one, direction), direction) == one


@given(results=st.lists(RESULTS), direction=DIRECTIONS)
def test_none_is_better_than_the_best(results: list[float | None], direction: Direction) -> None:
    found = best(results, direction, identity)
    assert (found is None) == all(map(is_missing, results))
    assert not is_missing(found) or found is None
    assert not any(is_better(result, found, direction) for result in results)


@given(results=st.lists(RESULTS), direction=DIRECTIONS)
def test_a_ranking_never_gets_better_and_keeps_the_order_of_equals(
    results: list[float | None], direction: Direction
) -> None:
    places = rank(range(len(results)), direction, results.__getitem__)
    assert sorted(places) == [at for at, result in enumerate(results) if not is_missing(result)]
    for before, after in itertools.pairwise(places):
        one, other = results[before], results[after]
        assert is_better(one, other, direction) or (one == other and before < after)


@given(results=st.lists(RESULTS), direction=DIRECTIONS)
def test_losses_are_finite_and_in_the_order_of_the_results(
    results: list[float | None], direction: Direction
) -> None:
    found = losses(results, direction)
    assert all(map(math.isfinite, found))
    for (one, own), (other, others) in itertools.combinations(zip(results, found, strict=True), 2):
        assert own <= others or not is_better(one, other, direction)
        if is_missing(one):
            assert own == max(found)


def trial(number: int, state: TrialState, value: float | None) -> StoredTrial:
    return StoredTrial(
        number=number, state=state, value=value, datetime_start=None, datetime_complete=None
    )


def test_the_best_trial_is_the_earliest_complete_one_of_equals() -> None:
    trials = [
        trial(4, TrialState.COMPLETE, 0.9),
        trial(0, TrialState.PRUNED, 1.0),  # its predicted result
        trial(1, TrialState.FAIL, None),
        trial(2, TrialState.COMPLETE, 0.9),
        trial(3, TrialState.COMPLETE, 0.1),
    ]
    assert [one.number for one in best_first(trials, "maximize")] == [2, 4, 3]
    assert [one.number for one in best_first(trials, "minimize")] == [3, 2, 4]
    chosen = best_trial(trials, "maximize")
    assert chosen is not None
    assert chosen.number == 2
    assert best_trial(trials[1:3], "maximize") is None
