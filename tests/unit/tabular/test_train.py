"""The reference trainer: what it learns, what it refuses, and resuming to the same bits."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.tabular.small_trials import (
    ROWS,
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
from trialfleet.nodes.tabular import dataset, evaluation, loader, settings, table
from trialfleet.nodes.tabular import network as network_module
from trialfleet.nodes.tabular.network import Network, compute_outputs
from trialfleet.nodes.tabular.optimizers import Optimizer
from trialfleet.nodes.tabular.steps import PlainSteps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    return make_sandbox(tmp_path / "sandbox")


# Learning


def test_the_trainer_learns_two_classes(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_order(sandbox, params={"epochs": 12})
    assert run_here(sandbox, monkeypatch) == 0
    metrics = read_result(sandbox)["metrics"]
    assert {"val_loss", "val_auc", "val_accuracy", "test_loss", "test_auc"} < set(metrics)
    assert metrics["test_auc"] > 0.95
    assert metrics["test_accuracy"] > 0.85


def test_the_trainer_learns_several_classes(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(sandbox / "r.npz", "multiclass")
    objective = {"metric": "val_accuracy", "direction": "maximize"}
    write_order(sandbox, params={"epochs": 12}, objective=objective)
    assert run_here(sandbox, monkeypatch) == 0
    assert read_result(sandbox)["metrics"]["test_accuracy"] > 0.8


def test_the_trainer_learns_numbers_and_reports_errors_in_their_unit(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(sandbox / "r.npz", "regression")
    write_order(
        sandbox,
        params={"epochs": 8},
        objective={"metric": "val_rmse", "direction": "minimize"},
    )
    assert run_here(sandbox, monkeypatch) == 0
    metrics = read_result(sandbox)["metrics"]
    # The noise alone has a deviation of 0.3 * 50; the target one of about 50 * 1.4.
    assert 15 < metrics["test_rmse"] < 25
    assert 0.7 * metrics["test_rmse"] < metrics["test_mae"] < metrics["test_rmse"]
    assert 0.85 < metrics["test_r2"] < 1


def test_a_trial_trains_on_its_share_and_the_final_on_all(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sandbox)
    chosen = settings.Settings(tune_fraction=0.25)
    sizes = {}
    for mode, seed in itertools.product(["tune", "final"], [1, 2]):
        write_order(sandbox, mode=mode, seed=seed)
        data = dataset.load(trial.start(), chosen)
        sizes[mode, seed] = data.train.numeric
        assert len(data.validation) == len(data.test) == ROWS // 3
    assert len(sizes["tune", 1]) == ROWS // 3 // 4
    assert len(sizes["final", 1]) == ROWS // 3
    assert torch.equal(sizes["tune", 1], sizes["tune", 2])  # trials compare: the same rows


def test_columns_are_standardised_by_the_training_rows_alone(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sandbox)
    write_order(sandbox, mode="final")
    data = dataset.load(trial.start(), settings.Settings())
    number, constant = data.train.numeric.unbind(1)
    assert abs(number.mean()) < 1e-6
    present = number[number != 0]  # a missing value is the mean, 0
    assert len(present) == ROWS // 3 - 2
    assert abs(present.square().mean() - 1) < 1e-5
    assert (constant == 0).all()
    source = table.read_table(sandbox / "r.npz")
    train_mean = np.nanmean(source.numeric[source.split == table.TRAIN, 0].astype(np.float64))
    assert data.numeric_scale.mean[0].item() == pytest.approx(train_mean, rel=1e-12)


def test_training_stops_without_a_better_epoch_and_keeps_the_best(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_order(sandbox, params={"epochs": 50, "patience": 2, "learning_rate": 0.03})
    assert run_here(sandbox, monkeypatch) == 0
    lines = (sandbox / "progress.jsonl").read_text().splitlines()
    scores = [json.loads(line)["metrics"]["val_auc"] for line in lines]
    assert len(scores) < 50
    assert scores.index(max(scores)) == len(scores) - 3
    assert read_result(sandbox)["metrics"]["val_auc"] == max(scores)


def test_a_trial_with_a_stop_request_saves_and_ends_after_the_epoch(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_order(sandbox, params={"epochs": 50, "patience": 50})
    (sandbox / "stop.json").write_text('{"predicted": 0.5}')
    assert run_here(sandbox, monkeypatch) == 0
    (line,) = progress(sandbox)
    found = read_result(sandbox)
    assert found["status"] == "stopped"
    assert found["metrics"]["val_auc"] == line["metrics"]["val_auc"]
    assert json.loads((sandbox / "checkpoint" / "complete.json").read_text())["folder"]


def test_a_loss_that_is_not_finite_is_rejected(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(sandbox / "r.npz", "regression")
    write_order(sandbox, params={"optimizer": "sgd", "learning_rate": 100.0, "epochs": 9})
    assert run_here(sandbox, monkeypatch) == 64
    assert "loss is nan" in read_result(sandbox)["error"]


def test_weights_that_are_lost_in_the_last_step_are_rejected(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training loss can't show it: it is of before the step."""
    take = PlainSteps.take

    def take_badly(steps: PlainSteps) -> None:
        take(steps)
        steps._optimizer.weights[-1].data.fill_(math.nan)

    monkeypatch.setattr(PlainSteps, "take", take_badly)
    write_order(sandbox, params={"epochs": 1, "batch_size": ROWS})
    assert run_here(sandbox, monkeypatch) == 64
    assert "the validation loss is nan in epoch 0" in read_result(sandbox)["error"]


# Resuming


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_interrupted_after_every_step_gives_the_same_bits(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, optimizer: str
) -> None:
    whole = shutil.copytree(sandbox, tmp_path / "whole")
    params = {"dropout": 0.3, "epochs": 6, "patience": 2, "optimizer": optimizer, "batch_size": 64}
    write_order(whole, mode="final", params=params)
    write_order(sandbox, mode="final", params=params | {"checkpoint_seconds": 0.0})
    assert run_here(whole, monkeypatch) == 0
    attempts = 0
    while (code := run_here(sandbox, monkeypatch)) == 85:
        torch.manual_seed(attempts)  # a new process knows nothing of the old one's randomness
        attempts += 1
    assert code == 0
    assert attempts == 4 * len(progress(whole))
    assert progress(sandbox) == progress(whole)
    assert read_result(sandbox)["metrics"] == read_result(whole)["metrics"]
    ours, theirs = weights(sandbox), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_training_continues_after_sigterm_to_the_same_bits(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a node: other processes, nothing shared but the folder."""
    params = {"dropout": 0.3, "epochs": 100, "patience": 100}
    write_order(sandbox, mode="final", params=params)
    whole = shutil.copytree(sandbox, tmp_path / "whole")
    trainer = start(sandbox)
    while not (sandbox / "progress.jsonl").exists() or len(progress(sandbox)) < 20:
        assert trainer.poll() is None, trainer.communicate()
        time.sleep(0.01)
    trainer.send_signal(signal.SIGTERM)
    _, output = trainer.communicate(timeout=60)
    assert trainer.returncode == 85, output
    assert 20 <= len(progress(sandbox)) < 100
    assert (sandbox / "checkpoint/complete.json").exists()

    moved = shutil.copytree(sandbox, tmp_path / "another node")
    trainer = start(moved)
    _, output = trainer.communicate(timeout=60)
    assert trainer.returncode == 0, output
    assert run_here(whole, monkeypatch) == 0
    assert progress(moved) == progress(whole)
    assert read_result(moved)["metrics"] == read_result(whole)["metrics"]
    ours, theirs = weights(moved), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_seed_decides(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (1, 1, 2):
        write_order(sandbox, seed=seed)
        assert run_here(sandbox, monkeypatch) == 0
        found.append(read_result(sandbox)["metrics"]["val_loss"])
    assert found[0] == found[1] != found[2]


def test_every_epoch_takes_all_rows_in_an_order_of_its_own() -> None:
    chosen = itertools.product([1, 2], [0, 1])
    orders = [loader.epoch_order(seed, epoch, ROWS).tolist() for seed, epoch in chosen]
    assert all(sorted(order) == list(range(ROWS)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


# Refusing


def test_an_unknown_setting_is_rejected_with_the_known_ones(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_order(sandbox, params={"learning_rte": 0.1})
    assert run_here(sandbox, monkeypatch) == 64
    assert (
        "no setting learning_rte (did you mean learning_rate?); it knows learning_rate, hidden"
        in read_result(sandbox)["error"]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("hidden", 0),
        ("hidden", 12.5),
        ("hidden", True),
        ("layers", -1),
        ("dropout", 1.0),
        ("batch_size", 0),
        ("epochs", "3"),
        ("optimizer", "adam"),
        ("precision", "half"),
        ("tune_fraction", 1.5),
        ("learning_rate", math.nan),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value!r}"):
        settings.Settings.from_params({name: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"local_steps": 2, "parallel": "sharded"},
            "^local_steps is 2, but with `parallel: sharded`",
        ),
        ({"local_steps": 2, "offload": "all"}, "^local_steps is 2, but with `offload: all`"),
        ({"parallel": "data", "tensor_parallel": 2}, "^tensor_parallel is 2, but with `parall"),
        ({"parallel": "data", "offload": "embeddings"}, "^offload is embeddings, but with `paral"),
        (
            {"offload": "all", "precision": "bfloat16"},
            r"^precision is 'bfloat16', but with `offload: all`.*; choose auto, float32 or tf32$",
        ),
        ({"parallel": "sharded", "precision": "float16"}, "^precision is 'float16', but with `par"),
    ],
)
def test_conflicting_settings_of_a_sharded_model_are_named(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(settings.SettingError, match=said):
        settings.Settings.from_params(given)


@pytest.mark.parametrize(
    ("given", "memory", "shards", "offloads"),
    [
        ({}, 32_000, False, "none"),  # 1,000 numbers of 16 bytes in a half of it
        ({}, 31_999, True, "embeddings"),
        ({"parallel": "data"}, 31_999, False, "embeddings"),
        ({"offload": "none"}, 31_999, True, "none"),
        ({"offload": "all"}, 1e9, True, "all"),
        ({"tensor_parallel": 2}, 1e9, True, "none"),
        ({}, 6_400, True, "embeddings"),  # the layers' 200 in a half of it
        ({}, 6_399, True, "all"),
    ],
)
def test_a_model_is_sharded_and_offloaded_if_memory_is_short(
    given: dict[str, Any], memory: float, shards: bool, offloads: str
) -> None:
    chosen = settings.Settings.from_params(given)
    assert chosen.is_sharded(1000, memory) is shards
    assert chosen.offloaded_part(1000, 800, memory, ranks=1) == offloads
    assert chosen.offloaded_part(1000, 800, memory / 4, ranks=4) == offloads


@pytest.mark.parametrize(
    ("precision", "refused"),
    [("auto", False), ("float32", False), ("tf32", False), ("bfloat16", True), ("float16", True)],
)
def test_a_model_that_turns_out_too_large_for_its_precision_is_refused(
    precision: str, refused: bool
) -> None:
    chosen = settings.Settings(precision=precision)
    assert not chosen.is_sharded(1000, 32_000)
    words = f"^precision is '{precision}', but for a model that needs more than half of the memory"
    with pytest.raises(settings.SettingError, match=words) if refused else nullcontext():
        assert chosen.is_sharded(1000, 31_999)


def test_a_whole_number_may_be_given_for_a_float() -> None:
    assert settings.Settings.from_params({"weight_decay": 1, "layers": 0}).weight_decay == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_study_for_gpus_never_falls_back_to_the_cpu(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_order(sandbox, accelerator="gpu")
    assert run_here(sandbox, monkeypatch) == 1
    assert not (sandbox / "result.json").exists()


# Parts


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_the_share_of_pairs_in_order(ties: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    for rows in (2, 7, 200):
        score = torch.randn(rows, generator=generator)
        if ties:
            score = (2 * score).round()
        positive = torch.rand(rows, generator=generator) < 0.4
        positive[:2] = torch.tensor([True, False])
        pairs = [
            (p > n) + 0.5 * (p == n)
            for p in score[positive].tolist()
            for n in score[~positive].tolist()
        ]
        assert evaluation.auc(score, positive) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_outputs_with_nan_have_nan_as_metrics(tmp_path: Path) -> None:
    make_table(tmp_path / "r.npz")
    data = dataset.load(trial.Trial(tmp_path, {"data": ["r.npz"]}), settings.Settings())
    network = Network(data.columns, settings.Settings())
    [*network.parameters()][-1].data.fill_(math.nan)
    metrics = evaluation.evaluate(network, data.validation, data, "val_")
    assert set(metrics) == {"val_loss", "val_auc", "val_accuracy"}
    assert all(math.isnan(value) for value in metrics.values())


@pytest.mark.parametrize(("hidden", "layers", "rows"), [(16, 1, 64), (50, 1, 20), (1000, 0, 512)])
def test_a_wide_network_is_evaluated_on_fewer_rows_at_once(
    monkeypatch: pytest.MonkeyPatch, hidden: int, layers: int, rows: int
) -> None:
    """At most this number of values of its widest layer is in memory: here 1024."""
    monkeypatch.setattr(network_module, "EVALUATION_NUMBERS", 1024)
    columns = table.Columns(
        numeric=["a", "b"], categorical={}, target="t", task="regression", classes=[]
    )
    network = Network(columns, settings.Settings(hidden=hidden, layers=layers))
    batches: list[int] = []
    network.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
    outputs = compute_outputs(
        network, torch.randn(1500, 2), torch.zeros(1500, 0, dtype=torch.int32)
    )
    assert len(outputs) == sum(batches) == 1500
    assert max(batches) == rows


def test_auc_without_a_second_class_is_nan() -> None:
    assert math.isnan(evaluation.auc(torch.randn(3), torch.ones(3, dtype=torch.bool)))


def test_adamw_takes_the_steps_of_torch() -> None:
    chosen = settings.Settings(learning_rate=0.02, weight_decay=0.3)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    groups: list[dict[str, Any]] = [
        {"params": [theirs.weight]},
        {"params": [theirs.bias], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.3)
    compare(ours, theirs, Optimizer(ours, chosen), reference)


def test_sgd_takes_the_steps_of_torch() -> None:
    chosen = settings.Settings(optimizer="sgd", momentum=0.8)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    reference = torch.optim.SGD(theirs.parameters(), lr=0.02, momentum=0.8)
    compare(ours, theirs, Optimizer(ours, chosen), reference)


def compare(ours: nn.Linear, theirs: nn.Linear, optimizer: Optimizer, torchs: Any) -> None:
    for step in range(20):
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        ours.zero_grad()
        torchs.zero_grad()
        ours(inputs).square().sum().backward()
        theirs(inputs).square().sum().backward()
        optimizer.step(0.02)
        torchs.step()
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)


def test_an_unknown_category_has_no_part_in_the_output() -> None:
    columns = table.Columns(
        numeric=["n"],
        categorical={"a": ["x", "y"], "b": ["z"]},
        target="t",
        task="regression",
        classes=[],
    )
    network = Network(columns, settings.Settings(embedding=3)).eval()
    number = torch.zeros(1, 1)
    known = network(number, torch.tensor([[2, 1]], dtype=torch.int32))
    unknown = network(number, torch.tensor([[0, 0]], dtype=torch.int32))
    assert not torch.equal(known, unknown)
    joined = torch.zeros(1, 1 + 2 * 3)
    assert torch.equal(unknown, network.layers(joined))

    known.sum().backward()  # each value of each column has its own row in the embedding
    gradient = dict(network.named_parameters())["embedding.weight"].grad
    assert gradient is not None
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [2, 3 + 1]


@pytest.mark.parametrize("only", ["number", "kind"])
def test_columns_of_one_sort_are_enough(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    values = np.arange(90) % 2
    table.write_table(
        sandbox / "r.npz",
        {"y": values, only: values},
        target="y",
        task="classification",
        split=np.arange(90) // 30,
        categorical=["kind"] if only == "kind" else [],
    )
    write_order(sandbox, params={"layers": 0, "batch_size": 8, "learning_rate": 0.1})
    assert run_here(sandbox, monkeypatch) == 0
    assert read_result(sandbox)["metrics"]["test_auc"] == 1.0


def test_the_trainer_does_not_import_torch_dynamo(sandbox: Path) -> None:
    write_order(sandbox, params={"epochs": 1})
    code = "import runpy, sys\ntry: runpy.run_path('train.py', run_name='__main__')\nfinally: "
    code += "assert 'torch._dynamo' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(sandbox), "TRIALFLEET_TRIAL": "trial.json"}
    subprocess.run([sys.executable, "-c", code], cwd=sandbox, env=environment, check=True)
