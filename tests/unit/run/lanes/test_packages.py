"""The package of a trial's files arrives, but no message says that the trial ended."""

from __future__ import annotations

import pytest

from tests.conftest import MakeRun
from tests.unit.run.lanes.conftest import BAD, GOOD, Job
from trialfleet import untrusted_files
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS

pytestmark = pytest.mark.slow
REMOVED = "-1002"


def test_a_package_alone_ends_its_trial(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.ask_as("t2")["name"] == "A.l1.t02"
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}
    assert "A.l1.t01 ends code=0 cpu=0.5 memory=10.0" in job.place().log.read_text()
    assert job.ask_as("t3")["name"] == "A.l1.t02"
    assert len(job.run.trials()) == 2


def test_the_next_service_records_a_package_that_the_previous_one_unpacked(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    monkeypatch.setattr(
        "trialfleet.workflows.control.scripts.trial_scripts.TrialScripts.record_attempt", die
    )
    with pytest.raises(KeyboardInterrupt):
        job.ask_as("t2")
    assert not job.place("A.l1.t01").left.exists()
    monkeypatch.undo()
    job.restart_service()
    job.handler.idle()
    assert job.order["name"] == "A.l1.t02"
    assert job.states["A.l1.t01"] == "complete"


@pytest.mark.parametrize("code", ["-9", REMOVED, "75"])
def test_the_result_in_a_package_counts_if_the_job_is_lost(job: Job, code: str) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.post(code).exit_code == EXITS["retry"]
    assert job.states == {"A.l1.t01": "complete"}
    assert "A.l1.t01 ends code=0" in job.place().log.read_text()


def test_the_result_in_a_package_counts_if_dagman_is_lost(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.submit("t2").exit_code == EXITS["done"]
    assert job.order["name"] == "A.l1.t02"
    assert job.states["A.l1.t01"] == "complete"


def test_a_package_names_the_limit_that_its_trial_exceeded(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", None, ended={**GOOD, "code": -9, "over": "memory"})
    assert job.ask_as("t2")["name"] == "A.l1.t02"
    assert "over its memory: used 10 MB of 100 MB" in str(job.run.trials()[0].error)


@pytest.mark.parametrize(
    "ended", [[], "x", {"code": "x"}, {"code": 0, "over": "all"}, {"code": 0, "more": "x" * 9999}]
)
def test_a_package_without_a_usable_end_ends_no_trial(job: Job, ended: object) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=ended)
    assert job.ask_as("t2")["name"] == "A.l1.t01"
    assert job.states == {"A.l1.t01": "unknown"}
    assert job.tell("A.l1.t01", 0.25)["name"] == "A.l1.t02"


def test_a_damaged_package_with_a_recorded_end_fails_its_trial(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    left = job.place("A.l1.t01").left
    left.write_bytes(left.read_bytes()[:1200])
    assert job.ask_as("t2")["name"] == "A.l1.t02"
    assert "its result can't be used" in str(job.run.trials()[0].error)


def test_a_package_alone_ends_its_full_training(job: Job) -> None:
    job.train_all()
    job.leave("best", 0.3, ended=GOOD)
    order = job.ask_as("t2")
    assert (order["do"], order["code"], order["why"]) == ("leave", 0, "trained in full")
    assert job.post().exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS["skip"]


@pytest.mark.parametrize(("ended", "answer"), [(GOOD, "skip"), (BAD, "done")])
def test_a_good_full_training_whose_package_arrived_counts_if_its_job_is_lost(
    job: Job, ended: object, answer: str
) -> None:
    job.train_all()
    job.leave("best", 0.3, ended=ended)
    assert job.post("-9").exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS[answer]
    assert untrusted_files.has_files(job.folder.region("A").best.model) == (answer == "skip")


def test_the_package_of_a_lost_job_with_one_training_counts(make_run: MakeRun) -> None:
    job = Job(make_run(budget={"trials": 1, "lanes": 1, "trials_per_job": 1}), "A.l1.t01")
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.post("-9").exit_code == EXITS["done"]
    assert job.states == {"A.l1.t01": "complete"}
    assert job.call_best("ask-best") == EXITS["done"]
    job.leave("best", 0.3, ended=GOOD)
    best = job.folder.region("A").best
    job.place("best").left.replace(best.left)
    words = ["tell-best", "A", "A.best", "-9", "0", "3", "0"]
    assert job.handler.handle(words).exit_code == EXITS["done"]
