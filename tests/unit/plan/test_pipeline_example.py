"""The pipeline example: the ranks share its layers; their number does not change the training."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests import gang_rank
from trialfleet.nodes import trial
from trialfleet.workflows.examples import EXAMPLES

pytestmark = pytest.mark.thorough  # six imports of torch's pipelines

STEPS = 300


def sandboxes(place: Path, ranks: int) -> list[Path]:
    """Return the ranks' sandboxes, as a trial's job has one."""
    folders = [place / str(rank) for rank in range(ranks)]
    params = {"width": 8, "learning_rate": 0.01, "steps": STEPS, "checkpoint_seconds": 1e9}
    order = {"mode": "final", "seed": 3, "params": params, "data": ["north.csv"]}
    for folder in folders:
        for part in ("checkpoint", "model"):
            (folder / part).mkdir(parents=True)
        for file in (
            EXAMPLES["pipeline"] / "train.py",
            Path(trial.__file__),
            EXAMPLES["first"] / "points" / "north.csv",
        ):
            shutil.copy(file, folder)
        (folder / "trial.json").write_text(json.dumps(order))
    return folders


def trained(folders: list[Path]) -> dict[str, float]:
    """Train with this number of processes; return rank 0's report."""
    processes = gang_rank.start(folders)
    for process in processes:
        process.join(60)
    said = [(folder / "err").read_text() for folder in folders]
    assert [process.exitcode for process in processes] == [0] * len(folders), said
    metrics: dict[str, float] = json.loads((folders[0] / "result.json").read_text())["metrics"]
    return metrics


def test_an_interrupted_gang_continues_with_more_ranks_to_the_same_errors(
    tmp_path: Path,
) -> None:
    alone = trained(sandboxes(tmp_path / "1", 1))
    assert alone["test_error"] < 10
    two = sandboxes(tmp_path / "2", 2)
    first, second = gang_rank.start(two)
    while not (two[0] / "progress.jsonl").exists():
        assert first.is_alive(), (two[0] / "err").read_text()
        time.sleep(0.01)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGTERM)  # to rank 0 alone, as a gang's agent sends it
    first.join(60)
    assert first.exitcode == 85, (two[0] / "err").read_text()
    second.kill()  # by its agent
    three = sandboxes(tmp_path / "3", 3)
    for folder in three:
        shutil.copytree(two[0] / "checkpoint", folder / "checkpoint", dirs_exist_ok=True)
    assert trained(three) == pytest.approx(alone, rel=1e-9)
