"""Failed attempts: their causes in the views, and when they stop a region."""

from __future__ import annotations

import pytest

from tests.conftest import MakeRun
from tests.unit.report.report_studies import text_of
from tests.unit.scripts import Scripts
from tests.unit.terminal import printed
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.terminal.status_view import run_view

pytestmark = pytest.mark.slow


def test_a_failed_attempt_is_shown_until_its_trial_completes(
    scripts: Scripts,
) -> None:
    scripts.ask("A.l1.t01")
    for _ in range(2):  # DAGMan was lost after the first
        assert scripts.fail("A.l1.t01", retry=0) == EXITS["retry"]
    run = scripts.run
    (region,) = run.status().regions
    log = scripts.trial("A.l1.t01").err
    assert str(region.cause) == f"an attempt failed: exit code 1: no; see {log}"
    (record,) = run.trials()
    assert (record.state, record.error) == ("unknown", "exit code 1: no")  # no HTCondor is asked
    assert f"A: {region.cause}" in printed(run_view(run.status()), 400)
    scripts.finish("A.l1.t01", retry=1)
    (record,) = run.trials()
    assert (record.state, record.error) == ("complete", None)
    assert run.status().to_json()["regions"][0]["cause"]["attempts"] == 1


def test_the_notice_says_that_all_attempts_fail_alike(make_run: MakeRun) -> None:
    """They are retried all the same: one sick machine may have failed them all."""
    scripts = Scripts(make_run(budget={"trials": 9, "lanes": 1}, retries=3))
    scripts.ask("A.l1.t01")
    for retry in range(3):
        assert scripts.tell("A.l1.t01", 1, retry=retry, retries=3) == EXITS["retry"]
    notice = str(scripts.run.status().notice)
    assert "no trial has completed: all attempts so far failed alike" in notice
    scripts.fail("A.l1.t01", retry=3, message="something else")
    assert "alike" not in str(scripts.run.status().notice)


def test_a_trainer_that_cant_be_started_stops_its_region_after_three_trials(
    make_run: MakeRun,
) -> None:
    scripts = Scripts(make_run(budget={"trials": 100, "lanes": 1}, retries=2))
    words = "condor_exec.exe: 6: exec: fit: not found"
    answers = []
    for number in range(1, 4):
        node = f"A.l1.t00{number}"
        scripts.ask(node)
        answers.append(scripts.fail(node, retry=0, code=127, message=words))
    assert answers == [EXITS["done"], EXITS["done"], EXITS["stop"]]
    assert scripts.stop_reason.startswith(
        f"the trainer can't be started: exit code 127: {words}; see "
    )
    assert scripts.stop_reason.endswith("/err")


def test_trials_that_cant_be_started_stop_no_region_in_which_one_completed(
    make_run: MakeRun,
) -> None:
    scripts = Scripts(make_run(budget={"trials": 9, "lanes": 1, "failures": 9}, retries=2))
    scripts.train(0.5)
    for number in range(2, 7):
        scripts.ask(f"A.l1.t0{number}")
        assert scripts.fail(f"A.l1.t0{number}", retry=0, code=127) == EXITS["done"]


def test_the_report_names_the_cause_and_its_file(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.fail("A.l1.t01", retry=0, message="ModuleNotFoundError: No module named 'x'")
    report = read_report(scripts.folder)
    (region,) = report.regions
    assert region.cause is not None
    assert "ModuleNotFoundError: No module named 'x'; see " in str(region.cause)
    assert "ModuleNotFoundError" in text_of(report)


def test_a_job_that_htcondor_refused_is_no_failure_of_its_trial(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.tell("A.l1.t01", -1001, retry=1) == EXITS["retry"]
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    scripts.train(0.5, 0.5, 0.5)
    assert scripts.ask_best().exit_code == EXITS["done"]
    assert scripts.tell_best(-1001, retry=1).exit_code == EXITS["retry"]
    assert not scripts.files.stopped.exists()


def test_too_many_failures_stop_the_region_with_a_reason(make_run: MakeRun) -> None:
    scripts = Scripts(make_run(budget={"trials": 5, "lanes": 1, "failures": 1}))
    for number in (1, 2):
        scripts.ask(f"A.l1.t0{number}")
    assert scripts.tell("A.l1.t01", 1, retry=1) == EXITS["done"]
    assert scripts.tell("A.l1.t02", 1, retry=1) == EXITS["stop"]
    assert scripts.ask("A.l1.t03") == EXITS["stop"]
    assert scripts.ask_best().exit_code == EXITS["stop"]
    assert "failed for good" in scripts.files.stopped.read_text()
