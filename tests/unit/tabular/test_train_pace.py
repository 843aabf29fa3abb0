"""Intervals of the ranks' votes and the host's checks, with a clock that the tests set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import distributed

from tests.one_process import world_of_one
from trialfleet.nodes.tabular import pace, ranks
from trialfleet.nodes.tabular.pace import Pace


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(steps: int, step_seconds: float, most: int) -> list[int]:
    """Return the steps with a look, out of this number."""
    clock = Clock()
    counted, found = Pace(most, clock), []
    for step in range(steps):
        clock.now += step_seconds
        if counted.is_due():
            found.append(step)
            counted.begin(counted.proposal())
    return found


def test_slow_steps_are_looked_at_one_by_one() -> None:
    assert looks(20, 2 * pace.SECONDS, most=32) == [*range(20)]


def test_quick_steps_are_looked_at_ever_more_rarely_up_to_the_most() -> None:
    found = looks(1000, 1e-6, most=32)
    assert found[:6] == [0, 2, 6, 14, 30, 62]
    assert {after - before for before, after in pairwise(found[5:])} == {32}


def test_steps_between_are_as_many_as_fit_the_time() -> None:
    found = looks(1000, pace.SECONDS / 10.5, most=1024)
    assert {after - before for before, after in pairwise(found[5:])} == {10}


def test_steps_that_take_no_time_count_as_quick() -> None:
    assert looks(7, 0.0, most=32) == [0, 2, 6]


class Voter:
    """A rank of two in a world of one, whose votes are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.votes = Clock(), 0
        self.team = ranks.Ranks(0, 2)
        self.team._pace = Pace(ranks.STEPS, self.clock)
        cast = distributed.all_reduce

        def counting(*arguments: Any, **named: Any) -> Any:
            self.votes += 1
            return cast(*arguments, **named)

        monkeypatch.setattr(distributed, "all_reduce", counting)

    def step(self, seconds: float, *, wish: bool = False) -> bool:
        self.clock.now += seconds
        return self.team.any_wished(wish=wish)


@pytest.fixture
def voter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Voter]:
    with world_of_one():
        yield Voter(monkeypatch)


def test_quick_steps_share_a_vote_and_a_wish_is_answered_in_time(voter: Voter) -> None:
    assert not any(voter.step(1e-4) for _ in range(5000))
    assert voter.votes < 30  # 0.5 s of steps: ten votes of 0.05 s, after some that were closer
    answers = [voter.step(1e-4, wish=True) for _ in range(1001)]
    assert answers.index(True) <= 1000  # two votes' time


def test_slow_steps_have_a_vote_each_counted_at_the_next(voter: Voter) -> None:
    assert [voter.step(1.0, wish=wish) for wish in (False, True, True)] == [False, False, True]
    assert voter.votes == 3


def test_the_slowest_rank_determines_the_interval_of_votes(
    voter: Voter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other proposes 3 steps each time, by a stand-in for the world of two."""

    def with_another(votes: torch.Tensor, *_: object, **__: object) -> Any:
        voter.votes += 1
        votes[1] = max(int(votes[1]), -3)
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return future

    monkeypatch.setattr(distributed, "all_reduce", with_another)
    for _ in range(300):
        voter.step(1e-4)
    assert 100 <= voter.votes <= 105
