"""Rows in main memory against the whole table in the hands of the dense optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from trialfleet.nodes.tabular.optimizers import BETA_1, BETA_2, EPSILON, Optimizer
from trialfleet.nodes.tabular.settings import SettingError, Settings
from trialfleet.nodes.tabular.sharded.host_rows import HostRows
from trialfleet.nodes.tabular.sharded.missed_steps import MissedSteps

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01},
    "adamw, decay": {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.5},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.1},
    "sgd, 0.999": {"optimizer": "sgd", "learning_rate": 0.002, "momentum": 0.999},
    "sgd, 0.9999": {
        "optimizer": "sgd",
        "learning_rate": 0.001,
        "momentum": 0.9999,
        "weight_decay": 0.1,
    },
    "sgd, no momentum": {
        "optimizer": "sgd",
        "learning_rate": 0.02,
        "momentum": 0.0,
        "weight_decay": 0.1,
    },
}


def cosine(chosen: Settings, steps: int) -> Callable[[int], float]:
    def rate_at(step: int) -> float:
        return chosen.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))

    return rate_at


def holder_of(weight: nn.Parameter) -> nn.Module:
    holder = nn.Module()
    holder.weight = weight
    return holder


class Pair:
    """The same steps with the whole table, and with the rows in use in slots."""

    def __init__(self, rows: int, slots: int, steps: int = 400, e: int = 3, **chosen: Any) -> None:
        self.settings = Settings(**chosen)
        self.random = torch.Generator().manual_seed(rows + slots)
        table = torch.randn(rows, e, generator=self.random)
        self.rate_at = cosine(self.settings, steps)
        self.whole = nn.Parameter(table.clone())
        self.dense = Optimizer(holder_of(self.whole), self.settings)
        self.e, self.done = e, 0
        self.ours = self.host(table.clone(), slots)

    def host(self, table: Tensor, slots: int) -> HostRows:
        host = HostRows(table, slots, self.settings, self.rate_at, CPU)
        self.sparse = Optimizer(holder_of(host.moved), self.settings)
        self.sparse.steps = self.done
        host.bind(self.sparse.m[0], self.sparse.v[0])
        return host

    def again(self, done: int) -> None:
        """Say that so many steps have been taken, by which the table was not moved."""
        self.done = self.dense.steps = self.sparse.steps = done
        table = self.whole.detach()
        self.load(table, self.dense.m[0], self.dense.v[0])

    def load(self, table: Tensor, m: Tensor, v: Tensor) -> None:
        self.ours.load(table)
        self.ours.load_means(m, v, self.done)

    def train(self, batches: Sequence[Tensor], scale: float = 1.0) -> None:
        if not batches:
            return
        self.ours.fetch_ahead(batches[0], self.done)
        self.ours.swap_in()
        for number, wanted in enumerate(batches, 1):
            if number < len(batches):
                self.ours.fetch_ahead(batches[number], self.done + 1)
            self.step(wanted, scale)
            self.ours.swap_in()

    def step(self, wanted: Tensor, scale: float = 1.0) -> None:
        """Take a step; its loss is linear in the rows, with other factors in each step."""
        factors = torch.randn(len(wanted), self.e, generator=self.random) * scale
        self.done += 1
        for optimizer, weight, places in (
            (self.dense, self.whole, wanted),
            (self.sparse, self.ours.moved, self.ours.places(wanted)),
        ):
            optimizer.clear()
            loss = (functional.embedding(places, weight) * factors).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(self.rate_at(self.done))

    def assert_same(self) -> None:
        self.ours.settle(self.done)
        (m,), (v,) = self.dense.m, self.dense.v
        # Beside float64 the dense optimiser's own rounding of hundreds of steps is as much.
        near(self.ours.table, self.whole.detach(), rtol=1e-5, atol=1e-5)
        near(self.ours.m, m, rtol=1e-4, atol=float(m.abs().max()) * 1e-6)
        near(self.ours.v, v, rtol=1e-4, atol=float(v.abs().max()) * 1e-6)
        assert (self.ours.caught_up == self.done).all()

    def brought(self, wanted: Tensor) -> int:
        """Return how many rows had to come, for a step that is not taken."""
        before = self.ours.brought_rows
        self.ours.fetch_ahead(wanted, self.done)
        self.ours.swap_in()
        return self.ours.brought_rows - before


def near(ours: Tensor, theirs: Tensor, *, rtol: float, atol: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def draws(steps: int, rows: int, size: int, seed: int = 0) -> list[Tensor]:
    """Return batches: row 0 in each, row 1 once, the last rows never, others at random."""
    random = torch.Generator().manual_seed(seed)
    batches = [
        torch.cat(
            [torch.zeros(1, dtype=torch.int64), torch.randint(2, rows, (size,), generator=random)]
        )
        for _ in range(steps)
    ]
    batches[3][-1] = 1
    return batches


def rows_of(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.fixture
def pair() -> Pair:
    return Pair(rows=20, slots=4, **OPTIMIZERS["adamw"])


# The whole table


@pytest.mark.slow
@pytest.mark.parametrize(
    (
        "begin",
        "scale",
    ),  # one by one, both ways, by the series; roots far above ε, and about as large
    [(0, 1.0), (900, 1e-7), (20_000, 1.0), (20_000, 1e-7)],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_after_hundreds_of_steps_the_table_is_that_of_the_dense_optimiser(
    name: str, begin: int, scale: float
) -> None:
    pair = Pair(rows=300, slots=30, steps=begin + 700, **OPTIMIZERS[name])
    pair.again(begin)
    pair.train(draws(40, 290, 8), scale)
    pair.train(draws(260, 12, 8, seed=1), scale)  # others miss more than J steps
    pair.train(draws(40, 290, 8, seed=2), scale)
    pair.assert_same()


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_settled_amid_the_steps_and_loaded_by_another_it_goes_on_to_the_same(name: str) -> None:
    pair = Pair(rows=100, slots=10, **OPTIMIZERS[name])
    pair.train(draws(60, 100, 6))
    pair.assert_same()
    pair.train(draws(60, 100, 6, seed=1))  # what is in slots has stayed there
    pair.assert_same()
    former = pair.ours
    pair.ours = pair.host(torch.zeros_like(former.table), 10)
    pair.load(former.table, former.m, former.v)
    pair.train(draws(60, 100, 6, seed=2))
    pair.assert_same()


def test_settled_while_rows_are_on_their_way_it_goes_on_to_the_same(pair: Pair) -> None:
    pair.train([rows_of(1, 2), rows_of(3, 4)])
    pair.ours.fetch_ahead(rows_of(5, 6), pair.done + 1)
    pair.step(rows_of(3, 4))
    pair.assert_same()
    pair.ours.swap_in()
    pair.step(rows_of(5, 6))
    pair.assert_same()


@pytest.mark.slow
def test_decay_of_more_steps_than_a_product_of_float64_can_tell() -> None:
    pair = Pair(rows=20, slots=4, steps=10**9, **{**OPTIMIZERS["sgd"], "weight_decay": 25.0})
    pair.train([rows_of(2)])
    pair.train([rows_of(1)] * 1200)  # halves 1200 times
    pair.train([rows_of(3)])
    pair.train([rows_of(1)])
    pair.assert_same()
    assert pair.ours.table.isfinite().all()


def test_decay_that_turns_signs() -> None:
    chosen = {**OPTIMIZERS["sgd"], "weight_decay": 60.0}  # times -0.2
    pair = Pair(rows=20, slots=4, **chosen)
    pair.train([rows_of(2), rows_of(1), rows_of(1), rows_of(1)])
    pair.assert_same()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_never_wanted_only_decays(name: str) -> None:
    pair = Pair(rows=20, slots=4, **OPTIMIZERS[name])
    before = pair.ours.table.clone()
    pair.train([rows_of(1, 2), rows_of(3), rows_of(1)])
    pair.assert_same()
    share = 1.0
    for step in (1, 2, 3):
        share *= 1 - pair.rate_at(step) * pair.settings.weight_decay
    near(pair.ours.table[5:], before[5:] * share, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("ratio", [7.3, 1.0])
@pytest.mark.parametrize("root", [1e-3, 1e-8, 1e-10])  # beside ε
def test_the_series_is_the_steps_one_by_one(root: float, ratio: float) -> None:
    rate, begin, steps = 1.0, 1000, 400
    missed = MissedSteps(Settings(), lambda _: rate)
    missed.begin(begin)
    missed.advance(begin + steps)
    w, v = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), root**2).double()
    m = v.sqrt() * ratio
    mean, square, way = float(m), float(v), 0.0
    for step in range(begin + 1, begin + steps + 1):
        mean, square = mean * BETA_1, square * BETA_2
        bottom = math.sqrt(square / (1 - BETA_2**step)) + EPSILON
        way -= rate * mean / (1 - BETA_1**step) / bottom
    missed.catch_up([w, m, v], torch.tensor([begin]))
    assert float(w) == pytest.approx(way, rel=1e-6)
    assert float(m) == pytest.approx(mean, rel=1e-4)
    assert float(v) == pytest.approx(square, rel=1e-4)


def test_what_is_loaded_comes_to_the_slots_anew(pair: Pair) -> None:
    pair.train([rows_of(1, 2)])
    with torch.no_grad():
        pair.whole.add_(1.0)
    pair.again(pair.done)
    pair.train([rows_of(1, 2)])
    pair.assert_same()


# Slots


def test_the_row_wanted_longest_ago_makes_room(pair: Pair) -> None:
    for number in (0, 1, 2, 3, 0, 4):  # 1 leaves
        pair.brought(rows_of(number))
    assert pair.brought(rows_of(0, 2, 3, 4)) == 0
    assert pair.brought(rows_of(1)) == 1


def test_a_row_that_is_wanted_now_stays_however_old(pair: Pair) -> None:
    for number in (0, 1, 2, 3):
        pair.brought(rows_of(number))
    assert pair.brought(rows_of(0, 5)) == 1  # 1 leaves, not 0
    assert pair.brought(rows_of(0, 2, 3, 5)) == 0


def test_a_batch_may_want_as_many_rows_as_there_are_slots(pair: Pair) -> None:
    pair.train([rows_of(0, 1, 2, 3), rows_of(4, 5, 6, 7), rows_of(3, 4, 5, 8)])
    pair.assert_same()


def test_too_few_slots_are_told_and_the_rows_before_stay(pair: Pair) -> None:
    pair.train([rows_of(1, 2)])
    pair.ours.fetch_ahead(rows_of(1, 2, 3, 4, 5), pair.done)
    with pytest.raises(SettingError, match="hot_rows is 4, and a batch has 5 different values"):
        pair.ours.swap_in()
    assert pair.brought(rows_of(1, 2)) == 0
    pair.step(rows_of(1, 2))
    pair.assert_same()


def test_a_row_wanted_several_times_comes_once(pair: Pair) -> None:
    assert pair.brought(rows_of(7, 7, 8, 7)) == 2
    assert pair.ours.wanted_rows == 2
    slots = pair.ours.places(rows_of(7, 7, 8, 7)).tolist()
    assert slots[0] == slots[1] == slots[3] != slots[2]
    pair.step(rows_of(7, 7, 8, 7))
    pair.assert_same()


def test_a_batch_may_want_nothing(pair: Pair) -> None:
    pair.train([rows_of(1), rows_of(), rows_of(1)])
    pair.assert_same()


def test_rows_that_are_there_do_not_come_again(pair: Pair) -> None:
    assert pair.brought(rows_of(1, 2)) == 2
    assert pair.brought(rows_of(1, 2)) == 0


def test_without_a_fetch_nothing_is_swapped(pair: Pair) -> None:
    pair.ours.swap_in()
    pair.brought(rows_of(1))
    pair.ours.swap_in()
    assert pair.ours.brought_rows == 1


def test_of_two_fetches_the_later_one_counts(pair: Pair) -> None:
    pair.ours.fetch_ahead(rows_of(1, 2), 0)
    pair.ours.fetch_ahead(rows_of(3), 0)
    pair.ours.swap_in()
    pair.step(rows_of(3))
    with pytest.raises(ValueError, match="in no slot"):
        pair.ours.places(rows_of(1))
    pair.assert_same()


# What goes wrong


@pytest.mark.parametrize("row", [-1, 20])
def test_a_row_that_the_table_has_not_is_told_to_the_caller(pair: Pair, row: int) -> None:
    pair.ours.fetch_ahead(rows_of(3, row), 0)
    with pytest.raises(IndexError, match=r"the table has 0 … 19"):
        pair.ours.swap_in()


def test_what_fails_in_the_thread_fails_for_the_caller(pair: Pair) -> None:
    def fail(step: int) -> float:
        raise ZeroDivisionError(f"no rate of step {step}")

    host = HostRows(torch.zeros(5, 2), 2, pair.settings, fail, CPU)
    host.fetch_ahead(rows_of(1), 1)
    with pytest.raises(ZeroDivisionError, match="no rate of step 1"):
        host.swap_in()
    host.close()


def test_steps_are_not_taken_back(pair: Pair) -> None:
    pair.ours.fetch_ahead(rows_of(1), 3)
    with pytest.raises(ValueError, match="up to 3 have been counted, not just 2"):
        pair.ours.settle(2)


def test_all_is_caught_up_piece_by_piece(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trialfleet.nodes.tabular.sharded.host_rows._PIECE", 7)
    pair.train([rows_of(first, first + 1) for first in range(19)])
    pair.assert_same()


# Any order of things

BATCH = st.lists(st.integers(0, 7), max_size=3)
THING = st.one_of(BATCH, st.sampled_from(["settle", "load"]))


@pytest.mark.slow
@effort(max_examples=60)
@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    slots=st.integers(3, 8),
    begin=st.sampled_from([0, 995, 5000]),
    things=st.lists(THING, max_size=25),
)
def test_whatever_is_wanted_the_table_is_that_of_the_dense_optimiser(
    name: str, slots: int, begin: int, things: list[list[int] | str]
) -> None:
    pair = Pair(rows=8, slots=slots, steps=begin + 30, e=2, **OPTIMIZERS[name])
    pair.again(begin)
    for thing in things:
        if thing == "settle":
            pair.assert_same()
        elif thing == "load":
            pair.assert_same()
            pair.load(pair.ours.table, pair.ours.m, pair.ours.v)
        else:
            pair.train([rows_of(*thing)])
    pair.assert_same()
