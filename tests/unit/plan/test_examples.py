"""The examples that `trialfleet init --example` writes: each trains without changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.examples import LACKING, TRAINERS
from tests.staying import Stay
from trialfleet.files import shell_quoted
from trialfleet.nodes import trial
from trialfleet.nodes.gang.network import world_of_one
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.examples import EXAMPLES, needs, write_example
from trialfleet.workflows.study.loading import load_study

ROOT = Path(__file__).parents[3]
OTHERS = {"flights", "tabular"}  # with other regions, whose tests are elsewhere


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - OTHERS))
def test_init_writes_each_example_as_a_valid_study(name: str, tmp_path: Path) -> None:
    written = CliRunner().invoke(main, ["init", str(tmp_path / "it"), "--example", name])
    assert written.exit_code == 0, written.output
    study = load_study(tmp_path / "it/study.yaml")
    assert set(study.region_table) == {"north", "south"}
    left = {path.name for path in (tmp_path / "it").rglob("*")}
    assert not left & {"__init__.py", "__pycache__"}
    page = (ROOT / "docs/trainers.md").read_text()
    assert f"--example {name}" in page or name == "first"


def test_an_empty_folder_is_filled_even_if_it_is_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    written = CliRunner().invoke(main, ["init", "."])
    assert written.exit_code == 0, written.output
    assert tmp_path.stat().st_ino == before, "a shell in this folder stays in it"
    assert {path.name for path in tmp_path.iterdir()} == {"points", "study.yaml", "train.py"}
    assert load_study(tmp_path / "study.yaml").regions
    assert CliRunner().invoke(main, ["init", "."]).exit_code == 2


def test_a_folder_with_only_what_a_killed_init_left_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / ".init-abc" / "example").mkdir(parents=True)
    written = CliRunner().invoke(main, ["init", str(tmp_path)])
    assert written.exit_code == 0, written.output


@pytest.mark.parametrize(
    ("name", "absent", "packages"),
    [
        ("sklearn", ("joblib", "sklearn"), "scikit-learn"),
        ("lightgbm", ("lightgbm", "numpy"), "lightgbm numpy"),
        ("ddp", ("torch",), "torch"),
        ("pipeline", ("torch",), "torch"),
        ("notebook", ("ipykernel",), "notebook"),
    ],
)
def test_init_says_what_an_example_needs_that_is_not_there(
    name: str,
    absent: tuple[str, ...],
    packages: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
        assert python == sys.executable
        return tuple(module for module in modules if module in absent)

    monkeypatch.setattr(needs, "missing_modules", lacking)
    written = CliRunner().invoke(main, ["init", str(tmp_path / "it"), "--example", name])
    advice = f"{shell_quoted(Path(sys.executable))} -m pip install {packages} ("
    assert advice in written.output
    assert written.output.index(advice) < written.output.index("next: ")
    monkeypatch.setattr(needs, "missing_modules", lambda *_: ())
    written = CliRunner().invoke(main, ["init", str(tmp_path / "that"), "--example", name])
    assert "it needs" not in written.output


def test_init_says_that_r_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    written = CliRunner().invoke(main, ["init", str(tmp_path / "it"), "--example", "r"])
    assert "the example needs R with jsonlite, which is not installed here: apt-get install" in (
        written.output
    )


def train(folder: Path, name: str, **changes: Any) -> dict[str, float]:
    """Train an example's north with its default settings, as a trial's sandbox has it."""
    metrics: dict[str, float] = result_of(folder, name, **changes)["metrics"]
    return metrics


def result_of(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Return what an example's trainer leaves of a trial of north."""
    command, environment = set_up(folder, name, **changes)
    box = folder / "box"
    done = subprocess.run(command, cwd=box, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((box / "result.json").read_text())
    assert result["status"] == "complete"
    return result


def set_up(folder: Path, name: str, **changes: Any) -> tuple[list[str], dict[str, str]]:
    """Make the folder `box` of a trial of north; return command and environment of its trainer."""
    study = load_study(write_example(name, folder / "example"))
    space = study.search_space
    box = folder / "box"
    (box / "model").mkdir(parents=True, exist_ok=True)
    data = study.data_paths("north")[:1]
    for file in (*data, *study.trainer.files):  # type: ignore[union-attr]
        shutil.copy(folder / "example" / file, box)
    order = {
        "params": space.trial_params(space.defaults()) | changes.pop("params", {}),
        "objective": study.objective.model_dump(),
        "data": [Path(file).name for file in data],
        "region": "north",
        "seed": 2**31 - 1,  # the greatest
        "mode": "tune",
        **changes,
    }
    (box / "trial.json").write_text(json.dumps(order, indent=1))
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    modules = {"PYTHONPATH": str(Path(trial.__file__).parent)}
    environment = {**os.environ, **modules, "PATH": python, "TRIALFLEET_TRIAL": "trial.json"}
    command = study.trainer.command  # type: ignore[union-attr]
    if study.has_gangs:  # a world of one
        environment |= world_of_one()
    shutil.rmtree(folder / "example")
    return command, environment


BETTER = {  # settings with which the test error is less than with the defaults
    "sklearn": {"model": "forest", "depth": 5, "trees": 100},
    "lightgbm": {"leaf_size": 5, "learning_rate": 0.05},
    "shell": {"neighbours": 5, "power": 1.0},
    "r": {"span": 0.5, "degree": 2},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAINERS)
def test_each_trainer_trains_and_tuning_improves_its_result(name: str, tmp_path: Path) -> None:
    if name in LACKING:
        pytest.skip(LACKING[name])
    default = train(tmp_path, name)
    assert default.keys() == {"val_error", "test_error"}
    assert list((tmp_path / "box/model").iterdir()) == []
    better = train(tmp_path, name, mode="final", params=BETTER[name])
    assert better["test_error"] < default["test_error"] < 10
    assert list((tmp_path / "box/model").iterdir())


@pytest.mark.slow
def test_the_ddp_example_trains_with_one_rank(tmp_path: Path) -> None:
    trained = train(tmp_path, "ddp", mode="final", params={"steps": 30})
    assert trained.keys() == {"val_error", "test_error"}
    assert [path.name for path in (tmp_path / "box/model").iterdir()] == ["network.pt"]


OTHER = {  # settings with which each trains something else
    "first": {"degree": 2},
    "notebook": {"x": 0.25},
    "sklearn": {"model": "forest", "depth": 5, "trees": 20},
    "lightgbm": {"leaf_size": 5, "learning_rate": 0.05},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["first", "notebook"]
    + [pytest.param(n, marks=pytest.mark.thorough) for n in ("sklearn", "lightgbm")],
)
def test_trials_that_share_a_python_trainer_give_the_results_of_new_processes(
    name: str, tmp_path: Path
) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"params": OTHER[name]},
        {"mode": "final"},
        {"seed": 1, "params": OTHER[name]},
    ]
    alone = [result_of(tmp_path / f"alone{i}", name, **each) for i, each in enumerate(changes)]
    for i, each in enumerate(changes):
        command, environment = set_up(tmp_path / f"together{i}", name, **each)
    boxes = [tmp_path / f"together{i}/box" for i in range(len(changes))]
    stay = Stay(command, boxes[0], environment)
    for i, box in enumerate(boxes):
        if i:
            stay.give(box)
        assert stay.read_end() == {"code": 0}, (box / "err").read_text()
    assert stay.leave() == 0
    together = [json.loads((box / "result.json").read_text()) for box in boxes]
    assert [each["metrics"] for each in together] == [each["metrics"] for each in alone]
    assert together[0]["metrics"] != together[1]["metrics"]
    assert [*(boxes[2] / "model").iterdir()]


CONSTANT = {  # settings with which each has the mean for all points, or nearly
    "first": {"degree": 0},
    "sklearn": {"model": "ridge", "degree": 1, "alpha": 1e9},
    "lightgbm": {"leaf_size": 100},
    "shell": {"neighbours": 60, "power": 0.0},
    "r": {"span": 100.0, "degree": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["first", "shell"]
    + [pytest.param(n, marks=pytest.mark.thorough) for n in ("sklearn", "lightgbm", "r")],
)
def test_each_trainer_measures_published_models_where_a_study_has_a_gate(
    name: str, tmp_path: Path
) -> None:
    if name in LACKING:
        pytest.skip(LACKING[name])
    trained = train(tmp_path, name, mode="final")
    shutil.copytree(tmp_path / "box/model", tmp_path / "box/champion")
    train(tmp_path, name, mode="final", params=CONSTANT[name])
    shutil.copytree(tmp_path / "box/model", tmp_path / "box/challenger")
    names = {each: each for each in ("champion", "challenger")}
    found = result_of(tmp_path, name, mode="evaluate", models=names)["models"]
    assert found["champion"]["metrics"] == pytest.approx(trained)
    errors = {each: model["metrics"]["test_error"] for each, model in found.items()}
    assert errors["champion"] < errors["challenger"]
    assert errors["baseline"] == pytest.approx(errors["challenger"], rel=0.05)  # a constant as well
    for each, error in errors.items():
        losses = [*map(float, (tmp_path / f"box/losses/{each}.txt").read_text().split())]
        assert len(losses) == 30
        assert sum(losses) / len(losses) == pytest.approx(error)


def test_shell_reads_trial_json_as_a_run_writes_it(tmp_path: Path) -> None:
    order = {"params": {"neighbours": 3, "power": 0.0}, "mode": "tune", "data": ["a b.csv"]}
    script = (EXAMPLES["shell"] / "train.sh").read_text()
    reader = script[script.index("value()") : script.index("data=")]
    for indent in (None, 1):
        (tmp_path / "trial.json").write_text(json.dumps(order, indent=indent))
        show = "for name in neighbours power mode data; do value $name; echo; done"
        done = subprocess.run(
            ["sh", "-euc", reader + show],
            cwd=tmp_path,
            env={**os.environ, "TRIALFLEET_TRIAL": "trial.json"},
            capture_output=True,
            text=True,
        )
        found = [line for line in done.stdout.splitlines() if line]
        assert found == ["3", "0.0", "tune", "a b.csv"], done.stderr
