"""The service's answers to a job that trains several trials, one after another."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from tests.unit.run.lanes.conftest import BAD, Job
from trialfleet import nodes, untrusted_files
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles
from trialfleet.workflows.facts.jobs.execution_notes import noted_parts
from trialfleet.workflows.facts.jobs.trial_parts import read_parts
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.slow


def test_a_job_gets_one_trial_after_another_until_the_budget_is_spent(job: Job) -> None:
    assert job.submit().exit_code == EXITS["done"]
    assert (job.order["token"], job.order["name"]) == ("t1", "A.l1.t01")
    second = job.tell("A.l1.t01", 0.5)
    assert (second["token"], second["turn"], second["do"]) == ("t1", 2, "train")
    stored = json.loads(job.place("A.l1.t02").trial_json.read_text())
    assert second["trial"]["params"] == stored["params"]
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}
    assert job.place("A.l1.t01").out.read_text() == "output of A.l1.t01"
    assert job.tell("A.l1.t02", 0.4)["name"] == "A.l1.t03"
    best = job.tell("A.l1.t03", 0.3)  # the best settings are trained in full by the same job
    assert (best["name"], best["trial"]["mode"], best["trial"]["trial"]) == ("best", "final", 2)
    last = job.tell("best", 0.3)
    assert (last["do"], last["code"]) == ("leave", 0)
    assert job.post().exit_code == EXITS["done"]
    log = job.place().log
    assert noted_parts(log, untrusted_files.file_stamp(log)) == read_parts(log), (
        "all that ended is noted"
    )
    assert job.call_best("ask-best") == EXITS["skip"]
    assert [trial.value for trial in job.run.trials()] == [0.5, 0.4, 0.3]


def test_reporting_and_asking_twice_changes_nothing(job: Job) -> None:
    job.submit()
    first = job.tell("A.l1.t01", 0.5)
    for _ in range(2):
        job.restart_service()
        job.handler.idle()
        assert job.order == first
    os.utime(job.place().said)
    job.say("ended", trial="A.l1.t01", code=0)  # again, in other words
    job.handler.handle_events()
    assert job.order["name"] == "A.l1.t02"
    assert len(job.run.trials()) == 2


def test_a_trials_begin_is_noted_although_the_service_died_after_its_answer(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.submit()
    hand_out = TrialFiles.hand_out

    def die(*arguments: Any) -> None:
        hand_out(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(TrialFiles, "hand_out", die)
    with pytest.raises(KeyboardInterrupt):
        job.tell("A.l1.t01")
    monkeypatch.undo()
    job.restart_service()
    job.handler.idle()
    assert job.order["name"] == "A.l1.t02"
    assert "trialfleet: A.l1.t02 begins" in job.place().log.read_text()


def test_a_restarted_service_answers_reports_that_came_in_the_meantime(job: Job) -> None:
    job.submit()
    job.report("A.l1.t01", 0.5)
    job.restart_service()
    job.handler.idle()
    assert job.order["name"] == "A.l1.t02"


def test_a_restarted_agent_gets_the_same_trial_with_its_checkpoint(job: Job) -> None:
    job.submit()
    job.tell("A.l1.t01", 0.5)
    before = job.order["trial"]
    saved = job.place("A.l1.t02").saved
    saved.write_bytes(b"a checkpoint")
    job.token, job.turn = "t2", 0
    job.say("ask")
    job.handler.handle_events()
    assert (job.order["token"], job.order["turn"], job.order["trial"]) == ("t2", 1, before)
    assert saved.read_bytes() == b"a checkpoint"


@pytest.mark.parametrize(("file", "count"), [("checkpoint/state", 1), ("progress.jsonl", 0)])
def test_only_a_package_with_a_checkpoint_counts_as_saved_work(
    job: Job, file: str, count: int
) -> None:
    job.submit()
    with tarfile.open(job.place("A.l1.t01").saved, "w") as tar:
        tar.addfile(tarfile.TarInfo(file))
    job.say("saved", trial="A.l1.t01")
    job.handler.handle_events()
    assert job.place().log.read_text().count("trialfleet: A.l1.t01 saved") == count


def test_a_result_that_arrived_is_recorded_although_job_dagman_and_service_were_lost(
    job: Job,
) -> None:
    job.submit()
    job.report("A.l1.t01", 0.25)
    job.restart_service()
    assert job.submit("t2").exit_code == EXITS["done"]
    assert job.order["name"] == "A.l1.t02"
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}


@pytest.mark.parametrize("trials_per_job", ["all", 1])
def test_a_failed_attempt_is_counted_once(make_run: MakeRun, trials_per_job: str | int) -> None:
    run = make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": trials_per_job})
    job = Job(run, "A.l1" if trials_per_job == "all" else "A.l1.t01")
    job.submit()
    job.tell("A.l1.t01", None, code=1, err="it broke")
    assert job.post("1").exit_code == EXITS["retry"]
    job.submit("t2")
    assert job.states == {"A.l1.t01": "unknown"}
    assert job.order["trial"]["node"] == "A.l1.t01"
    job.tell("A.l1.t01", 0.5)
    job.post("0", retry=1)
    assert next((each.state, each.attempts) for each in run.trials()) == ("complete", 2)


@pytest.mark.parametrize("is_reported", [True, False])  # or the package arrives alone
def test_a_failed_attempt_ends_the_job_and_another_tries_the_trial_again(
    job: Job, is_reported: bool
) -> None:
    job.submit()
    if is_reported:
        order = job.tell("A.l1.t01", None, code=1, err="it broke")
    else:
        job.leave("A.l1.t01", None, "it broke", BAD)
        order = job.ask_as("t2")
    assert (order["do"], order["code"]) == ("leave", 1)
    answer = job.post("1")
    assert answer.exit_code == EXITS["retry"]
    assert "it broke" in answer.message
    assert job.post("1").exit_code == EXITS["retry"]  # a script that was killed is run again
    job.submit("t2x")
    assert job.order["name"] == "A.l1.t01"
    assert job.tell("A.l1.t01", None, code=1, err="it broke")["name"] == "A.l1.t02"  # retries: 1
    assert job.states["A.l1.t01"] == "failed"


def test_a_job_continues_after_a_trial_that_cant_be_trained(job: Job) -> None:
    job.submit()
    assert job.tell("A.l1.t01", None, code=64, err="rejected: x")["name"] == "A.l1.t02"
    assert job.states == {"A.l1.t01": "failed", "A.l1.t02": "unknown"}


@pytest.mark.parametrize(
    ("over", "words", "advice"),
    [
        ("memory", "used 10 MB of 100 MB when it was ended, and may need more", "; raise "),
        ("time", "over its time", "; raise "),
        ("files", "over its files: it left more than 100,000 files", "; make the trainer put them"),
    ],
)
def test_the_error_of_a_trial_over_a_limit_names_the_limit(
    job: Job, over: str, words: str, advice: str
) -> None:
    job.submit()
    assert job.tell("A.l1.t01", None, code=-9, over=over)["name"] == "A.l1.t02"
    error = job.run.trials()[0].error
    assert error is not None
    assert words in error
    assert advice in error


def test_a_lost_job_is_a_failed_attempt_of_its_trial(job: Job) -> None:
    job.submit()
    job.tell("A.l1.t01", 0.5)
    answer = job.post("-9")
    assert answer.exit_code == EXITS["retry"]
    assert "attempt 1 of 2 failed" in answer.message
    job.submit("t2")
    assert job.order["name"] == "A.l1.t02"


def test_a_job_that_waits_for_a_slot_has_no_trial_and_may_get_none(make_run: MakeRun) -> None:
    run = make_run(budget={"trials": 2, "lanes": 2, "trials_per_job": "all"})
    first, second = Job(run, "A.l1"), Job(run, "A.l2")
    second.handler = first.handler
    assert second.call("ask").exit_code == EXITS["done"]  # and it waits for a slot
    assert run.trials() == []
    first.submit()
    first.tell("A.l1.t01")
    assert first.tell("A.l1.t02")["name"] == "best"
    second.token = "late"
    second.say("ask")
    second.handler.handle_events()
    assert second.order["do"] == "leave"
    assert second.post().exit_code == EXITS["done"]
    assert second.call("ask").exit_code == EXITS["skip"]
    assert [trial.node for trial in run.trials()] == ["A.l1.t01", "A.l1.t02"]


def test_a_job_whose_agent_never_asked_is_a_failed_attempt_of_its_trial(job: Job) -> None:
    job.call("ask")
    answer = job.post("2")
    assert answer.exit_code == EXITS["retry"]
    assert job.states == {"A.l1.t01": "unknown"}
    job.call("ask")
    assert job.post("2", retry=1).exit_code == EXITS["retry"]
    assert job.states["A.l1.t01"] == "failed"


def test_a_job_whose_time_is_up_leaves_and_the_lane_continues_in_another(job: Job) -> None:
    job.submit()
    order = job.tell("A.l1.t01", 0.5, wants=False)
    assert (order["do"], order["code"]) == ("leave", 0)
    answer = job.post()
    assert answer.exit_code == EXITS["retry"]
    assert "continues in another job" in answer.message
    job.submit("t2")
    assert job.order["name"] == "A.l1.t02"
    assert len(job.run.trials()) == 2


def test_the_result_of_a_job_that_left_without_an_answer_is_recorded(job: Job) -> None:
    job.submit()
    job.report("A.l1.t01", 0.5)
    job.restart_service()
    assert job.post("75").exit_code == EXITS["retry"]
    assert job.states == {"A.l1.t01": "complete"}
    job.submit("t2")
    assert job.order["name"] == "A.l1.t02"


def test_lanes_share_a_regions_last_trials(make_run: MakeRun) -> None:
    run = make_run(budget={"trials": 4, "lanes": 2, "trials_per_job": "all", "startup_trials": 4})
    first, second = Job(run, "A.l1"), Job(run, "A.l2")
    second.handler = first.handler
    first.submit()
    second.submit()
    assert first.tell("A.l1.t01")["name"] == "A.l1.t02"
    assert first.tell("A.l1.t02")["name"] == "A.l1.t03"
    assert first.tell("A.l1.t03")["do"] == "leave"
    assert first.post().exit_code == EXITS["done"]
    assert second.tell("A.l2.t01")["name"] == "best"  # the first left when this still ran
    assert second.tell("best")["do"] == "leave"
    assert second.post().exit_code == EXITS["done"]
    assert set(first.states.values()) == {"complete"}


def test_a_job_leaves_after_its_number_of_trials(make_run: MakeRun) -> None:
    run = make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": 2})
    one, two = Job(run, "A.l1.t01-02"), Job(run, "A.l1.t03-04")
    two.handler = one.handler
    one.submit()
    assert one.tell("A.l1.t01")["name"] == "A.l1.t02"
    assert one.tell("A.l1.t02")["do"] == "leave"
    assert one.post().exit_code == EXITS["done"]
    two.submit()
    assert two.order["name"] == "A.l1.t03"
    assert two.tell("A.l1.t03")["name"] == "best"


def test_a_lanes_job_leaves_if_the_data_of_the_full_training_are_missing(
    make_run: MakeRun, work: Path
) -> None:
    (data := work / "rows.csv").write_text("1")
    job = Job(make_run(data="rows.csv", budget={"trials": 1, "lanes": 1}))
    job.submit()
    data.unlink()
    assert job.tell("A.l1.t01")["do"] == "leave"
    assert job.states == {"A.l1.t01": "complete"}


def test_a_job_for_each_trial_restores_the_agent_that_its_run_lacks(
    make_run: MakeRun,
) -> None:
    run = make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": 1})
    folder = RunFolder(run.folder)
    folder.agent.unlink()
    (folder.code / nodes.AGENT).unlink()
    job = Job(run, "A.l1.t01")
    assert os.access(folder.agent, os.X_OK)
    assert job.submit().exit_code == EXITS["done"]
    assert job.order["name"] == "A.l1.t01"
    result = {"status": "complete", "metrics": {"loss": 0.5}}
    job.place().result.write_text(json.dumps(result))  # as HTCondor did then
    assert job.post().exit_code == EXITS["done"]
    assert job.states == {"A.l1.t01": "complete"}
