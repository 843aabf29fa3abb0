"""What a table in main memory costs, by how many rows have a slot: `make bench-host-rows`.

On a CPU, where slots are memory as the table's is: the shares and bytes are those of a GPU, the
times are not. A step is a batch's embeddings, their gradients and AdamW; "whole" is the dense
optimiser over the whole table. All are timed in one process, one after the other. The steps are
numbered from 10,000 on, as in the middle of a training, and slots have been filled by batches
before. Zipf: code number i, from 1, is drawn in proportion to 1 / i^1.1, and codes lie in the table
in random order. "hot": of a batch's different rows, how many were in slots.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.bench.ranks.sandboxes import row
from trialfleet.nodes.tabular.optimizers import Optimizer
from trialfleet.nodes.tabular.settings import Settings
from trialfleet.nodes.tabular.sharded.host_rows import HostRows

BATCH, COLUMNS, NUMBERS, EXPONENT, BEGIN = 4096, 4, 16, 1.1, 10_000
FILLING = 150  # batches whose rows are in slots, or were, before anything is timed
CHOSEN = Settings(learning_rate=1e-3, weight_decay=0.01)
CPU = torch.device("cpu")


def main() -> None:
    """Train each way, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--slots", type=int, nargs="+", default=[20_000, 100_000, 400_000])
    parser.add_argument("--steps", type=int, default=20, help="of each way")
    given = parser.parse_args()
    torch.set_num_threads(1)
    whole = given.rows * NUMBERS * 12
    print(f"{given.rows:,} rows x {NUMBERS}: weights and means are {whole / 1e6:.0f} MB")
    print(f"batch {BATCH} x {COLUMNS}; Zipf's exponent {EXPONENT}; ms of a step: median")
    print(_row("draw", "slots", "slots' MB", "hot", "MB brought", "ahead", "not ahead", "/ whole"))
    for draw in ("zipf", "uniform"):
        batches = drawn(draw, given.rows, FILLING + 2 * given.steps)
        dense = Dense(given.rows)
        alone = timed(dense.step, batches[: max(4, given.steps // 2)])
        del dense
        print(_row(draw, "whole", f"{whole / 1e6:.0f}", "-", "-", f"{alone:.0f}", "-", "1.00"))
        for slots in given.slots:
            measure(draw, batches, given.rows, slots, alone)


class Dense:
    """The whole table in the hands of the dense optimiser."""

    def __init__(self, rows: int) -> None:
        holder = nn.Module()
        self.weight = holder.weight = nn.Parameter(torch.zeros(rows, NUMBERS))
        self.optimizer = Optimizer(holder, CHOSEN)
        self.optimizer.steps = BEGIN

    def step(self, wanted: Tensor) -> None:
        move(self.optimizer, self.weight, wanted)


def move(optimizer: Optimizer, weight: Tensor, places: Tensor) -> None:
    """Take a step, whose gradients are as large as those of a mean over the batch."""
    optimizer.clear()
    rows = functional.embedding(places, weight)
    (rows * torch.randn_like(rows)).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step(CHOSEN.learning_rate)


def measure(draw: str, batches: list[Tensor], rows: int, slots: int, alone: float) -> None:
    """Train with so many slots, with and without fetching ahead, and print a row."""
    host = HostRows(torch.randn(rows, NUMBERS), slots, CHOSEN, lambda _: CHOSEN.learning_rate, CPU)
    holder = nn.Module()
    holder.weight = host.moved
    optimizer = Optimizer(holder, CHOSEN)
    optimizer.steps = BEGIN
    host.bind(optimizer.m[0], optimizer.v[0])
    host.load_means(torch.zeros_like(host.m), torch.zeros_like(host.v), BEGIN)

    def swap(wanted: Tensor) -> None:
        host.fetch_ahead(wanted, optimizer.steps)
        host.swap_in()

    def late(wanted: Tensor) -> None:
        swap(wanted)
        move(optimizer, host.moved, host.places(wanted))

    for wanted in batches[:FILLING]:
        swap(wanted)
    steps = (len(batches) - FILLING) // 2
    without = timed(late, batches[FILLING:][:steps])
    coming = batches[FILLING + steps :]
    following = iter(coming)

    def ahead(wanted: Tensor) -> None:
        then = next(following, None)
        if then is not None:
            host.fetch_ahead(then, optimizer.steps + 1)
        move(optimizer, host.moved, host.places(wanted))
        host.swap_in()

    host.wanted_rows = host.brought_rows = 0
    swap(next(following))
    with_ahead = timed(ahead, coming)
    wanted_rows, brought = host.wanted_rows, host.brought_rows
    host.close()
    size = NUMBERS * 12
    print(
        _row(
            draw,
            f"{slots:,}",
            f"{slots * size / 1e6:.0f}",
            f"{1 - brought / wanted_rows:.0%}",
            f"{brought * size / steps / 1e6:.2f}",
            f"{with_ahead:.0f}",
            f"{without:.0f}",
            f"{with_ahead / alone:.2f}",
        ),
        flush=True,
    )


def drawn(draw: str, rows: int, steps: int) -> list[Tensor]:
    """Return batches of codes [b * columns]."""
    random = np.random.default_rng(0)
    size = steps, BATCH * COLUMNS
    if draw == "uniform":
        codes = random.integers(0, rows, size)
    else:
        shares = np.cumsum(np.arange(1, rows + 1) ** -EXPONENT)
        codes = random.permutation(rows)[np.searchsorted(shares, random.random(size) * shares[-1])]
    return list(torch.from_numpy(codes))


def timed(step: Callable[[Tensor], None], batches: list[Tensor]) -> float:
    """Return a step's milliseconds, the median's."""
    times = []
    for wanted in batches:
        begin = time.perf_counter()
        step(wanted)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def _row(*cells: str) -> str:
    return row(*cells, width=12)


if __name__ == "__main__":
    main()
