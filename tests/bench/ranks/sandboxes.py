"""The ranks of a gang (a training over several jobs) on this machine, each in a sandbox."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import gang_rank
from tests.unit.tabular.small_trials import copy_trainer


@contextmanager
def trained(
    ranks: int, table: Path, params: Mapping[str, Any], program: Path, seed: int = 0
) -> Iterator[list[Path]]:
    """Train with `ranks` processes; yield their sandboxes, or exit with their output on failure.

    Args:
        ranks: number of processes.
        table: the region's.
        params: the trainer's settings.
        program: runs the trainer.
        seed: of the trial.
    """
    with tempfile.TemporaryDirectory(prefix="trialfleet-ranks-") as place:
        yield _trained_in(Path(place), ranks, table, params, program, seed)


def _trained_in(
    place: Path, ranks: int, table: Path, params: Mapping[str, Any], program: Path, seed: int
) -> list[Path]:
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


def row(*cells: str, width: int, first: int | None = None) -> str:
    """Return cells aligned right in columns; with `first`, the first cell is aligned left."""
    if first is None:
        return "".join(f"{cell:>{width}}" for cell in cells)
    return f"{cells[0]:<{first}}" + row(*cells[1:], width=width)
