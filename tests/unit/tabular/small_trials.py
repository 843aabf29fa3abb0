"""Small trials for the reference trainer: a table, a sandbox, an order, and their results."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trialfleet import nodes
from trialfleet.nodes import tabular
from trialfleet.nodes.tabular import dataset, settings, table, train
from trialfleet.nodes.tabular.steps import Steps

ROWS = 600


def make_table(
    path: Path,
    task: str = "binary",
    rows: int = ROWS,
    without: tuple[str, ...] = (),
    kinds: int = 3,
) -> None:
    """Write a table in which number and kind decide: learnable in a few steps."""
    random = np.random.default_rng(0)
    number = random.normal(5, 3, rows)
    kind = random.choice(["a", "b", "c", *(f"c{number}" for number in range(3, kinds))], rows)
    score = (number - 5) / 3 + 2 * (kind == "b") + 0.3 * random.normal(size=rows)
    targets: dict[str, Any] = {
        "binary": score > 0.5,
        "multiclass": np.digitize(score, [-0.5, 1.0]),
        "regression": 100 + 50 * score,
    }
    number[:5] = np.nan
    columns = {"y": targets[task], "number": number, "constant": np.ones(rows), "kind": kind}
    table.write_table(
        path,
        {name: values for name, values in columns.items() if name not in without},
        target="y",
        task="regression" if task == "regression" else "classification",
        split=np.arange(rows) % 3,
        categorical=[] if "kind" in without else ["kind"],
    )


def make_sandbox(folder: Path, task: str = "binary", *, kernels: bool = False) -> Path:
    """Return a trial's folder with all that travels: the trainer's files and the region's table."""
    folder.mkdir()
    copy_trainer(folder, kernels=kernels)
    (folder / "checkpoint").mkdir()
    make_table(folder / "r.npz", task)
    return folder


def copy_trainer(folder: Path, *, kernels: bool) -> None:
    """Copy the trainer's files as they travel; the kernels only with trials for GPUs and gangs."""
    trainer = Path(train.__file__).parent
    for file in (trainer.parent / nodes.HELPER, *map(trainer.joinpath, tabular.FILES)):
        shutil.copy(file, folder)
    if kernels:
        left = shutil.ignore_patterns(*nodes.NOT_ON_NODES)
        for source in (trainer.parent / nodes.KERNELS, trainer / tabular.SHARDED):
            shutil.copytree(source, folder / source.name, ignore=left)


def write_order(folder: Path, **changes: Any) -> None:
    order = {
        "mode": "tune",
        "seed": 11,
        "params": {"epochs": 3, "batch_size": 32, "hidden": 16, "learning_rate": 0.01},
        "objective": {"metric": "val_auc", "direction": "maximize"},
        "data": ["r.npz"],
        "accelerator": "cpu",
    }
    order["params"] |= changes.pop("params", {})
    (folder / "trial.json").write_text(json.dumps(order | changes))


def start(folder: Path, program: str = "train.py") -> subprocess.Popen[str]:
    """Start the trainer as a node does: by its name, alone, without this package."""
    environment = {**os.environ, "TRIALFLEET_TRIAL": "trial.json", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, program], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )


def read_result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def run_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the trainer in this process, which saves the import of torch; return its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TRIALFLEET_TRIAL", raising=False)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            train.main()
    finally:
        signal.signal(signal.SIGTERM, previous)
    code = left.value.code
    return code if isinstance(code, int) else 1


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(folder / "model/weights.pt")
    return loaded


def progress(folder: Path) -> list[Any]:
    lines = (folder / "progress.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def losses_of(steps: Steps, data: dataset.Dataset, chosen: settings.Settings) -> Tensor:
    """Take all steps; return the loss of each."""
    losses = []
    for epoch in range(chosen.epochs):
        steps.begin(epoch, 0, 0.0)
        sums = [0.0]
        for _ in range(0, len(data.train), chosen.batch_size):
            steps.take()
            sums.append(steps.loss_sum())
        losses += [after - before for before, after in itertools.pairwise(sums)]
    return torch.tensor(losses)
