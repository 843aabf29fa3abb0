"""Several ranks for one trial: two processes with gloo on a CPU stand for two GPUs with NCCL."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.unit.tabular.small_trials import (
    make_sandbox,
    progress,
    read_result,
    start,
    weights,
    write_order,
)

pytestmark = pytest.mark.slow

# The trainer itself, except for the device: in the launching process and in every rank.
ON_CPU = """\
import trial_imports
import torch
from trialfleet.nodes.tabular import graph_steps, loader, ranks, train

CPU = torch.device("cpu")


def steps_of(t, chosen, network, data, team, device):
    orders = loader.RowOrders(t.seed, len(data.train), chosen.batch_size, team)
    source = loader.ResidentLoader(data.train, orders)
    return graph_steps.GraphSteps(network, chosen, data.kind, source, seed=t.seed, team=team)


train.require_gpus = lambda t: None
train.choose_device = lambda t, team: CPU
train.build_steps = steps_of

ranks.run(train.main)
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = make_sandbox(tmp_path / "sandbox", kernels=True)
    (folder / "on_cpu.py").write_text(ON_CPU)
    return folder


def order(folder: Path, gpus: int = 2, mode: str = "final", **changes: Any) -> None:
    write_order(folder, accelerator="gpu", gpus=gpus, mode=mode, **changes)


def run(folder: Path, program: str = "on_cpu.py") -> tuple[int, str]:
    """Return the exit code and what was said."""
    trainer = start(folder, program)
    _, output = trainer.communicate(timeout=120)
    return trainer.returncode, output


def listening_addresses(pid: int) -> set[str]:
    """Return the addresses at which a process and its children listen."""
    processes = [(parent := psutil.Process(pid)), *parent.children(recursive=True)]
    connections = [found for process in processes for found in process.net_connections()]
    return {found.laddr.ip for found in connections if found.status == psutil.CONN_LISTEN}


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [199, 67])
def test_two_ranks_give_the_result_of_one(sandbox: Path, tmp_path: Path, batch: int) -> None:
    """Of 200 rows. One of the ranks has nothing of the tail; or as much of it as of a batch."""
    alone = shutil.copytree(sandbox, tmp_path / "alone")
    params = {"batch_size": batch, "epochs": 8}
    order(sandbox, params=params)
    order(alone, gpus=1, params=params)
    for folder in (sandbox, alone):
        code, output = run(folder)
        assert code == 0, output
    assert len(progress(sandbox)) == 8
    for ours, theirs in zip(progress(sandbox), progress(alone), strict=True):
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-5)
    ours, theirs = weights(sandbox), weights(alone)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_two_ranks_continue_after_sigterm_to_the_same_bits(sandbox: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(sandbox, tmp_path / "whole")
    for folder in (sandbox, whole):
        order(folder, params={"dropout": 0.3, "epochs": 30, "patience": 30})
    trainer = start(sandbox, "on_cpu.py")
    while not (sandbox / "progress.jsonl").exists() or len(progress(sandbox)) < 5:
        assert trainer.poll() is None, trainer.communicate()
        time.sleep(0.01)
    assert listening_addresses(trainer.pid) == {"127.0.0.1"}
    trainer.send_signal(signal.SIGTERM)
    _, output = trainer.communicate(timeout=60)
    assert trainer.returncode == 85, output
    assert 5 <= len(progress(sandbox)) < 30
    for folder in (sandbox, whole):
        code, output = run(folder)
        assert code == 0, output
    assert progress(sandbox) == progress(whole)
    assert read_result(sandbox)["metrics"] == read_result(whole)["metrics"]
    ours, theirs = weights(sandbox), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_fewer_rows_than_ranks_are_refused(sandbox: Path) -> None:
    order(sandbox, mode="tune", params={"tune_fraction": 0.005})
    code, output = run(sandbox)
    assert code == 64, output
    assert "1 training rows are too few for 2 ranks" in read_result(sandbox)["error"]


@pytest.mark.thorough
def test_two_ranks_in_bfloat16_give_nearly_the_metrics_of_one(
    sandbox: Path, tmp_path: Path
) -> None:
    """Weights of hidden layers in bfloat16, all else and the loss in float32."""
    in_bfloat16 = ON_CPU.replace("team=team)", "team=team, dtype=torch.bfloat16)")
    (sandbox / "on_cpu.py").write_text(in_bfloat16)
    alone = shutil.copytree(sandbox, tmp_path / "alone")
    for folder, gpus in ((sandbox, 2), (alone, 1)):
        order(folder, gpus=gpus)
        code, output = run(folder)
        assert code == 0, output
    for ours, theirs in zip(progress(sandbox), progress(alone), strict=True):
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=2e-2)


# A rank whose GPU is full, and one that dies of an error.
BROKEN = """\
import trial_imports, os
from trialfleet.nodes.tabular import ranks, train

run, ranks.run = ranks.run, lambda main: None
import on_cpu

evaluate = train.Training.evaluate_epoch


def evaluate_epoch(self):
    if os.environ["RANK"] == "1" and self.progress.epoch == 1:
        raise RuntimeError(WORDS)
    evaluate(self)


train.Training.evaluate_epoch = evaluate_epoch
run(train.main)
"""


def test_one_rank_without_memory_rejects_the_trial(sandbox: Path) -> None:
    order(sandbox)
    (sandbox / "full.py").write_text(BROKEN.replace("WORDS", "'CUDA out of memory.'"))
    code, output = run(sandbox, "full.py")
    assert code == 64, output
    assert "out of GPU memory" in read_result(sandbox)["error"]


@pytest.mark.thorough
def test_an_error_of_one_rank_ends_all_with_1(sandbox: Path) -> None:
    order(sandbox)
    (sandbox / "broken.py").write_text(BROKEN.replace("WORDS", "'what a pity'"))
    code, output = run(sandbox, "broken.py")
    assert code == 1
    assert "what a pity" in output
    assert "rank 1 of 2 failed with exit code 1" in output
    assert not (sandbox / "result.json").exists()


def test_a_rank_that_is_killed_is_named_and_not_the_one_that_misses_it(sandbox: Path) -> None:
    order(sandbox)
    error = "raise RuntimeError(WORDS)"
    killed = BROKEN.replace(error, "os.kill(os.getpid(), 9)")
    (sandbox / "killed.py").write_text(killed)
    code, output = run(sandbox, "killed.py")
    assert code == 1
    assert "rank 1 of 2 failed with exit code -9" in output


# The launching process gets SIGTERM while Python ends it.
ENDING = """\
import os, sys
from trialfleet.nodes.tabular import ranks


class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 15)


def main():
    if not ranks.is_rank():
        global late
        late = Late()
        ranks.launch(2)
    sys.exit(85)


ranks.run(main)
"""


@pytest.mark.thorough
def test_a_signal_to_the_launching_process_at_its_exit_changes_no_code(tmp_path: Path) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING)
    assert subprocess.run([sys.executable, program], check=False).returncode == 85
