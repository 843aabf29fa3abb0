"""Accuracy against bytes sent: one airport's flights, trained by several ranks in several ways.

Ranks are processes with gloo on this machine, like those of a gang (a training over several jobs).
Each way has the same rows, seed, settings and epochs. Counted are the bytes that each rank passes
to all_reduce, the number of calls, and the share of the time in them. In a ring of n ranks, 2 (n -
1) / n times these bytes are sent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.ranks.sandboxes import row, trained

FLIGHTS = Path(__file__).parents[3] / "workflows" / "examples" / "flights"
PROGRAM = Path(__file__).with_name("counted.py")
SETTINGS: dict[str, Any] = {"batch_size": 512, "hidden": 128, "layers": 2, "dropout": 0.1}
TOGETHER: dict[str, Any] = {"local_steps": 1}
DILOCO = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
WAYS: dict[str, dict[str, Any]] = {
    "each step": TOGETHER,
    "each step, bfloat16": {"wire": "bfloat16"},
    "4 local, mean": {"local_steps": 4},
    "16 local, mean": {"local_steps": 16},
    "64 local, mean": {"local_steps": 64},
    "16 local, DiLoCo": {"local_steps": 16, **DILOCO},
    "64 local, DiLoCo": {"local_steps": 64, **DILOCO},
    "64 local, momentum 0.5": {
        "local_steps": 64,
        "outer_learning_rate": 0.7,
        "outer_momentum": 0.5,
    },
}


@dataclass(frozen=True)
class Outcome:
    """The results of a training.

    Attributes:
        way: name of the way to train.
        ranks: number of ranks.
        val_loss: of the final model.
        test_auc: of the final model.
        megabytes: passed to all_reduce by each rank.
        sums: calls of all_reduce.
        waiting: share of rank 0's training time in these calls.
    """

    way: str
    ranks: int
    val_loss: float
    test_auc: float
    megabytes: float
    sums: int
    waiting: float


def main() -> None:
    """Train each way, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--region", default="JFK")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    given = parser.parse_args()
    subprocess.run([sys.executable, str(FLIGHTS / "prepare.py")], check=True)
    table = FLIGHTS / "data" / f"{given.region}.npz"
    outcomes: list[Outcome] = []
    print(_row("way", "ranks", "val loss", "test AUC", "MB a rank", "sums", "waiting"))
    for ranks in [1, *given.ranks]:
        for way in given.ways if ranks > 1 else ["each step"]:
            params = {**SETTINGS, "epochs": given.epochs, "patience": given.epochs, **WAYS[way]}
            found = [outcome_of(way, ranks, table, params, seed) for seed in range(given.seeds)]
            outcomes += found
            print(_row(*_means(found)), flush=True)
    if given.out:
        given.out.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")


def _row(*cells: str) -> str:
    return row(*cells, width=12, first=24)


def _means(found: list[Outcome]) -> list[str]:
    def mean(name: str) -> float:
        return float(statistics.mean(getattr(each, name) for each in found))

    first = found[0]
    figures = [f"{mean('val_loss'):.4f}", f"{mean('test_auc'):.4f}", f"{mean('megabytes'):.1f}"]
    return [first.way, str(first.ranks), *figures, str(first.sums), f"{mean('waiting'):.0%}"]


def outcome_of(way: str, ranks: int, table: Path, params: Mapping[str, Any], seed: int) -> Outcome:
    """Train with `ranks` processes, in temporary folders."""
    with trained(ranks, table, params, PROGRAM, seed) as (first, *_):
        metrics = json.loads((first / "result.json").read_text())["metrics"]
        counted = json.loads((first / "counted.json").read_text())
    return Outcome(
        way,
        ranks,
        metrics["val_loss"],
        metrics["test_auc"],
        counted["bytes"] / 1e6,
        counted["sums"],
        counted["seconds"] / counted["training_seconds"],
    )


if __name__ == "__main__":
    main()
