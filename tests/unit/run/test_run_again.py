"""`trialfleet run --run-id` of an existing run: nothing is planned or trained again."""

from __future__ import annotations

import os
import shlex
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet import Run, plan
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.plan.accelerator_and_python import PoolFacts, settle
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.control.plan.run_ids import default_folder
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.loading import load_study


@pytest.fixture
def study(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    (work / "go.sh").touch()
    return write(work, MINIMAL)


LABELS = {"models  ", "report  "}


def run_again(*options: str) -> Result:
    return CliRunner().invoke(main, ["run", "study.yaml", "--run-id", "r1", *options])


def end(run: Run) -> None:
    files = RunFolder(run.folder)
    files.dag_files.submit.touch()
    for slug in ("A", "NO"):
        write_json(files.region(slug).published, {"path": str(run.folder / "model")})


def test_a_run_that_has_ended_is_shown(study: Path) -> None:
    run = plan(study, run="r1")
    end(run)
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    shown = run_again()
    assert shown.exit_code == 0, shown.output
    assert "runs/demo/r1 already exists and is done" in shown.output
    assert "models  " in shown.output
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_the_paths_of_models_and_report_can_be_typed_in_a_shell(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := work / "my work").mkdir()
    monkeypatch.chdir(here)
    (here / "go.sh").touch()
    run = plan(write(here, MINIMAL), run="r1")
    shown = CliRunner().invoke(main, ["report", "r1"]).output
    run.report.unlink()  # this run has no results to be shown with it
    end(run)
    shown += run_again().output
    lines = [shlex.split(line) for line in shown.splitlines() if line[:8] in LABELS]
    assert lines == [["report", str(run.report)], ["models", run.study.publish]]


def test_a_run_that_was_only_planned_is_submitted(study: Path) -> None:
    plan(study, run="r1")
    shown = run_again()
    assert shown.exit_code == 1
    assert "is there already" not in shown.output  # but no HTCondor is
    assert "exists already" not in shown.output


@pytest.mark.slow
@pytest.mark.parametrize("python", ["", "python: python3\n"])
def test_settings_that_the_plan_chose_do_not_change_the_study(study: Path, python: str) -> None:
    study.write_text(MINIMAL.replace("accelerator: cpu\n", "") + python)
    pool = PoolFacts(on_this_machine=True, job_path=os.environ["PATH"])  # one of this machine's own
    settled, notes = settle(load_study(study), pool)
    assert (settled.accelerator, Path(str(settled.python)).is_absolute()) == ("cpu", True)
    end(Run(write_plan(settled, run="r1", out=default_folder(settled, "r1"), notes=notes).root))
    shown = run_again()
    assert "runs/demo/r1 already exists and is done" in shown.output, shown.stderr


def test_another_python_changes_the_study(study: Path) -> None:
    pool = PoolFacts(on_this_machine=True, job_path=os.environ["PATH"])
    settled, _ = settle(load_study(study), pool)
    end(Run(write_plan(settled, run="r1", out=default_folder(settled, "r1")).root))
    study.write_text(MINIMAL + "python: /usr/bin/another\n")
    assert "an older version of" in run_again().stderr


def test_a_changed_study_is_refused_for_an_existing_run(study: Path) -> None:
    end(plan(study, run="r1"))
    study.write_text(MINIMAL.replace("epochs: 3", "epochs: 4"))
    shown = run_again()
    assert shown.exit_code == 2
    assert "an older version of" in shown.stderr


def test_a_run_of_another_day_is_refused(study: Path) -> None:
    run = plan(study, run="r1", day=date(2026, 11, 21))
    assert run.status().again.endswith("study.yaml --check --date 2026-11-21")
    end(run)
    shown = run_again("--date", "2026-11-22")
    assert shown.exit_code == 2
    assert "is a run of the day 2026-11-21, not of 2026-11-22; choose another" in shown.stderr
    assert "already exists and is done" in run_again("--date", "2026-11-21").output
