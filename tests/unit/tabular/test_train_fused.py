"""The GPU's fused steps, on a CPU: they give the losses of plain steps, and the same bits again.

What needs a GPU, the capture above all, is in tests/gpu/test_trainer_gpu.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tests.bench.train.launches import Count
from tests.one_process import world_of_one
from tests.unit.tabular.small_trials import (
    losses_of,
    make_sandbox,
    make_table,
    progress,
    read_result,
    run_here,
    weights,
    write_order,
)
from trialfleet.nodes import trial
from trialfleet.nodes.kernels import plain
from trialfleet.nodes.tabular import dataset, loader, settings, train
from trialfleet.nodes.tabular.graph_steps import GraphSteps
from trialfleet.nodes.tabular.network import Network
from trialfleet.nodes.tabular.ranks import Ranks
from trialfleet.nodes.tabular.steps import PlainSteps, Steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SEED = 11
# How far a loss may be from the plain way's, relatively, in any of the first 28 steps.
FLOAT32 = 3e-6  # sums in another order: some units in the last of 24 bits; 2.4e-6 was seen
FLOAT16 = 5e-3  # factors with 11 bits
BFLOAT16 = 5e-2  # products of factors with 8 bits; 0.025 was seen, in a square of small errors

TASKS = ["binary", "multiclass", "regression"]


def settings_of(**changes: Any) -> settings.Settings:
    """Return settings whose 200 training rows make 6 batches of 32 and one of 8."""
    usual = {"hidden": 16, "batch_size": 32, "learning_rate": 0.01, "epochs": 4}
    return settings.Settings.from_params(usual | changes)


def load(folder: Path, task: str = "binary", without: tuple[str, ...] = ()) -> dataset.Dataset:
    make_table(folder / "r.npz", task, without=without)
    return dataset.load(trial.Trial(folder, {"data": ["r.npz"]}), settings.Settings())


def network_of(data: dataset.Dataset, chosen: settings.Settings) -> Network:
    torch.manual_seed(SEED)
    return Network(data.columns, chosen)


def plain_steps(data: dataset.Dataset, chosen: settings.Settings) -> Steps:
    return PlainSteps(network_of(data, chosen), data, chosen, SEED)


def resident(data: dataset.Dataset, chosen: settings.Settings) -> loader.ResidentLoader:
    orders = loader.RowOrders(SEED, len(data.train), chosen.batch_size, Ranks())
    return loader.ResidentLoader(data.train, orders)


def fused_steps(
    data: dataset.Dataset,
    chosen: settings.Settings,
    dtype: torch.dtype = torch.float32,
    source: loader.Loader | None = None,
    team: Ranks | None = None,
) -> GraphSteps:
    source = source or resident(data, chosen)
    network = network_of(data, chosen)
    return GraphSteps(network, chosen, data.kind, source, seed=SEED, dtype=dtype, team=team)


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    first, *_, last = torch.split(theirs, 7)  # by epochs
    assert last.mean() < 0.97 * first.mean()  # something is learned
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0.0)


# The plain way's losses


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 0.01), ("sgd", 0.3)])
@pytest.mark.parametrize("task", TASKS)
def test_in_float32_the_losses_are_those_of_the_plain_way(
    tmp_path: Path, task: str, optimizer: str, rate: float
) -> None:
    data = load(tmp_path, task)
    chosen = settings_of(optimizer=optimizer, learning_rate=rate, weight_decay=0.1)
    ours = losses_of(fused_steps(data, chosen), data, chosen)
    assert_close(ours, losses_of(plain_steps(data, chosen), data, chosen), FLOAT32)


@pytest.mark.parametrize(
    ("without", "layers"), [((), 0), (("kind",), 2), (("kind",), 0), (("number", "constant"), 1)]
)
def test_losses_of_reduced_tables_and_linear_models_are_those_of_plain_steps(
    tmp_path: Path, without: tuple[str, ...], layers: int
) -> None:
    data = load(tmp_path, "multiclass", without)
    chosen = settings_of(layers=layers, weight_decay=0.1, learning_rate=0.03)
    ours = losses_of(fused_steps(data, chosen), data, chosen)
    assert_close(ours, losses_of(plain_steps(data, chosen), data, chosen), FLOAT32)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, BFLOAT16), (torch.float16, FLOAT16)])
@pytest.mark.parametrize("task", TASKS)
def test_losses_in_16_bits_are_close_to_those_of_plain_steps(
    tmp_path: Path, task: str, dtype: torch.dtype, near: float, optimizer: str
) -> None:
    data = load(tmp_path, task)
    rate = {"adamw": 0.01, "sgd": 0.1 if task == "regression" else 0.3}[optimizer]
    chosen = settings_of(optimizer=optimizer, learning_rate=rate, weight_decay=0.1)
    ours = losses_of(fused_steps(data, chosen, dtype), data, chosen)
    assert_close(ours, losses_of(plain_steps(data, chosen), data, chosen), near)


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 0.01), ("sgd", 0.3)])
def test_the_loss_scale_of_float16_changes_no_bit_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, rate: float
) -> None:
    """In float32, which loses no small gradient to a smaller scale."""
    data = load(tmp_path)
    chosen = settings_of(optimizer=optimizer, learning_rate=rate, weight_decay=0.1, dropout=0.2)
    found, states = [], []
    for scale in (1.0, 1024.0):
        steps = fused_steps(data, chosen)
        steps._scale = scale
        found.append(losses_of(steps, data, chosen))
        states.append([*steps.state()["m"], *steps.state()["v"]])
    assert torch.equal(*found)
    assert all(map(torch.equal, *states))


def test_float16_continues_from_a_checkpoint_of_float32(tmp_path: Path) -> None:
    """And the other way: the state is of the loss itself."""
    data, chosen = load(tmp_path), settings_of()
    steps, other = fused_steps(data, chosen, torch.float16), fused_steps(data, chosen)
    losses_of(steps, data, chosen)
    state = steps.state()
    other.restore(state)
    fresh = fused_steps(data, chosen, torch.float16)
    fresh.restore(other.state())
    assert max(float(v.max()) for v in state["v"]) < 1
    for name in ("m", "v"):
        assert all(map(torch.equal, fresh.state()[name], state[name]))
    assert fresh._optimizer.m[-1].abs().max() > 100 * state["m"][-1].abs().max()


def test_a_checkpoint_of_a_training_without_a_scale_copies_no_moments(tmp_path: Path) -> None:
    """A copy would take as much memory again as the moments of the whole model."""
    steps = fused_steps(load(tmp_path), settings_of())
    with Count() as count:
        steps.state()
    assert count.described()["launches"] == 0


class SameDropout(nn.Module):
    """Dropout by the mask that the kernels define, for the plain way."""

    def __init__(self, layer: int, p: float) -> None:
        super().__init__()
        self.layer, self.p, self.step = layer, p, 0

    def forward(self, x: Tensor) -> Tensor:
        random = torch.tensor([SEED, self.step])
        self.step += 1
        return x * plain.dropout_mask(x.shape, random, self.layer, self.p) / (1 - self.p)


def test_losses_with_dropout_are_those_of_plain_steps_with_the_same_mask(tmp_path: Path) -> None:
    data, chosen = load(tmp_path), settings_of(dropout=0.4)
    network = network_of(data, chosen)
    for layer in range(chosen.layers):
        network.layers[3 * layer + 2] = SameDropout(layer, chosen.dropout)
    theirs = losses_of(PlainSteps(network, data, chosen, SEED), data, chosen)
    assert_close(losses_of(fused_steps(data, chosen), data, chosen), theirs, FLOAT32)


# The same bits


def test_streamed_rows_give_the_same_bits_as_resident_rows(tmp_path: Path) -> None:
    data, chosen = load(tmp_path), settings_of(dropout=0.2)
    expected = losses_of(fused_steps(data, chosen), data, chosen)
    step_bytes = data.train.bytes // len(data.train) * chosen.batch_size
    for steps_at_once in (1, 2, 3, 7, 100):
        orders = loader.RowOrders(SEED, len(data.train), chosen.batch_size, Ranks())
        device = torch.device("cpu")
        source = loader.StreamedLoader(data.train, orders, device, steps_at_once * step_bytes)
        assert source.steps == steps_at_once
        found = losses_of(fused_steps(data, chosen, source=source), data, chosen)
        assert torch.equal(found, expected), steps_at_once


def test_the_ranks_parts_make_up_every_batch() -> None:
    rows, batch = 23, 5
    ranks = [loader.RowOrders(SEED, rows, batch, Ranks(rank, 3)) for rank in range(3)]
    parts = [list(torch.split(orders.take(0), orders.sizes)) for orders in ranks]
    whole = torch.split(loader.epoch_order(SEED, 0, rows), batch)
    assert all(
        torch.equal(torch.cat(step), all_) for *step, all_ in zip(*parts, whole, strict=True)
    )
    assert all(orders.batches == [len(batch) for batch in whole] for orders in ranks)


def test_all_ranks_capture_the_same_batches_whatever_their_parts(tmp_path: Path) -> None:
    """Of 67 rows and of the tail of 66 the first rank has 33: two graphs, as the second one has."""
    data, chosen, found = load(tmp_path), settings_of(batch_size=67), []
    for rank in range(2):
        team = Ranks(rank, 2)
        orders = loader.RowOrders(SEED, len(data.train), chosen.batch_size, team)
        steps = fused_steps(
            data, chosen, source=loader.ResidentLoader(data.train, orders), team=team
        )
        found.append(steps._parts)
    assert found == [{67: 33, 66: 33}, {67: 34, 66: 33}]


def test_warming_up_does_not_change_the_losses(tmp_path: Path) -> None:
    data, chosen = load(tmp_path), settings_of(dropout=0.2)
    expected = losses_of(fused_steps(data, chosen, torch.bfloat16), data, chosen)
    steps = fused_steps(data, chosen, torch.bfloat16)
    steps._warm_up(32)
    steps._warm_up(8)
    assert torch.equal(losses_of(steps, data, chosen), expected)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_looks_at_no_value_so_that_it_can_be_captured(
    tmp_path: Path, optimizer: str, dtype: torch.dtype
) -> None:
    """By tensors without data: what waits for the device would ask them for a value."""
    data, chosen = load(tmp_path, "multiclass"), settings_of(optimizer=optimizer, dropout=0.2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        rows = data.train.empty(len(data.train), torch.device("cpu"))
        without_values = dataclasses.replace(data, train=rows)
        steps = fused_steps(without_values, chosen, dtype)
        for rows_of_a_batch in (32, 8):
            steps._warm_up(rows_of_a_batch)
        with pytest.raises(DataDependentOutputException):
            steps.loss_sum()


def test_a_step_of_one_rank_of_two_looks_at_no_value_either(tmp_path: Path) -> None:
    data, chosen, team = load(tmp_path), settings_of(dropout=0.2), Ranks(0, 2)
    orders = loader.RowOrders(SEED, len(data.train), chosen.batch_size, team)
    with world_of_one(), FakeTensorMode(allow_non_fake_inputs=True):
        rows = data.train.empty(len(data.train), torch.device("cpu"))
        steps = fused_steps(data, chosen, torch.bfloat16, loader.ResidentLoader(rows, orders), team)
        for rows_of_a_batch in (32, 8):
            steps._warm_up(rows_of_a_batch)


def on_cpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, chunk: int = 0) -> None:
    """Make the trainer take the GPU's way on this CPU, and stream its rows in this many bytes."""

    def steps_of(
        t: trial.Trial,
        chosen: settings.Settings,
        network: Network,
        data: dataset.Dataset,
        team: Ranks,
        device: torch.device,
    ) -> Steps:
        orders = loader.RowOrders(t.seed, len(data.train), chosen.batch_size, team)
        source: loader.Loader = loader.ResidentLoader(data.train, orders)
        if chunk:
            source = loader.StreamedLoader(data.train, orders, device, chunk)
        return GraphSteps(network, chosen, data.kind, source, seed=t.seed, dtype=dtype, team=team)

    monkeypatch.setattr(train, "build_steps", steps_of)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_interrupted_after_every_step_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, dtype: torch.dtype
) -> None:
    sandbox = make_sandbox(tmp_path / "sandbox")
    whole = shutil.copytree(sandbox, tmp_path / "whole")
    params = {"dropout": 0.3, "epochs": 3, "optimizer": optimizer, "batch_size": 64}
    write_order(whole, mode="final", params=params)
    write_order(sandbox, mode="final", params=params | {"checkpoint_seconds": 0.0})
    on_cpu(monkeypatch, dtype)
    assert run_here(whole, monkeypatch) == 0
    on_cpu(monkeypatch, dtype, chunk=2 * 64 * 20)
    attempts = 0
    while (code := run_here(sandbox, monkeypatch)) == 85:
        attempts += 1
    assert code == 0
    assert attempts == 4 * 3
    assert progress(sandbox) == progress(whole)
    assert read_result(sandbox)["metrics"] == read_result(whole)["metrics"]
    ours, theirs = weights(sandbox), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_graphs_are_dropped_before_the_process_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """With a checkpoint or with a result: the process group's end would wait for them."""
    closed: list[GraphSteps] = []

    def close(steps: GraphSteps) -> None:
        closed.append(steps)

    monkeypatch.setattr(GraphSteps, "close", close)
    on_cpu(monkeypatch, torch.float32)
    sandbox = make_sandbox(tmp_path / "sandbox")
    write_order(sandbox, params={"checkpoint_seconds": seconds})
    assert run_here(sandbox, monkeypatch) == (0 if seconds else 85)
    assert len(closed) == 1


def test_plain_and_fused_steps_can_continue_from_each_others_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make_sandbox(tmp_path / "sandbox")
    whole = shutil.copytree(sandbox, tmp_path / "whole")
    write_order(whole)
    assert run_here(whole, monkeypatch) == 0
    write_order(sandbox, params={"checkpoint_seconds": 0.0})
    ways = itertools.cycle([train.build_steps, None])
    while True:
        on_cpu(monkeypatch, torch.float32)
        if way := next(ways):
            monkeypatch.setattr(train, "build_steps", way)
        if (code := run_here(sandbox, monkeypatch)) != 85:
            break
    assert code == 0
    ours, theirs = read_result(sandbox)["metrics"], read_result(whole)["metrics"]
    assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-5)


# Refusing


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32"])
def test_precisions_of_gpus_are_refused_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    sandbox = make_sandbox(tmp_path / "sandbox")
    write_order(sandbox, params={"precision": precision})
    assert run_here(sandbox, monkeypatch) == 64
    assert read_result(sandbox)["error"].startswith(f"precision is '{precision}'")


@pytest.mark.parametrize(
    ("capability", "precision", "dtype"),
    [
        ((9, 0), "auto", torch.bfloat16),
        ((8, 0), "auto", torch.bfloat16),
        ((7, 5), "auto", torch.float16),  # T4
        ((6, 1), "auto", torch.float32),
        ((9, 0), "float16", torch.float16),
        ((9, 0), "tf32", torch.float32),
        ((7, 5), "bfloat16", torch.bfloat16),
    ],
)
def test_auto_is_what_the_gpu_multiplies_fast(
    capability: tuple[int, int],
    precision: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    chosen = settings_of(precision=precision)
    assert train.matmul_dtype(chosen, torch.device("cuda", 0)) == dtype


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 20.00 GiB.",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_a_full_gpu_rejects_the_trial_in_a_capture_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def full(*_: object) -> None:
        try:
            raise RuntimeError(words)
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error in a capture")

    sandbox = make_sandbox(tmp_path / "sandbox")
    write_order(sandbox)
    monkeypatch.setattr(train, "build_steps", full)
    assert run_here(sandbox, monkeypatch) == 64
    assert "out of GPU memory" in read_result(sandbox)["error"]


def test_another_error_of_the_gpu_is_no_rejection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    sandbox = make_sandbox(tmp_path / "sandbox")
    write_order(sandbox)
    monkeypatch.setattr(train, "build_steps", broken)
    monkeypatch.chdir(sandbox)
    with pytest.raises(RuntimeError, match="illegal"):
        train.main()
