"""The scripts before and after a trial's job: their answers and the files they leave."""

from __future__ import annotations

import errno
import json
import os
import unittest.mock

import pytest

from tests.unit.run.scripts.conftest import JOB_LOG
from tests.unit.scripts import Scripts
from trialfleet import untrusted_files
from trialfleet.workflows.facts import disk_space
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.slow


def test_asking_writes_the_trials_parameters_and_submit_file(scripts: Scripts) -> None:
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    content = json.loads(scripts.trial("A.l1.t01").trial_json.read_text())
    assert content["params"] == {"x": 0.5}  # the default settings come first
    names = ("region", "node", "trial", "mode")
    assert [content[name] for name in names] == ["A", "A.l1.t01", 0, "tune"]
    assert "queue" in scripts.trial("A.l1.t01").submit.read_text().split("\n")


def test_a_finished_trial_is_not_trained_again(scripts: Scripts) -> None:
    scripts.train(0.5)
    before = scripts.trial("A.l1.t01").result.read_text()
    assert scripts.ask("A.l1.t01") == EXITS["skip"]
    assert scripts.trial("A.l1.t01").result.read_text() == before


def test_asking_twice_gives_the_same_parameters_and_removes_an_attempts_files(
    scripts: Scripts,
) -> None:
    scripts.ask("A.l1.t01")
    first = scripts.trial("A.l1.t01").trial_json.read_bytes()
    scripts.trial("A.l1.t01").result.write_text('{"status": "complete"}')
    (scripts.trial("A.l1.t01").checkpoint / "state").touch()
    scripts.ask("A.l1.t01")
    assert scripts.trial("A.l1.t01").trial_json.read_bytes() == first
    assert scripts.trial("A.l1.t01").result.read_text() == ""
    assert list(scripts.trial("A.l1.t01").checkpoint.iterdir()) == []


def test_the_first_result_of_a_trial_is_recorded(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.finish("A.l1.t01", loss=0.5) == EXITS["done"]
    assert scripts.finish("A.l1.t01", loss=0.1) == EXITS["done"]
    assert [t.value for t in scripts.run.trials()] == [0.5]


def test_a_failed_attempt_is_tried_again_and_then_recorded_as_failed(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.tell("A.l1.t01", 1) == EXITS["retry"]
    assert scripts.run.trials()[0].state == "unknown"  # no pool can be asked
    assert scripts.tell("A.l1.t01", 1, retry=1) == EXITS["done"]
    record = scripts.run.trials()[0]
    assert (record.state, record.attempts, record.error) == ("failed", 2, "exit code 1")


def test_a_complete_trial_is_recorded_with_its_job_and_its_progress(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    trial = scripts.trial("A.l1.t01")
    trial.log.write_text(JOB_LOG.format(job=1) + JOB_LOG.format(job=2))
    trial.progress.write_text('{"step": 1, "metrics": {"loss": 0.9}}\n')
    scripts.finish("A.l1.t01")  # to this DAGMan it was the first attempt: another was before it
    (record,) = scripts.run.trials()
    assert record.attempts == 2
    region = read_report(scripts.folder).regions[0]
    found = region.trials[0]
    assert (found.wall_seconds, found.last_wall_seconds, found.machine) == (7.0, 3.5, "node-1")
    assert (found.attempts, found.curve) == (2, ((1, 0.9),))
    assert region.compute_seconds == 7.0


def test_a_failed_trial_is_recorded_with_its_job_and_its_progress(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    trial = scripts.trial("A.l1.t01")
    trial.log.write_text(JOB_LOG.format(job=1))
    trial.progress.write_text('{"step": 1, "metrics": {"loss": 0.9}}\n')
    scripts.tell("A.l1.t01", 64)
    record = read_report(scripts.folder).regions[0].trials[0]
    assert (record.state, record.wall_seconds, record.attempts) == ("failed", 3.5, 1)
    assert record.curve == ((1, 0.9),)


def test_nodes_beyond_the_budget_are_skipped_and_known_ones_are_answered(
    scripts: Scripts,
) -> None:
    for number in (1, 2, 3):
        scripts.ask(f"A.l1.t0{number}")
    assert scripts.ask("A.l1.t04") == EXITS["skip"]
    assert scripts.ask("A.l1.t03") == EXITS["done"]


def test_a_restarted_service_gives_the_same_answer(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    order = scripts.trial("A.l1.t01").trial_json.read_bytes()
    scripts.restart_service()
    scripts.ask("A.l1.t01")
    assert scripts.trial("A.l1.t01").trial_json.read_bytes() == order
    scripts.finish("A.l1.t01")
    assert len(scripts.run.trials()) == 1


def test_a_trial_that_the_database_made_twice_is_shown_once(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = scripts.handler._studies.storage
    begin = storage.begin
    with monkeypatch.context() as broken:
        twice = lambda *given: (begin(*given), begin(*given))[1]  # noqa: E731 - answer lost
        broken.setattr(storage, "begin", twice)
        scripts.ask("A.l1.t01")
    assert len(scripts.run.trials()) == 1
    assert scripts.status.regions[0].queued <= 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_the_ask_script_is_deferred_while_the_disk_is_full(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with monkeypatch.context() as full:
        error = OSError(code, os.strerror(code))
        full.setattr(untrusted_files, "write_json", unittest.mock.Mock(side_effect=error))
        reply = scripts.call("ask", "A", "A.l1.t01")
    assert reply.exit_code == EXITS["defer"]
    assert os.strerror(code) in reply.message
    assert not scripts.trial("A.l1.t01").submit.exists()
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    assert len(scripts.run.trials()) == 1


def test_the_service_answers_an_unknown_command_with_the_known_ones(scripts: Scripts) -> None:
    reply = scripts.call("dance")
    assert reply.exit_code == EXITS["retry"]
    assert "ask, tell" in reply.message


def test_no_trial_begins_on_a_nearly_full_disk_and_a_running_one_is_recorded(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts.ask("A.l1.t01")
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 5 << 20)
    reply = scripts.call("ask", "A", "A.l1.t02")
    assert reply.exit_code == EXITS["defer"]
    assert "5 MB are free" in reply.message
    assert scripts.call("begin", "A").exit_code == EXITS["defer"]
    assert scripts.finish("A.l1.t01") == EXITS["done"]
    assert "no space" in (scripts.status.notice or "")
