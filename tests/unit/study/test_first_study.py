"""The study and the trainer that `trialfleet init` writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trialfleet import Run
from trialfleet.nodes import trial
from trialfleet.workflows import examples
from trialfleet.workflows.cli import study_commands
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_summary
from trialfleet.workflows.control.plan import run_folder_writer as plan
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.spec import Study

FIRST = Path(str(resources.files("trialfleet.templates.init")))
FLIGHTS = Path(str(resources.files("trialfleet.workflows.examples.flights")))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    shutil.copytree(FIRST, tmp_path / "first")
    return load_study(tmp_path / "first/study.yaml")


def train(folder: Path, study: Study, region: str = "north", **changes: Any) -> int:
    """Run the trainer as a trial of the study with the default settings."""
    space = study.search_space
    order = {
        "params": space.trial_params(space.defaults()) | changes.pop("params", {}),
        "objective": study.objective.model_dump(),
        "data": study.data_paths(region),
        **changes,
    }
    (folder / "trial.json").write_text(json.dumps(order))
    (folder / "model").mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(trial.__file__).parent)}
    program = FIRST / "train.py"
    return subprocess.run([sys.executable, program], cwd=folder, env=environment).returncode


def metrics(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return found


def test_the_first_study_is_valid_and_its_trainer_trains(tmp_path: Path, study: Study) -> None:
    assert set(study.region_table) == {"north", "south"}
    assert train(tmp_path, study) == 0
    default = metrics(tmp_path)
    assert {study.objective.metric, study.compared_metric} == set(default)
    assert train(tmp_path, study, params={"learning_rate": 0.3, "degree": 5}) == 0
    assert metrics(tmp_path)["test_error"] < 0.5 * default["test_error"]  # tuning has a point


def test_settings_that_diverge_are_reported_as_failed(tmp_path: Path, study: Study) -> None:
    assert train(tmp_path, study, params={"learning_rate": 50.0}) == 64


@pytest.mark.slow
def test_the_first_trainer_continues_after_interruptions_to_the_same_model(
    tmp_path: Path, study: Study
) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    whole.mkdir()
    pieces.mkdir()
    params = {"method": "momentum", "momentum": 0.5, "steps": 4, "checkpoint_seconds": 0}
    assert train(whole, study, mode="final", params=params | {"checkpoint_seconds": 9}) == 0
    codes = [train(pieces, study, mode="final", params=params) for _ in range(5)]
    assert codes == [85, 85, 85, 85, 0]
    assert (whole / "model/weights.json").read_bytes() == (
        pieces / "model/weights.json"
    ).read_bytes()


@pytest.mark.slow
def test_the_tabular_example_brings_its_data_and_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = []
    for name in ("a", "b"):
        result = CliRunner().invoke(main, ["init", str(tmp_path / name), "--example", "tabular"])
        assert result.exit_code == 0
        made.append((tmp_path / name / "data/lyon.csv").read_bytes())
    assert made[0] == made[1]
    assert "3 files of 2000 parcels" in capfd.readouterr().out
    study = load_study(tmp_path / "a/study.yaml")
    folder = plan.write_plan(study, run="r1", out=tmp_path / "run")
    found = plan_summary(Run(folder.root))["regions"]
    assert [region["name"] for region in found] == ["lyon", "porto", "turin"]
    assert all(region["table"]["rows"] == 2000 for region in found)


def test_an_example_whose_data_cant_be_made_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not examples.prepare_example(tmp_path)
    monkeypatch.setattr(study_commands, "prepare_example", lambda _folder: False)
    result = CliRunner().invoke(main, ["init", str(tmp_path / "f"), "--example", "flights"])
    assert result.exit_code == 0
    assert "then: " in result.output
    assert "f/prepare.py\nnext: trialfleet " in result.output


@pytest.mark.parametrize("is_named", [True, False])
def test_init_ends_with_the_commands_to_start_a_missing_pool_and_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no HTCondor of the machine's own
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    if is_named:
        monkeypatch.setenv("CONDOR_CONFIG", "/etc/condor/condor_config")
    run = "trialfleet run 'my study/study.yaml'"
    ends = [f"next: {run}"] if is_named else ["next: trialfleet pool up", f"then: {run}"]
    lines = CliRunner().invoke(main, ["init", "my study"]).output.splitlines()
    assert lines[-len(ends) :] == ends
    assert sum(line.startswith(("next:", "then:")) for line in lines) == len(ends)


@pytest.mark.parametrize("name", ["study.yaml", "destinations.yaml"])
def test_the_flights_studies_are_valid(name: str, tmp_path: Path) -> None:
    shutil.copy(FLIGHTS / name, tmp_path)
    (tmp_path / "data").mkdir()
    for region in ("EWR", "JFK", "LGA", "dest-ORD", "dest-SFO"):
        (tmp_path / f"data/{region}.npz").touch()
    study = load_study(tmp_path / name)
    regions = {"EWR", "JFK", "LGA"} if name == "study.yaml" else {"ORD", "SFO"}
    assert set(study.region_table) == regions
