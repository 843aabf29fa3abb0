"""Messages of a job's agent: wrong, damaged or unanswered ones, and reading without inotify."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.unit.run.lanes.conftest import Job
from trialfleet import untrusted_files
from trialfleet.workflows.control.scripts.trial_assignment import AGAIN_SECONDS
from trialfleet.workflows.facts.jobs.agent_messages import question_time
from trialfleet.workflows.facts.jobs.job_facts import JobFacts
from trialfleet.workflows.rules.jobs_without_progress import job_troubles

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["A.l1.t09", "A.l2.t01", "../../outside", "A.best", "A.l1"])
def test_a_message_about_a_trial_that_the_job_does_not_have_is_refused(job: Job, name: str) -> None:
    job.submit()
    job.tell("A.l1.t01", 0.5)
    job.token, job.turn = "old", 3
    job.say("ended", trial=name, code=0)
    job.handler.handle_events()
    assert (job.order["do"], job.order["code"]) == ("leave", 1)
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"say": "ended"}', '{"token": 1, "turn": "x"}', "\0" * 100]
)
def test_a_damaged_message_changes_nothing(job: Job, text: str) -> None:
    job.submit()
    before = job.order
    beside = job.place().said.with_suffix(".part")
    beside.write_text(text)
    beside.replace(job.place().said)
    job.handler.handle_events()
    assert job.order == before


def test_the_service_does_not_follow_a_link_in_place_of_a_message(job: Job, tmp_path: Path) -> None:
    job.submit()
    outside = tmp_path / "outside"
    outside.write_text(json.dumps({"job": "1.0", "token": "t1", "turn": 7, "say": "ask"}))
    job.place().said.unlink()
    job.place().said.symlink_to(outside)
    before = job.order
    job.handler.handle_events()
    assert job.order == before
    assert untrusted_files.file_size(job.place().said) == 0


def test_the_service_polls_for_messages_if_inotify_is_unavailable(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_watch(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("inotify_simple.INotify.add_watch", no_watch)
    job.submit()
    job.handler.idle()
    job.report("A.l1.t01", 0.5)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert job.handler.is_due()
    job.handler.idle()
    assert job.order["name"] == "A.l1.t02"


def test_a_message_that_cant_be_answered_delays_no_other_job(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(budget={"trials": 4, "lanes": 2, "trials_per_job": "all"})
    first, second = Job(run, "A.l1"), Job(run, "A.l2")
    second.handler = first.handler
    first.submit()
    second.submit()
    first.report("A.l1.t01", 0.5)
    trial = first.place("A.l1.t01").root
    away = trial.rename(trial.with_name("away"))
    trial.touch()
    assert second.tell("A.l2.t01", 0.4)["name"] == "A.l2.t02"
    assert "A.l1" in caplog.text
    trial.unlink()
    away.rename(trial)
    assert not first.handler.is_due(), "not before two seconds are over"
    time.sleep(AGAIN_SECONDS)
    first.handler.idle()
    assert first.order["name"] == "A.l1.t02", "the message is answered in the end"


def test_a_message_without_an_answer_is_reported_as_a_trouble(job: Job) -> None:
    job.submit()
    assert question_time(job.place()) is None
    job.say("ended", trial="A.l1.t01", time=123.0)
    os.utime(job.place().order, (1, 1))
    assert question_time(job.place()) == 123.0
    facts = JobFacts(region="A", node="A.l1", job="12.0", status=2, since=0.0, asked=123.0)
    assert job_troubles([facts], 150.0) == []
    (trouble,) = job_troubles([facts], 160.0)
    assert str(trouble).startswith("A.l1: its job 12.0 has waited 37 s for the optimiser's service")
    job.leave("A.l1.t01", 0.5)
    job.handler.handle_events()
    assert question_time(job.place()) is None
