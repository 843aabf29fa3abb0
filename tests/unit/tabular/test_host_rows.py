"""Rows kept in main memory, compared with a complete table that the dense optimiser updates."""

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
from trialfleet.nodes.tabular.settings import Settings
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
    """The same steps with the whole table, and with a batch's rows of it."""

    def __init__(self, rows: int, steps: int = 400, e: int = 3, **chosen: Any) -> None:
        self.settings = Settings(**chosen)
        self.random = torch.Generator().manual_seed(rows)
        table = torch.randn(rows, e, generator=self.random)
        self.rate_at = cosine(self.settings, steps)
        self.whole = nn.Parameter(table.clone())
        self.dense = Optimizer(holder_of(self.whole), self.settings)
        self.e, self.done = e, 0
        self.ours = self.host(table)

    def host(self, table: Tensor) -> HostRows:
        host = HostRows(table, self.settings, self.rate_at, CPU)
        self.sparse = Optimizer(holder_of(host.moved), self.settings)
        self.sparse.steps = self.done
        host.bind(self.sparse.m[0], self.sparse.v[0])
        return host

    def again(self, done: int) -> None:
        """Record this number of steps, which did not move the table."""
        self.done = self.dense.steps = self.sparse.steps = done
        table = self.whole.detach()
        self.load(table, self.dense.m[0], self.dense.v[0])

    def load(self, table: Tensor, m: Tensor, v: Tensor) -> None:
        self.ours.load(table)
        self.ours.load_means(m, v, self.done)

    def train(self, batches: Sequence[Tensor], scale: float = 1.0) -> None:
        for wanted in batches:
            self.step(wanted, scale)

    def step(self, wanted: Tensor, scale: float = 1.0) -> None:
        """Take a step; its loss is linear in the rows, with other factors in each step."""
        factors = torch.randn(len(wanted), self.e, generator=self.random) * scale
        self.done += 1
        for optimizer, weight, places in (
            (self.dense, self.whole, wanted),
            (self.sparse, self.ours.moved, self.ours.bring(wanted)),
        ):
            weight.grad = None
            loss = (functional.embedding(places, weight) * factors).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(self.rate_at(self.done))
        self.ours.put_back()

    def assert_same(self) -> None:
        self.ours.settle()
        (m,), (v,) = self.dense.m, self.dense.v
        # The dense optimiser's own rounding over hundreds of steps differs from float64 as much.
        assert_near(self.ours.table, self.whole.detach(), rtol=1e-5, atol=1e-5)
        assert_near(self.ours.m, m, rtol=1e-4, atol=float(m.abs().max()) * 1e-6)
        assert_near(self.ours.v, v, rtol=1e-4, atol=float(v.abs().max()) * 1e-6)
        assert (self.ours.caught_up == self.done).all()


def assert_near(ours: Tensor, theirs: Tensor, *, rtol: float, atol: float) -> None:
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
    return Pair(rows=20, **OPTIMIZERS["adamw"])


# The whole table


# one by one, both ways, by the series; roots far above ε, and about as large
BEGINNINGS = [(0, 1.0), (900, 1e-7), (20_000, 1.0), (20_000, 1e-7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "begin", "scale"),
    [
        pytest.param(name, *beginning, marks=() if (i + j) % 3 == 0 else pytest.mark.thorough)
        for i, name in enumerate(OPTIMIZERS)
        for j, beginning in enumerate(BEGINNINGS)
    ],
)
def test_after_hundreds_of_steps_the_table_is_that_of_the_dense_optimiser(
    name: str, begin: int, scale: float
) -> None:
    pair = Pair(rows=300, steps=begin + 700, **OPTIMIZERS[name])
    pair.again(begin)
    pair.train(draws(40, 290, 8), scale)
    pair.train(draws(260, 12, 8, seed=1), scale)  # others miss more than J steps
    pair.train(draws(40, 290, 8, seed=2), scale)
    pair.assert_same()


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_settling_and_loading_between_steps_do_not_change_the_table(name: str) -> None:
    pair = Pair(rows=100, **OPTIMIZERS[name])
    pair.train(draws(60, 100, 6))
    pair.assert_same()
    pair.train(draws(60, 100, 6, seed=1))
    pair.assert_same()
    previous = pair.ours
    pair.ours = pair.host(torch.zeros_like(previous.table))
    pair.load(previous.table, previous.m, previous.v)
    pair.train(draws(60, 100, 6, seed=2))
    pair.assert_same()


@pytest.mark.slow
def test_decay_below_the_range_of_float64_is_that_of_the_dense_optimiser() -> None:
    pair = Pair(rows=20, steps=10**9, **{**OPTIMIZERS["sgd"], "weight_decay": 25.0})
    pair.train([rows_of(2)])
    pair.train([rows_of(1)] * 1200)  # halves 1200 times
    pair.train([rows_of(3)])
    pair.train([rows_of(1)])
    pair.assert_same()
    assert pair.ours.table.isfinite().all()


def test_decay_that_changes_signs_is_that_of_the_dense_optimiser() -> None:
    chosen = {**OPTIMIZERS["sgd"], "weight_decay": 60.0}  # times -0.2
    pair = Pair(rows=20, **chosen)
    pair.train([rows_of(2), rows_of(1), rows_of(1), rows_of(1)])
    pair.assert_same()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_never_wanted_only_decays(name: str) -> None:
    pair = Pair(rows=20, **OPTIMIZERS[name])
    before = pair.ours.table.clone()
    pair.train([rows_of(1, 2), rows_of(3), rows_of(1)])
    pair.assert_same()
    share = 1.0
    for step in (1, 2, 3):
        share *= 1 - pair.rate_at(step) * pair.settings.weight_decay
    assert_near(pair.ours.table[5:], before[5:] * share, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("ratio", [7.3, 1.0])
@pytest.mark.parametrize("root", [1e-3, 1e-8, 1e-10])  # compared with ε
def test_the_series_is_the_steps_one_by_one(root: float, ratio: float) -> None:
    rate, begin, steps = 1.0, 1000, 400
    missed = MissedSteps(Settings(), lambda _: rate)
    missed.begin(begin)
    for _ in range(steps):
        missed.count()
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


def test_loading_replaces_the_previous_rows(pair: Pair) -> None:
    pair.train([rows_of(1, 2)])
    with torch.no_grad():
        pair.whole.add_(1.0)
    pair.again(pair.done)
    pair.train([rows_of(1, 2)])
    pair.assert_same()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["adamw, decay", "sgd, 0.999"]
    + [
        pytest.param(name, marks=pytest.mark.thorough)
        for name in ("adamw", "sgd", "sgd, 0.9999", "sgd, no momentum")
    ],
)
def test_rows_that_miss_a_thousand_steps_are_those_of_the_dense_optimiser(name: str) -> None:
    pair = Pair(rows=30, steps=2000, **OPTIMIZERS[name])
    pair.train(draws(20, 30, 6))
    pair.train([rows_of(1, 2)] * 1100)
    pair.train([rows_of(5), rows_of(1, 5, 6)])  # after 1100, and by the series after one
    pair.train([rows_of(2)] * 400)
    pair.train(draws(20, 30, 6, seed=1))
    pair.assert_same()


def test_a_row_wanted_several_times_comes_once(pair: Pair) -> None:
    places = pair.ours.bring(rows_of(7, 7, 8, 7)).tolist()
    assert places[0] == places[1] == places[3] != places[2]
    assert len(pair.ours.moved) == 2
    pair.train([rows_of(7, 7, 8, 7), rows_of(8, 7, 8)])
    pair.assert_same()


def test_a_batch_may_want_nothing(pair: Pair) -> None:
    pair.train([rows_of(1), rows_of(), rows_of(1)])
    pair.assert_same()


def test_a_rank_may_have_no_rows() -> None:
    pair = Pair(rows=0, **OPTIMIZERS["adamw"])
    pair.train([rows_of(), rows_of()])
    assert pair.ours.settle().shape == (0, 3)


@pytest.mark.parametrize("row", [-1, 20])
def test_a_row_that_the_table_has_not_is_an_error(pair: Pair, row: int) -> None:
    with pytest.raises(IndexError):
        pair.ours.bring(rows_of(3, row))


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
    begin=st.sampled_from([0, 995, 5000]),
    things=st.lists(THING, max_size=25),
)
def test_any_order_of_batches_gives_the_table_of_the_dense_optimiser(
    name: str, begin: int, things: list[list[int] | str]
) -> None:
    pair = Pair(rows=8, steps=begin + 30, e=2, **OPTIMIZERS[name])
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
