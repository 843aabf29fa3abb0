"""The ranks of a gang on this machine, each in a sandbox of its own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import gang_rank
from tests.unit.tabular.small_trials import copy_trainer


def trained_in(
    place: Path, ranks: int, table: Path, params: Mapping[str, Any], program: Path, seed: int = 0
) -> list[Path]:
    """Train by so many processes; return their sandboxes, or leave with what they said.

    Args:
        place: an empty folder, for the sandboxes.
        ranks: how many.
        table: the region's.
        params: the trainer's settings.
        program: that runs the trainer.
        seed: of the trial.
    """
    order = {
        "mode": "tune",
        "seed": seed,
        "params": params,
        "objective": {"metric": "val_loss", "direction": "minimize"},
        "data": [str(table)],
        "accelerator": "cpu",
    }
    folders = [place / str(rank) for rank in range(ranks)]
    for folder in folders:
        folder.mkdir()
        copy_trainer(folder, kernels=True)
        shutil.copy(program, folder)
        (folder / "checkpoint").mkdir()
        (folder / "trial.json").write_text(json.dumps(order))
    processes = gang_rank.start(folders, program.name)
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("\n".join((folder / "err").read_text() for folder in folders))
    return folders
