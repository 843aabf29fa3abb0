"""Removing runs, and runs that have nothing left to resume. No pool needed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner, Result

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts
from trialfleet import InputError, Run, RunState
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.dagman import repair
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.useless_resume import GAVE_UP, NO_MODEL
from trialfleet.workflows.views.terminal.status_view import next_steps


def ended(run: Run) -> Run:
    """Make a run look submitted, with all regions abandoned."""
    run.folder.joinpath("study.dag.condor.sub").touch()
    for region in run.folder.glob("regions/*"):
        region.joinpath("stopped.json").write_text(json.dumps({"reason": "no trial can succeed"}))
    return run


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_removed_run_leaves_no_folder(make_run: MakeRun, work: Path) -> None:
    folder = make_run().folder
    (folder.parent / ".r0.removed").mkdir()  # of a removal that was killed
    result = invoke("remove", folder, "--yes")
    assert result.exit_code == 0, result.output
    assert "demo/r1  planned" in result.output
    assert list((work / "runs").iterdir()) == []


def test_removing_asks_first(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run().folder
    monkeypatch.setattr("trialfleet.workflows.cli.arguments.sys", SimpleNamespace(stdin=Terminal()))
    assert CliRunner().invoke(main, ["remove", str(folder)], input="n\n").exit_code == 1
    assert folder.exists()
    assert CliRunner().invoke(main, ["remove", str(folder)], input="y\n").exit_code == 0
    assert not folder.exists()


class Terminal:
    """A standard input that is a terminal, for `confirm`."""

    def isatty(self) -> bool:
        return True


def test_remove_refuses_a_run_that_may_be_under_way_before_it_asks(make_run: MakeRun) -> None:
    folder = make_run().folder  # its queue cannot be read, so it may be under way
    RunFolder(folder).dag_files.submit.touch()
    result = CliRunner().invoke(main, ["remove", str(folder)], input="y\n")
    assert result.exit_code == 2
    assert "a run can only be removed once it has ended" in result.stderr
    assert "Remove" not in result.output


def test_without_a_terminal_remove_points_to_yes(make_run: MakeRun) -> None:
    folder = make_run().folder
    result = CliRunner().invoke(main, ["remove", str(folder)], input="y\n")
    assert result.exit_code == 2
    assert "there is no terminal to ask in; to remove, give --yes" in result.stderr
    assert folder.exists()


def test_all_planned_runs_are_removed_and_no_other(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    submitted = ended(make_run(run="r1")).folder
    make_run(run="r2")
    assert "removed 1 run" in invoke("remove", "--planned", "--yes").output
    assert list((work / "runs").iterdir()) == [submitted]
    assert "removed 0 run" in invoke("remove", "--planned", "--yes").output


def test_planned_runs_that_cant_be_opened_are_passed_over(
    make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    make_run(run="r1")
    make_run(run="r2").folder.rename(work / "runs/moved")
    (work / "runs/broken").mkdir()
    (work / "runs/broken/study.json").write_text("a: [")
    result = invoke("remove", "--planned", "--yes")
    assert result.exit_code == 0, result.output
    assert "removed 1 run" in result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("not removed: ") for line in lines)
    assert "works only there" in result.stderr
    assert "not JSON" in result.stderr
    assert {path.name for path in (work / "runs").iterdir()} == {"moved", "broken"}
    assert invoke("remove", "runs/moved", "--planned", "--yes").exit_code == 2, "it was named"


def test_a_run_that_may_be_under_way_stays(make_run: MakeRun) -> None:
    run = make_run()
    (run.folder / "study.dag.condor.sub").touch()  # and no queue can be asked
    result = invoke("remove", run.folder, "--yes")
    assert result.exit_code == 2
    assert "is unknown" in result.output
    assert run.folder.exists()


def test_remove_without_a_run_points_to_planned(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    result = invoke("remove")
    assert result.exit_code == 2
    assert "--planned" in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("empty_queue")
def test_a_resume_that_would_start_nothing_is_refused_with_the_reason(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = create_autospec(repair.submit, return_value="1")
    monkeypatch.setattr(repair, "submit", submit)
    run = make_run(budget={"trials": 3, "lanes": 1, "failures": 1})
    ended(run)
    assert run.status().state is RunState.FAILED
    assert run.resume() == "1", "all of its trials are left to try"
    scripts = Scripts(run)
    for node in ("A.l1.t01", "A.l1.t02"):
        scripts.ask(node)
        scripts.fail(node, retry=2, message=node)  # for good
    ended(run)
    with pytest.raises(InputError, match=r"no region can continue:\n  A: 2 trials failed for good"):
        run.resume()
    submit.assert_called_once()
    assert not any("resume" in line for line in next_steps(run.status()))


@pytest.mark.usefixtures("empty_queue")
@pytest.mark.parametrize(
    ("error", "is_hopeless"),
    [
        ("exit code 1: KeyError: 'lat'", True),
        ("the result has no number val_rmse", True),
        ("Transfer input files failure: no such file A.csv", False),
        ("exit code 127: python4: not found", False),
        ("exit code 1: OSError: [Errno 28] No space left on device", False),
    ],
)
def test_an_abandoned_run_resumes_only_if_the_cause_was_outside_of_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, error: str, is_hopeless: bool
) -> None:
    monkeypatch.setattr(repair, "submit", create_autospec(repair.submit, return_value="1"))
    run = make_run()
    ended(run)
    stopped = RunFolder(run.folder).region("A").stopped
    stopped.write_text(json.dumps({"reason": f"{GAVE_UP}{error}; see err"}))
    if not is_hopeless:
        assert run.resume() == "1"
        return
    result = invoke("resume", run.folder)
    assert result.exit_code == 2
    assert f"A: {GAVE_UP}{error}" in result.output
    assert "start a new run: trialfleet run STUDY --check" in result.output


@pytest.mark.usefixtures("empty_queue")
def test_a_run_whose_trainer_leaves_no_model_has_nothing_left(make_run: MakeRun) -> None:
    run = make_run()
    ended(run)
    RunFolder(run.folder).region("A").stopped.write_text(json.dumps({"reason": NO_MODEL}))
    with pytest.raises(InputError, match="no region can continue:\n  A: the full training left no"):
        run.resume()
    assert not any("resume" in line for line in next_steps(run.status()))


@pytest.mark.slow
@pytest.mark.usefixtures("empty_queue")
def test_a_region_without_a_result_and_without_trials_has_nothing_left(make_run: MakeRun) -> None:
    run = make_run(budget={"trials": 1, "lanes": 1, "failures": 1})
    scripts = Scripts(run)
    scripts.ask("A.l1.t01")
    scripts.fail("A.l1.t01", retry=2)
    ended(run)
    with pytest.raises(InputError, match="A: no trial completed, and the budget of 1 trial"):
        run.resume()
