"""The reference trainer stays for a job's next trial, which gets the bits of a new process."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.staying import make_folder, train_all
from tests.unit.tabular.small_trials import (
    copy_trainer,
    make_sandbox,
    make_table,
    read_result,
    run_here,
    write_order,
)
from trialfleet.nodes import trial
from trialfleet.nodes.tabular import dataset, loader, settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

COMMAND = [sys.executable, "train.py"]
ALONE = {"OMP_NUM_THREADS": "1"}
CPU = torch.device("cpu")
BY_LOSS = {"metric": "val_loss", "direction": "minimize"}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The files that HTCondor brought to a job: the trainer and tables."""
    folder = tmp_path / "job"
    folder.mkdir()
    copy_trainer(folder, kernels=False)
    for task in ("binary", "multiclass", "regression"):
        make_table(folder / f"{task}.npz", task)
    return folder


def drawn(number: int) -> dict[str, Any]:
    """Return a trial of the search space: its settings, seed, mode and table."""
    chance = random.Random(number)  # noqa: S311
    task = chance.choice(["binary", "binary", "multiclass", "regression"])
    return {
        "params": {
            "learning_rate": 10 ** chance.uniform(-3.5, -1.5),
            "hidden": chance.randint(1, 70),
            "layers": chance.randint(0, 3),
            "dropout": chance.choice([0.0, 0.0, 0.2, 0.5]),
            "embedding": chance.randint(1, 9),
            "weight_decay": chance.choice([0.0, 0.1]),
            "batch_size": chance.choice([7, 32, 100, 256]),
            "optimizer": chance.choice(["adamw", "sgd"]),
            "momentum": chance.choice([0.0, 0.9]),
            "epochs": chance.randint(1, 4),
            "patience": chance.randint(1, 3),
            "tune_fraction": chance.choice([1.0, 0.5]),
        },
        "seed": chance.randrange(2**31),
        "mode": chance.choice(["tune", "tune", "final"]),
        "data": [f"{task}.npz"],
        "objective": BY_LOSS,
    }


def set_up(job: Path, folder: Path, order: dict[str, Any], models: Path) -> Path:
    """Return a trial's folder as the agent sets it up."""
    make_folder(folder, job)
    if order.get("told to stop"):
        (folder / "stop.json").write_text('{"predicted": 0.5}')
    if order.get("mode") == "evaluate":
        order = order | {"models": {each: each for each in ("champion", "challenger")}}
        for each in order["models"]:
            shutil.copytree(models / each, folder / each)
    write_order(folder, **order)
    return folder


def left_by(folder: Path) -> dict[str, Any]:
    """Return all files that a trial has left, without their times."""
    text = (folder / "result.json").read_text()
    found: dict[str, Any] = {"result": json.loads(text) if text else {}}
    found["result"].pop("seconds", None)
    lines = (folder / "progress.jsonl").read_text().splitlines()
    found["progress"] = [{**json.loads(line), "time": None} for line in lines]
    files = [
        path for name in ("model", "losses", "checkpoint") for path in folder.glob(f"{name}/**/*")
    ]
    for path in [folder / "out", folder / "err", *files]:
        if path.is_file() and path.name != "complete.json":  # which has the seconds
            found[str(path.relative_to(folder))] = path.read_bytes()
    if b"Traceback" in found["err"]:  # which names files by the trial's folder
        found["err"] = found["err"].splitlines()[-1]
    return found


ORDERS = [
    *map(drawn, range(6)),
    {"mode": "final", "params": {"dropout": 0.3, "hidden": 33}, "data": ["binary.npz"]},
    {"mode": "evaluate", "params": {}, "data": ["binary.npz"]},
    {"told to stop": True, "params": {"dropout": 0.3}, "data": ["binary.npz"]},
    {"params": {"hiden": 3}, "data": ["binary.npz"]},
    {"params": {"learning_rate": 100.0, "optimizer": "sgd"}, "data": ["regression.npz"]},
    {"params": {}, "data": ["no-such.npz"]},
    {"params": {"dropout": 0.3}, "data": ["multiclass.npz"], "objective": BY_LOSS},
]
CODES = [0] * 9 + [64, 64, 1, 0]
EVERYTHING = [*range(len(ORDERS))]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(EVERYTHING, marks=pytest.mark.thorough),
        pytest.param(EVERYTHING[::-1], marks=pytest.mark.thorough),
        [11, 8, 6, 5],  # an error, an early stop, a full training, another task
    ],
)
def test_a_trial_leaves_the_same_whatever_its_process_trained_before(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[int]
) -> None:
    models = tmp_path / "models"
    for name, hidden in (("champion", 8), ("challenger", 12)):
        made = make_sandbox(tmp_path / name)
        write_order(made, mode="final", params={"hidden": hidden})
        assert run_here(made, monkeypatch) == 0
        shutil.copytree(made / "model", models / name)

    def trained(way: str, order: list[int], *, stays: bool) -> dict[int, dict[str, Any]]:
        folders = [set_up(job, tmp_path / way / str(i), ORDERS[i], models) for i in order]
        if stays:
            codes = train_all(COMMAND, folders, ALONE)
        else:
            codes = [code for each in folders for code in train_all(COMMAND, [each], ALONE)]
        assert codes == [CODES[i] for i in order], [(f / "err").read_text() for f in folders]
        return {i: left_by(folder) for i, folder in zip(order, folders, strict=True)}

    alone = trained("alone", sorted(chosen), stays=False)
    assert alone[6]["model/weights.pt"]
    assert alone[8]["result"]["status"] == "stopped"
    together = trained("together", chosen, stays=True)
    for i in chosen:
        for name in alone[i].keys() | together[i].keys():
            assert together[i].get(name) == alone[i].get(name), (i, ORDERS[i], name)


READER = """
import trial_imports
from trialfleet.nodes.tabular import table, train
read = table.read_table
table.read_table = lambda path: print("reads") or read(path)
train.main()
"""


def test_a_process_reads_its_jobs_table_once(job: Path, tmp_path: Path) -> None:
    """Trials see it by links of their own."""
    order = {"params": {"hidden": 4}, "data": ["binary.npz"]}
    folders = [set_up(job, tmp_path / str(i), order, tmp_path) for i in range(3)]
    assert train_all([sys.executable, "-c", READER], folders, ALONE) == [0, 0, 0]
    assert [(folder / "out").read_text() for folder in folders] == ["reads\n", "", ""]
    assert read_result(folders[0])["metrics"] == read_result(folders[2])["metrics"]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loader, "_last", {})
    folder = make_sandbox(tmp_path / "sandbox")
    monkeypatch.chdir(folder)
    return folder


def a_trial(data: str = "r.npz", mode: str = "tune") -> trial.Trial:
    return trial.Trial(Path(), {"data": [data], "mode": mode})


def test_the_last_table_alone_is_kept(sandbox: Path) -> None:
    first = loader.load_rows(a_trial(), settings.Settings(), CPU)
    (sandbox / "another name").symlink_to(sandbox / "r.npz")
    assert loader.load_rows(a_trial("another name"), settings.Settings(hidden=3), CPU) is first
    assert loader.load_rows(a_trial(mode="final"), settings.Settings(), CPU) is first
    make_table(sandbox / "s.npz", "regression")
    other = loader.load_rows(a_trial("s.npz"), settings.Settings(), CPU)
    assert other.kind == "regression"
    assert [*loader._last.values()] == [other]
    assert loader.load_rows(a_trial(), settings.Settings(), CPU) is not first


def test_another_share_of_the_rows_is_another_table(sandbox: Path) -> None:
    half = settings.Settings(tune_fraction=0.5)
    whole = loader.load_rows(a_trial(), settings.Settings(), CPU)
    part = loader.load_rows(a_trial(), half, CPU)
    assert len(part.train) == len(whole.train) // 2
    final = loader.load_rows(a_trial(mode="final"), half, CPU)
    assert torch.equal(final.train.numeric, whole.train.numeric)


@pytest.mark.parametrize("way", ["replaced", "rewritten"])
def test_a_table_that_changed_is_read_again(sandbox: Path, way: str) -> None:
    before = loader.load_rows(a_trial(), settings.Settings(), CPU)
    if way == "replaced":
        make_table(sandbox / "r.npz", "regression")
    else:
        os.utime(sandbox / "r.npz", ns=(1, 1))
    assert loader.load_rows(a_trial(), settings.Settings(), CPU) is not before


def test_loading_rows_depends_only_on_data_mode_and_tune_fraction(sandbox: Path) -> None:
    """Of a trial and its settings nothing else is looked at."""

    class Seen:
        def __init__(self, of: object) -> None:
            self.of = of
            self.names: set[str] = set()

        def __getattr__(self, name: str) -> object:
            self.names.add(name)
            return getattr(self.of, name)

    t, chosen = Seen(a_trial()), Seen(settings.Settings())
    dataset.load(t, chosen)  # type: ignore[arg-type]
    assert (t.names, chosen.names) == ({"data", "mode"}, {"tune_fraction"})


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_training_leaves_the_kept_rows_as_they_were(
    sandbox: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    make_table(sandbox / "r.npz", task)
    write_order(sandbox, params={"dropout": 0.2, "weight_decay": 0.1}, objective=BY_LOSS)
    assert run_here(sandbox, monkeypatch) == 0
    (used,) = loader._last.values()
    read = dataset.load(a_trial(), settings.Settings())
    for part in ("train", "validation", "test"):
        ours, theirs = getattr(used, part).tensors, getattr(read, part).tensors
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    assert used.numeric_scale.describe() == read.numeric_scale.describe()
    assert used.target_scale.describe() == read.target_scale.describe()
    assert used.columns == read.columns
