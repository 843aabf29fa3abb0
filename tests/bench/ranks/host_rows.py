"""Time a step with only a batch's embeddings on the device, against the whole table there.

`make bench-host-rows`. On a CPU both are in the same memory: the bytes are those of a GPU, the
times are not. "whole" is the dense optimiser over the whole table. Both take the same batches in
one process, one after the other. Steps are numbered from 10,000, as in the middle of a training,
and some batches come before the measurement. Zipf: code number i, from 1, is drawn in proportion to
1 / i^1.1, and codes are in random order in the table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from tests.bench.ranks.sandboxes import row
from trialfleet.nodes.tabular.optimizers import Optimizer
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.settings import Settings
from trialfleet.nodes.tabular.sharded.embedding import ShardedEmbedding
from trialfleet.nodes.tabular.sharded.host_rows import HostRows

BATCH, COLUMNS, NUMBERS, EXPONENT, BEGIN = 4096, 4, 16, 1.1, 10_000
BEFORE = 150  # batches, until anything is timed: rows have missed fewer or more steps
CHOSEN = Settings(learning_rate=1e-3, weight_decay=0.01)
CPU = torch.device("cpu")


def main() -> None:
    """Train each way, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=40, help="of each way")
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = NUMBERS * 12
    print(
        f"{given.rows:,} rows x {NUMBERS}: weights and means are {given.rows * size / 1e6:.0f} MB"
    )
    print(f"batch {BATCH} x {COLUMNS}; Zipf's exponent {EXPONENT}; ms of a step: median")
    print(_row("draw", "whole, ms", "rows", "MB brought", "ms", "/ whole"))
    for draw in ("zipf", "uniform"):
        batches = drawn(draw, given.rows, BEFORE + given.steps)
        timed = batches[BEFORE:]
        dense = Dense(given.rows)
        whole = median_of(dense.step, timed[: max(4, given.steps // 4)])
        del dense
        host = InMainMemory(given.rows)
        for wanted in batches[:BEFORE]:
            host.step(wanted, factors())
        ours = median_of(host.step, timed)
        rows = statistics.mean(len(torch.unique(wanted)) for wanted in timed)
        cells = f"{whole:.0f}", f"{rows:,.0f}", f"{rows * size / 1e6:.2f}", f"{ours:.1f}"
        print(_row(draw, *cells, f"{ours / whole:.3f}"), flush=True)


class Dense:
    """The dense optimiser over the whole table."""

    def __init__(self, rows: int) -> None:
        holder = nn.Module()
        self.weight = holder.weight = nn.Parameter(torch.zeros(rows, NUMBERS))
        self.optimizer = Optimizer(holder, CHOSEN)
        self.optimizer.steps = BEGIN

    def step(self, wanted: Tensor, factors: Tensor) -> None:
        """Take a step."""
        move(self.optimizer, self.weight.index_select(0, wanted), factors)


class InMainMemory:
    """The dense optimiser over a batch's rows; the others are in main memory."""

    def __init__(self, rows: int) -> None:
        rate = CHOSEN.learning_rate
        self.rows = HostRows(torch.randn(rows, NUMBERS), CHOSEN, lambda _: rate, CPU)
        self.embedding = ShardedEmbedding(self.rows, Ranks())
        self.optimizer = Optimizer(self.embedding, CHOSEN)
        self.optimizer.steps = BEGIN
        self.rows.bind(self.optimizer.m[0], self.optimizer.v[0])
        self.rows.load_means(torch.zeros(rows, NUMBERS), torch.zeros(rows, NUMBERS), BEGIN)

    def step(self, wanted: Tensor, factors: Tensor) -> None:
        """Take a step."""
        move(
            self.optimizer,
            self.embedding.lookup_with_gradient(self.embedding.route(wanted)),
            factors,
        )
        self.rows.put_back()


def move(optimizer: Optimizer, embedded: Tensor, factors: Tensor) -> None:
    """Take a step, whose gradients are as large as those of a mean over the batch."""
    for weight in optimizer.weights:
        weight.grad = None
    (embedded * factors).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step(CHOSEN.learning_rate)


def factors() -> Tensor:
    """Return the gradient of a batch's embeddings, different each time, [b * columns, e]."""
    return torch.randn(BATCH * COLUMNS, NUMBERS)


def drawn(draw: str, rows: int, steps: int) -> list[Tensor]:
    """Return batches of codes, [b * columns]."""
    random = np.random.default_rng(0)
    size = steps, BATCH * COLUMNS
    if draw == "uniform":
        codes = random.integers(0, rows, size)
    else:
        shares = np.cumsum(np.arange(1, rows + 1) ** -EXPONENT)
        codes = random.permutation(rows)[np.searchsorted(shares, random.random(size) * shares[-1])]
    return list(torch.from_numpy(codes))


def median_of(step: Callable[[Tensor, Tensor], None], batches: list[Tensor]) -> float:
    """Return the median milliseconds of a step."""
    times = []
    for wanted in batches:
        given = factors()
        begin = time.perf_counter()
        step(wanted, given)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def _row(*cells: str) -> str:
    return row(*cells, width=12)


if __name__ == "__main__":
    main()
