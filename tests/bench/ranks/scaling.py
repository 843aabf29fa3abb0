"""Predictions of the model of compute and link (`step_model`), compared with real ranks.

One rank is measured: a step with a batch and with a quarter of it, which separates the compute from
the overhead. Two ranks are measured: a small and a large sum by gloo on loopback. From these
figures alone the model predicts the step of two ranks and of four, which are then measured.

Ranks on one machine share its cores, unlike ranks on several machines. If there are more ranks than
cores, the predicted compute is longer in proportion. Everything is measured in several rounds. Of
each figure's lower quartiles the least counts, because other programs can make steps longer, but
not shorter.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bench.ranks.sandboxes import row, trained
from tests.bench.ranks.step_model import Link, Step, summed
from trialfleet.nodes.tabular import table

TIMED = Path(__file__).with_name("timed.py")
LINKED = Path(__file__).with_name("linked.py")
COLUMNS, ROWS = 32, 40_000
WARM_UP = 5  # steps
NETWORKS = [(128, 512), (1024, 1024)]  # width of the layers, batch
LAYERS = 2
CORES = os.cpu_count() or 1
PART = 4  # the smaller batch is a quarter


Key = tuple[int, int, int]  # hidden, batch, ranks


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    wanted = [key for network in NETWORKS for key in keys_of(network, given.ranks)]
    links, seconds = [], dict.fromkeys(wanted, math.inf)
    with tempfile.TemporaryDirectory(prefix="trialfleet-scaling-") as place:
        path = Path(place, "rows.npz")
        write_rows(path)
        for _ in range(given.rounds):
            links.append(measure_sums(path))
            for key in wanted:
                seconds[key] = min(seconds[key], step_of(path, *key))
    link = link_of({size: min(each[size] for each in links) for size in links[0]})
    print(f"{link.bandwidth / 1e9:.2f} GB/s, {1e6 * link.latency:.0f} µs a message; {CORES} cores")
    print(_row("width, batch", "ranks", "compute", "overhead", "predicted", "measured", "ratio"))
    for hidden, batch in NETWORKS:
        step = step_by(hidden, batch, seconds)
        for ranks in given.ranks:
            expected, found = predicted(step, ranks, link), seconds[hidden, batch, ranks]
            times = [f"{1000 * x:.2f} ms" for x in (step.compute, step.overhead, expected, found)]
            print(_row(f"{hidden}, {batch}", str(ranks), *times, f"{found / expected:.2f}"))


def predicted(step: Step, ranks: int, link: Link) -> float:
    """Return the predicted seconds of a step, also for more ranks than cores."""
    crowd = max(1.0, ranks / CORES)
    return step.seconds(ranks, link) + (crowd - 1) * (step.overhead + step.compute / ranks)


def keys_of(network: tuple[int, int], ranks: Sequence[int]) -> list[Key]:
    """Return the measurements that a network needs."""
    hidden, batch = network
    return [(hidden, batch, 1), (hidden, batch // PART, 1), *((hidden, batch, n) for n in ranks)]


def step_by(hidden: int, batch: int, seconds: dict[Key, float]) -> Step:
    """Return a network's step from one rank's seconds for a batch and for a part of it."""
    whole, part = seconds[hidden, batch, 1], seconds[hidden, batch // PART, 1]
    compute = min(whole, (whole - part) * PART / (PART - 1))
    weights = (COLUMNS + 1 + (LAYERS - 1) * (hidden + 1)) * hidden + hidden + 1
    traffic = summed(4 * weights)  # float32
    return Step(rows=batch, compute=compute, overhead=whole - compute, traffic=traffic)


def write_rows(path: Path) -> None:
    """Write a table of random numbers; nearly all rows are for training."""
    random = np.random.default_rng(0)
    numbers = {f"x{i}": random.normal(size=ROWS) for i in range(COLUMNS)}
    split = np.full(ROWS, table.TRAIN)
    split[-200:] = np.arange(200) % 2 + 1
    columns = {"y": numbers["x0"] > 0, **numbers}
    table.write_table(path, columns, target="y", task="classification", split=split, categorical=[])


def measure_sums(path: Path) -> dict[int, float]:
    """Return the seconds in which two ranks sum arrays, by the arrays' bytes."""
    with trained(2, path, {}, LINKED) as (folder, _):
        linked = json.loads((folder / "linked.json").read_text())
    return {int(size): quartile(times) for size, times in linked.items()}


def link_of(sums: dict[int, float]) -> Link:
    """Return the link of two ranks by loopback: each sends a sum's bytes, in two messages."""
    (small, short), (large, long) = sorted(sums.items())
    return Link(bandwidth=(large - small) / (long - short), latency=short / 2)


def step_of(path: Path, hidden: int, batch: int, ranks: int) -> float:
    """Return the seconds of a step, measured in the first rank."""
    params = {"hidden": hidden, "layers": LAYERS, "batch_size": batch, "epochs": 1}
    with trained(ranks, path, params, TIMED) as (folder, *_):
        return quartile(json.loads((folder / "timed.json").read_text())[WARM_UP:])


def quartile(times: Sequence[float]) -> float:
    """Return the lower quartile."""
    return statistics.quantiles(times, n=4)[0]


def _row(*cells: str) -> str:
    return row(*cells, width=14, first=18)


if __name__ == "__main__":
    main()
