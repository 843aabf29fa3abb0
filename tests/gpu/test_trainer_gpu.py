"""The trainer on a GPU: the captured step, streams, memory, several GPUs.

    pytest tests/gpu/test_trainer_gpu.py

tests/unit/tabular/test_train_fused.py has the same steps without a capture, on any machine.
"""

from __future__ import annotations

import gc
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)  # before the kernels are built for nothing

from tests.one_process import world_of_one
from tests.staying import make_folder, train_all
from tests.unit.tabular.small_trials import (
    losses_of,
    make_sandbox,
    make_table,
    progress,
    read_result,
    run_here,
    start,
    weights,
    write_order,
)
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, settings
from trialfleet.nodes.tabular.graph_steps import GraphSteps
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.sharded.steps import ShardedSteps
from trialfleet.nodes.tabular.steps import PlainSteps

SEED = 11
GPU = torch.device("cuda", 0)
FLOAT32 = 1e-5  # other sums than a CPU's, in each of 28 steps
FLOAT16 = 5e-3
BFLOAT16 = 5e-2


@pytest.fixture(autouse=True)
def as_in_a_trial() -> Iterator[None]:
    """The trainer's process-wide setting, which the tests of a CPU must not see."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def settings_of(**changes: Any) -> settings.Settings:
    usual = {"hidden": 16, "batch_size": 32, "learning_rate": 0.01, "epochs": 4, "dropout": 0.2}
    return settings.Settings.from_params(usual | changes)


@pytest.fixture
def data(tmp_path: Path) -> dataset.Dataset:
    make_table(tmp_path / "r.npz", "multiclass")
    return dataset.load(trial.Trial(tmp_path, {"data": ["r.npz"]}), settings.Settings())


def steps_on(
    device: torch.device,
    data: dataset.Dataset,
    chosen: settings.Settings,
    dtype: torch.dtype = torch.float32,
    chunk: int = 0,
    *,
    capture: bool = True,
) -> GraphSteps:
    torch.manual_seed(SEED)
    network = Network(data.columns, chosen).to(device)
    orders = loader.RowOrders(SEED, len(data.train), chosen.batch_size, Ranks())
    source: loader.Loader = loader.ResidentLoader(data.train.to(device), orders)
    if chunk:
        source = loader.StreamedLoader(data.train, orders, device, chunk)
    return GraphSteps(network, chosen, data.kind, source, seed=SEED, dtype=dtype, capture=capture)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_captured_steps_give_the_losses_of_a_cpu(data: dataset.Dataset, optimizer: str) -> None:
    """With dropout: the mask is the same everywhere."""
    chosen = settings_of(optimizer=optimizer, weight_decay=0.1)
    ours = losses_of(steps_on(GPU, data, chosen), data, chosen)
    theirs = losses_of(steps_on(torch.device("cpu"), data, chosen), data, chosen)
    torch.testing.assert_close(ours, theirs, rtol=FLOAT32, atol=0.0)


def test_steps_without_dropout_give_the_losses_of_the_plain_trainer(data: dataset.Dataset) -> None:
    chosen = settings_of(dropout=0.0)
    torch.manual_seed(SEED)
    plain = PlainSteps(Network(data.columns, chosen), data, chosen, SEED)
    theirs = losses_of(plain, data, chosen)
    ours = losses_of(steps_on(GPU, data, chosen), data, chosen)
    torch.testing.assert_close(ours, theirs, rtol=FLOAT32, atol=0.0)
    for dtype, tolerance in ((torch.bfloat16, BFLOAT16), (torch.float16, FLOAT16)):
        near = losses_of(steps_on(GPU, data, chosen, dtype), data, chosen)
        torch.testing.assert_close(near, theirs, rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_captured_steps_give_the_losses_of_called_steps(
    data: dataset.Dataset, dtype: torch.dtype
) -> None:
    chosen = settings_of()
    captured = losses_of(steps_on(GPU, data, chosen, dtype), data, chosen)
    called = losses_of(steps_on(GPU, data, chosen, dtype, capture=False), data, chosen)
    assert torch.equal(captured, called)


def test_streamed_rows_give_the_losses_of_resident_rows(
    data: dataset.Dataset,
) -> None:
    chosen = settings_of(epochs=8)
    expected = losses_of(steps_on(GPU, data, chosen), data, chosen)
    step_bytes = data.train.bytes // len(data.train) * chosen.batch_size
    for steps_at_once in (1, 2, 3, 100):
        steps = steps_on(GPU, data, chosen, chunk=steps_at_once * step_bytes)
        assert torch.equal(losses_of(steps, data, chosen), expected), steps_at_once


@pytest.mark.parametrize("chunk", [0, 2000])
def test_the_host_never_waits_for_the_device_within_an_epoch(
    data: dataset.Dataset, chunk: int
) -> None:
    chosen = settings_of()
    steps = steps_on(GPU, data, chosen, chunk=chunk)
    steps.begin(0, 0, 0.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(0, len(data.train), chosen.batch_size):
            steps.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert steps.loss_sum() > 0


@pytest.mark.parametrize("offload", ["none", "embeddings", "all"])
def test_a_model_in_main_memory_gives_the_losses_of_a_cpu(
    data: dataset.Dataset, offload: str
) -> None:
    chosen = settings_of(parallel="sharded", weight_decay=0.1, offload=offload)
    torch.manual_seed(SEED)
    network = Network(data.columns, chosen)
    theirs = losses_of(steps_on(torch.device("cpu"), data, chosen), data, chosen)
    with world_of_one("cpu:gloo,cuda:nccl"):
        steps = ShardedSteps(network, data, chosen, SEED, Ranks(), device=GPU, offload=offload)
        ours = losses_of(steps, data, chosen)
        steps.close()
    torch.testing.assert_close(ours, theirs, rtol=FLOAT32, atol=0.0)


@pytest.mark.parametrize("offload", ["none", "embeddings"])
def test_the_host_never_waits_within_a_step_of_a_sharded_model(
    data: dataset.Dataset, offload: str
) -> None:
    chosen = settings_of(parallel="sharded", weight_decay=0.1, offload=offload)
    network = Network(data.columns, chosen)
    with world_of_one("cpu:gloo,cuda:nccl"):
        steps = ShardedSteps(network, data, chosen, SEED, Ranks(), device=GPU, offload=offload)
        steps.restore({**steps.state(), "steps": 2000})  # rows of the first 1000 are waited for
        steps.begin(0, 0, 0.0)
        steps.take()
        torch.cuda.set_sync_debug_mode("error")
        try:
            steps.take()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        steps.close()


def test_an_offloaded_model_takes_less_gpu_memory(tmp_path: Path) -> None:
    """Some 10,000 codes of 256 numbers: weights, gradients and means are 40 MB."""
    make_table(tmp_path / "r.npz", rows=60_000, kinds=12_000)
    chosen = settings_of(parallel="sharded", embedding=256, batch_size=400)
    data = dataset.load(trial.Trial(tmp_path, {"data": ["r.npz"]}), chosen)
    most = {}
    for offload in ("none", "embeddings", "all"):
        network = Network(data.columns, chosen)
        with world_of_one("cpu:gloo,cuda:nccl"):
            before = torch.cuda.memory_allocated(GPU)
            torch.cuda.reset_peak_memory_stats(GPU)
            steps = ShardedSteps(network, data, chosen, SEED, Ranks(), device=GPU, offload=offload)
            steps.begin(0, 0, 0.0)
            for _ in range(20):
                steps.take()
            most[offload] = torch.cuda.max_memory_allocated(GPU) - before
            steps.close()
            del steps, network
    assert max(most["embeddings"], most["all"]) < most["none"] / 4


# Whole trials


def test_a_training_interrupted_after_every_step_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make_sandbox(tmp_path / "sandbox")
    whole = shutil.copytree(sandbox, tmp_path / "whole")
    params = {"dropout": 0.3, "epochs": 3, "batch_size": 64}
    write_order(whole, accelerator="gpu", mode="final", params=params)
    params["checkpoint_seconds"] = 0.0
    write_order(sandbox, accelerator="gpu", mode="final", params=params)
    assert run_here(whole, monkeypatch) == 0
    attempts = 0
    while (code := run_here(sandbox, monkeypatch)) == 85:
        attempts += 1
    assert (code, attempts) == (0, 4 * 3)
    assert progress(sandbox) == progress(whole)
    assert read_result(sandbox)["metrics"] == read_result(whole)["metrics"]
    ours, theirs = weights(sandbox), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert read_result(sandbox)["device"] == torch.cuda.get_device_name(0)


def test_a_resident_trainer_gives_the_bits_of_new_processes(tmp_path: Path) -> None:
    job = make_sandbox(tmp_path / "job", kernels=True)
    (job / "checkpoint").rmdir()
    precisions = ["tf32", "bfloat16", "float32"]
    folders: dict[str, list[Path]] = {"alone": [], "together": []}
    for (way, made), (number, precision) in itertools.product(
        folders.items(), enumerate(precisions)
    ):
        folder = make_folder(tmp_path / way / str(number), job)
        params = {"dropout": 0.3, "hidden": 16 + 8 * number, "precision": precision}
        write_order(folder, accelerator="gpu", mode="final", seed=number, params=params)
        made.append(folder)
    command, done = [sys.executable, "train.py"], [0] * len(precisions)
    assert train_all(command, folders["together"]) == done
    assert [train_all(command, [folder])[0] for folder in folders["alone"]] == done
    for ours, theirs in zip(*folders.values(), strict=True):
        assert progress(ours) == progress(theirs)
        assert read_result(ours)["metrics"] == read_result(theirs)["metrics"]
        assert (ours / "model/weights.pt").read_bytes() == (
            theirs / "model/weights.pt"
        ).read_bytes()


def test_the_gpus_memory_is_free_again_for_the_next_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make_sandbox(tmp_path / "sandbox")
    taken = []
    for seed in range(6):
        write_order(sandbox, accelerator="gpu", seed=seed)
        assert run_here(sandbox, monkeypatch) == 0
        gc.collect()
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_reserved(GPU))
    assert taken[-1] <= taken[1]  # the rows, and the libraries' memory


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-3), ("tf32", 1e-2)])
def test_metrics_on_a_gpu_are_those_of_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, near: float
) -> None:
    found = {}
    for accelerator, chosen in (("cpu", "float32"), ("gpu", precision)):
        sandbox = make_sandbox(tmp_path / accelerator)
        write_order(sandbox, accelerator=accelerator, params={"precision": chosen})
        assert run_here(sandbox, monkeypatch) == 0
        found[accelerator] = read_result(sandbox)["metrics"]
    one_row = {name: 0.011 * name.endswith("accuracy") for name in found["cpu"]}  # of 100
    for name, value in found["cpu"].items():
        assert found["gpu"][name] == pytest.approx(value, rel=near, abs=one_row[name]), name


def test_a_trial_without_enough_gpu_memory_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows in one batch: their first hidden layer takes 131 GB in bfloat16."""
    sandbox = make_sandbox(tmp_path / "sandbox")
    make_table(sandbox / "r.npz", rows=3_000_000)
    params = {"hidden": 65536, "layers": 1, "batch_size": 1 << 24}
    write_order(sandbox, accelerator="gpu", params=params)
    assert run_here(sandbox, monkeypatch) == 64
    assert "out of GPU memory" in read_result(sandbox)["error"]


def test_a_capture_with_nccl_changes_no_loss_and_lets_the_process_group_end(
    data: dataset.Dataset,
) -> None:
    """A rank of two, in a world of one: what it adds up is its own part, by NCCL all the same."""
    chosen, team, found = settings_of(), Ranks(0, 2), []
    with world_of_one("cpu:gloo,cuda:nccl"):
        for capture in (True, False):
            torch.manual_seed(SEED)
            network = Network(data.columns, chosen).to(GPU)
            orders = loader.RowOrders(SEED, len(data.train), chosen.batch_size, team)
            rows = loader.ResidentLoader(data.train.to(GPU), orders)
            steps = GraphSteps(
                *(network, chosen, data.kind, rows), seed=SEED, team=team, capture=capture
            )
            found.append(losses_of(steps, data, chosen))
            steps.close()
    assert torch.equal(*found)


def run(folder: Path) -> tuple[int, str]:
    """Run the trainer as a node does; return its exit code and what it said."""
    trainer = start(folder)
    _, output = trainer.communicate(timeout=300)
    return trainer.returncode, output


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_the_metrics_of_one(tmp_path: Path) -> None:
    alone = make_sandbox(tmp_path / "alone", kernels=True)
    both = shutil.copytree(alone, tmp_path / "both")
    for folder, gpus in ((alone, 1), (both, 2)):
        params = {"precision": "float32", "batch_size": 33}
        write_order(folder, accelerator="gpu", gpus=gpus, params=params)
        code, output = run(folder)
        assert code == 0, output
    for ours, theirs in zip(progress(both), progress(alone), strict=True):
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-4)
    assert json.loads((both / "result.json").read_text())["device"].endswith(" x 2")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_an_interrupted_training_on_two_gpus_gives_the_same_bits(tmp_path: Path) -> None:
    whole = make_sandbox(tmp_path / "whole", kernels=True)
    broken = shutil.copytree(whole, tmp_path / "broken")
    params = {"dropout": 0.3, "epochs": 2, "batch_size": 67}
    write_order(whole, accelerator="gpu", gpus=2, mode="final", params=params)
    params["checkpoint_seconds"] = 0.0
    write_order(broken, accelerator="gpu", gpus=2, mode="final", params=params)
    code, output = run(whole)
    assert code == 0, output
    codes = [run(broken)[0]]
    while codes[-1] == 85:
        codes.append(run(broken)[0])
    assert codes[0] == 85
    assert codes[-1] == 0
    ours, theirs = weights(broken), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
