"""Memory of a rank's model, whole and sharded: `make bench-ranks-memory`.

The table has many codes, so embeddings are nearly all of the model. A rank's "resident" is its
largest resident memory, from the creation of the network to the end of a training, less that
before. It includes weights, gradients, the optimiser's state, the best epoch's weights,
activations, and checkpoints if it saved any. "Held" are the weights, gradients and optimiser's
state that would be on its GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.ranks.sandboxes import row, trained
from trialfleet.nodes.tabular import table
from trialfleet.nodes.tabular.settings import STATE_BYTES

PROGRAM = Path(__file__).with_name("resident.py")
SETTINGS: dict[str, Any] = {"embedding": 64, "hidden": 16, "layers": 1, "batch_size": 4096}
WAYS: dict[str, dict[str, Any]] = {
    "data": {"parallel": "data"},
    "sharded": {"parallel": "sharded"},
    "embeddings": {"offload": "embeddings"},
    "all": {"offload": "all"},
}


def main() -> None:
    """Train each way without and with saving, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--codes", type=int, default=200_000)
    given = parser.parse_args()
    whole = given.codes * SETTINGS["embedding"] * STATE_BYTES
    print(f"{given.codes:,} codes: weights, gradients and means are {whole / 1e6:.0f} MB")
    print(_row("way", "ranks", "saved", "held, MB", "rank 0, MB", "others, MB"))
    with tempfile.TemporaryDirectory(prefix="trialfleet-memory-") as place:
        path = Path(place, "codes.npz")
        write_codes(path, given.codes)
        for ranks in given.ranks:
            for way, params in WAYS.items():
                for saves in (False, True):
                    first, *others = counted(path, ranks, params, saves=saves)
                    most = max((each["resident"] for each in others), default=0)
                    numbers = (f"{n / 1e6:.0f}" for n in (first["held"], first["resident"], most))
                    words = "each second" if saves else "never"
                    print(_row(way, str(ranks), words, *numbers), flush=True)


def write_codes(path: Path, codes: int) -> None:
    """Write a table in which every code is in one row to train on."""
    random = np.random.default_rng(0)
    known = random.permutation(codes)
    later = random.integers(0, codes, 2_000)
    code = np.concatenate([known, later])
    split = np.full(len(code), table.TRAIN)
    split[codes:] = np.arange(len(later)) % 2 + 1
    columns = {
        "y": random.random(len(code)) < 0.2 + 0.6 * (code % 2),
        "number": random.normal(size=len(code)),
        "code": code,
    }
    table.write_table(
        path, columns, target="y", task="classification", split=split, categorical=["code"]
    )


def counted(path: Path, ranks: int, way: Mapping[str, Any], *, saves: bool) -> list[dict[str, int]]:
    """Return the bytes of each rank, in order: "resident" and "held"."""
    params = {**SETTINGS, **way, "epochs": 1}
    params["checkpoint_seconds"] = 1.0 if saves else 1e9
    with trained(ranks, path, params, PROGRAM) as folders:
        return [json.loads((folder / "resident.json").read_text()) for folder in folders]


def _row(*cells: str) -> str:
    return row(*cells, width=16)


if __name__ == "__main__":
    main()
