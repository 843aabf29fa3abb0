"""The full training of the best settings, and its publication."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.report.report_studies import text_of
from tests.unit.scripts import Scripts
from trialfleet import RunState
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.watching import show_end
from trialfleet.workflows.control.scripts.publish_program import publish_region
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.slow


def test_a_failed_attempt_of_the_full_training_names_its_cause(scripts: Scripts) -> None:
    scripts.train(0.5, 0.5, 0.5)
    scripts.ask_best()
    best = scripts.best
    best.err.write_text("no room for the weights")
    for _ in range(2):
        assert scripts.tell_best(1).exit_code == EXITS["retry"]
    (region,) = scripts.run.status().regions
    words = "an attempt failed: exit code 1: no room for the weights"
    assert str(region.cause) == f"{words}; see {best.err}"
    result = scripts.tell_best(1, retry=1)
    assert result.exit_code == EXITS["stop"]
    assert f"; see {best.err}" in result.message


def test_the_best_settings_are_trained_in_full_and_published(scripts: Scripts) -> None:
    scripts.train(0.5, 0.1, 0.3)
    scripts.train_best()
    content = json.loads(scripts.best.trial_json.read_text())
    assert (content["mode"], content["trial"]) == ("final", 1)
    empty = scripts.tell_best(0)
    assert empty.exit_code == EXITS["stop"]
    assert "nothing in model/" in empty.message
    (scripts.best.model / "weights").touch()
    assert scripts.tell_best(0).exit_code == EXITS["done"]
    for _ in range(2):
        assert publish_region(scripts.folder, "A") == EXITS["done"]
    settings = scripts.run.best()[0]
    assert (settings.value, settings.final) == (0.1, {"loss": 0.05})


def publish_one(scripts: Scripts) -> None:
    """Train one trial and the best settings, and publish the model."""
    scripts.train(0.5)
    scripts.train_best()
    (scripts.best.model / "weights").touch()
    assert publish_region(scripts.folder, "A") == EXITS["done"]


def test_a_run_that_publishes_late_says_why_its_model_is_not_the_latest(
    make_run: MakeRun, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monday, tuesday = Scripts(make_run(run="z")), Scripts(make_run(run="a"))
    publish_one(tuesday)
    publish_one(monday)
    latest = work / "models" / "demo" / "A" / "latest"
    assert latest.readlink().name == "a"
    status = monday.status
    assert "stays with a, which was planned later" in (status.regions[0].not_latest or "")
    with pytest.raises(SystemExit):
        show_end(monday.run, replace(status, state=RunState.DONE))
    assert "A: latest stays with a, which was planned later" in capsys.readouterr().out
    assert "planned later" in read_report(monday.folder).to_json()
    assert "planned later" in text_of(read_report(monday.folder))
    done = CliRunner().invoke(main, ["promote", str(work / "models" / "demo" / "A" / "z")])
    assert (done.exit_code, done.output) == (0, "demo/A: latest is z (was a)\n")
    assert monday.status.regions[0].not_latest is None
    assert publish_region(tuesday.folder, "A") == EXITS["done"]  # DAGMan may run it again
    assert latest.readlink().name == "z"


def test_a_model_that_cant_be_published_stops_its_region_and_says_why(
    scripts: Scripts, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts.train(0.5, 0.5, 0.5)
    scripts.train_best()
    (scripts.best.model / "metrics.json").touch()
    assert publish_region(scripts.folder, "A") == EXITS["stop"]
    assert "has a name that trialfleet itself uses" in scripts.stop_reason
    assert scripts.stop_reason in capsys.readouterr().out


def test_a_full_training_waits_for_missing_data(make_run: MakeRun, work: Path) -> None:
    (work / "A.csv").touch()
    scripts = Scripts(make_run(budget={"trials": 3, "lanes": 1}, data="A.csv"))
    scripts.train(0.5)
    (work / "A.csv").rename(work / "elsewhere")
    reply = scripts.ask_best()
    assert reply.exit_code == EXITS["defer"]
    gone = f"the data can't be read: {work / 'A.csv'}: No such file or directory"
    assert reply.message == f"A.best: {gone}; it will be retried"
    (work / "elsewhere").rename(work / "A.csv")
    assert scripts.ask_best().exit_code == EXITS["done"]


def test_a_region_without_a_complete_trial_has_no_full_training(scripts: Scripts) -> None:
    reply = scripts.ask_best()
    assert reply.exit_code == EXITS["stop"]
    assert "no trial completed" in reply.message
