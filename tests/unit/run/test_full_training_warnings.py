"""Notes on validation and test losses that are far apart, and differences by chance."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.stored_runs import stored, stored_trial, turns
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.full_training_warnings import holdout_warning, noise_factor
from trialfleet.workflows.status.status_reader import StatusReader

TABULAR: dict[str, Any] = {
    "trainer": "tabular",
    "target": "y",
    "objective": {"metric": "val_rmse", "direction": "minimize"},
    "search_space": {"learning_rate": {"type": "float", "low": 1e-3, "high": 1e-1, "log": True}},
}


@pytest.mark.parametrize("rows", [10, 30, 100, 1000])
@pytest.mark.parametrize("task", ["regression", "binary"])
def test_differences_by_chance_are_reported_in_less_than_1_percent(task: str, rows: int) -> None:
    chance = np.random.default_rng(1)
    draws = (2000, rows)
    if task == "regression":  # errors with longer tails than normal ones
        losses = [chance.standard_t(6, draws) ** 2 for _ in range(2)]
    else:  # a classifier that is right in nine of ten rows
        losses = [np.where(chance.random(draws) < 0.9, 0.05, 2.0) for _ in range(2)]
    first, second = (each.mean(axis=1) for each in losses)
    noted = np.maximum(first / second, second / first) > noise_factor(task, rows, rows)
    assert noted.mean() < 0.01


@pytest.fixture
def files(make_run: MakeRun, tmp_path: Path) -> RunFolder:
    lines = [f"{x * 37 % 101 / 7},{x * 2}" for x in range(200)]
    (tmp_path / "A.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    run = make_run(data=str(tmp_path / "A.csv"), publish="models", **TABULAR)
    return RunFolder(run.folder)


def warning(files: RunFolder, **metrics: float) -> str | None:
    from trialfleet.workflows.study.frozen import load_frozen

    region = files.region("A")
    region.best.root.mkdir(exist_ok=True)
    write_json(region.best.result, {"status": "complete", "metrics": metrics})
    return holdout_warning(region, load_frozen(files.study).study)


def test_a_factor_beyond_chance_is_reported_with_its_usual_cause(files: RunFolder) -> None:
    assert warning(files, val_rmse=405, test_rmse=500, val_loss=0.1, test_loss=0.15) is None
    assert warning(files, val_rmse=405, test_rmse=1595) is None, "nothing tells the losses"
    found = warning(files, val_rmse=405, test_rmse=1595, val_loss=0.1, test_loss=1.55)
    assert found is not None
    assert found.startswith("val_rmse 405 and test_rmse 1595 differ by more than chance explains")
    assert "(their losses by a factor of 15.5); the usual cause: a few unusual test rows" in found
    other = warning(files, val_rmse=1595, test_rmse=405, val_loss=1.55, test_loss=0.1)
    assert other is not None
    assert "a few unusual validation rows" in other
    region = files.region("A")
    region.gate.losses.mkdir(parents=True)
    (region.gate.losses / "challenger.txt").write_text("0.1\n" * 20 + "30\n")
    found = warning(files, val_rmse=405, test_rmse=1595, val_loss=0.1, test_loss=1.55)
    assert str(found).endswith("one test row makes up 94% of the loss; check whether it is right")


def test_status_why_and_the_report_show_the_factor(files: RunFolder, tmp_path: Path) -> None:
    region = files.region("A")
    found = warning(files, val_rmse=405, test_rmse=1595, val_loss=0.1, test_loss=1.55)
    assert found is not None
    model = tmp_path / "models" / "demo" / "A" / "r1"
    model.mkdir(parents=True)
    write_json(region.published, {"path": str(model)})
    files.dag_files.submit.touch()

    def said(*words: str) -> str:
        return " ".join(CliRunner().invoke(main, [*words, str(files.root)]).output.split())

    assert found in said("status")
    assert found in said("report")
    assert found in said("why", "A", "--run")
    assert found in said("why", "--run")
    page = files.report_page.read_text()
    assert "Needs attention" in page
    assert "val_rmse 405 and test_rmse 1595 differ by more than chance" in page


@pytest.mark.parametrize(
    ("direction", "final", "results", "is_warned"),
    [
        ("minimize", 999.0, (0.1, 0.2, 1.7), True),
        ("minimize", 1.8, (0.1, 0.2, 1.7), False),  # perhaps by chance
        ("minimize", -999.0, (0.1, 0.2, 1.7), False),
        ("maximize", -1.6, (0.1, 0.2, 1.7), True),
        ("minimize", 999.0, (0.1, 0.2), False),
        ("minimize", 999.0, (0.1, 0.1, 0.1), False),
    ],
)
def test_a_full_training_far_worse_than_all_trials_is_reported(
    make_run: MakeRun,
    direction: str,
    final: float,
    results: tuple[float, ...],
    is_warned: bool,
) -> None:
    objective = {"metric": "loss", "direction": direction}
    run = make_run(publish="models", objective=objective, budget={"trials": len(results)})
    with stored(run) as study:
        for (node, start), result in zip(
            turns(study.graph["A"], len(results), datetime(2026, 11, 20, tzinfo=UTC)),
            results,
            strict=True,
        ):
            study.add("A", stored_trial(node, start, result))
    files = RunFolder(run.folder)
    region = files.region("A")
    write_json(region.best.result, {"status": "complete", "metrics": {"loss": final}})
    write_json(region.published, {"path": str(files.root / "model")})
    files.dag_files.submit.touch()
    (status,) = StatusReader(files).read().regions
    found = status.holdout or ""
    assert found.startswith(f"the full training's loss {final:g} is far worse") == is_warned, found


def test_why_shows_the_rejected_and_the_worse_models_of_a_finished_run(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(regions=["A", "B", "C"], publish="models", gate={"tolerance": 10})
    files = RunFolder(run.folder)
    files.dag_files.submit.touch()
    whys = {"A": "loss 12, champion 4: within the tolerance of 10", "B": "loss 9, champion 0.1"}
    for name in ("A", "B", "C"):
        model = tmp_path / "models" / "demo" / name / "r1"
        model.mkdir(parents=True)
        kept = "kept r0: loss 9, champion 0.1; to change that: trialfleet promote x"
        record = {"path": str(model)} | ({"not_latest": kept} if name == "B" else {})
        write_json(files.region(name).published, record)
        sides = {"champion": ("r0", 4.0), "challenger": ("r1", 12.0 if name == "A" else 3.0)}
        verdict = {
            "verdict": "kept" if name == "B" else "promoted",
            "why": whys.get(name, "loss 3, champion 4"),
            "metric": "loss",
            **{side: {"run": r, "metrics": {"loss": v}} for side, (r, v) in sides.items()},
            "baseline": None,
            "interval": None,
        }
        write_json(files.region(name).verdict, verdict)
    lines = CliRunner().invoke(main, ["why", "--run", str(run.folder)]).output.splitlines()
    assert lines[0].endswith("no problem: the run is done")
    assert lines[1].startswith("A: the gate let a model pass that measured worse")
    assert (
        lines[2]
        == "B: the gate kept the current model (run r0) instead of this one: loss 9, champion 0.1"
    )
    assert lines[3].startswith("next: ")
    assert lines[3].endswith(f"trialfleet promote {tmp_path}/models/demo/B/r1")
    assert len(lines) == 4
