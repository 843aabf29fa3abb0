"""The last job of a region also trains the best settings in full and measures the gate's models."""

from __future__ import annotations

import json
import tarfile

import pytest

from tests.conftest import MakeRun
from tests.unit.run.lanes.conftest import BAD, GOOD, Job
from trialfleet import untrusted_files
from trialfleet.nodes.job.pack_and_unpack import UnsendableError
from trialfleet.workflows.control.scripts.publish_program import publish_region
from trialfleet.workflows.facts.models.folders import region_models_folder
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.runs.trial_executions import end_stays

pytestmark = pytest.mark.slow


@pytest.fixture
def gated(make_run: MakeRun) -> Job:
    """A lane's job of a region that has a current model."""
    run = make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": "all"}, gate={})
    models = region_models_folder(run.study, "A")
    (models / "r0").mkdir(parents=True)
    (models / "r0/weights").write_text("r0")
    (models / "r0/provenance.json").write_text(json.dumps({"study": "demo", "run": "r0"}))
    (models / "latest").symlink_to("r0")
    return Job(run)


def test_the_job_of_a_full_training_measures_its_model_and_the_current_one(gated: Job) -> None:
    gated.train_all()
    order = gated.tell("best", 0.3)
    assert (order["name"], order["trial"]["mode"]) == ("gate", "evaluate")
    assert order["left"] == ["losses"]
    assert (order["given"], order["last"]) == (True, False)
    with tarfile.open(gated.place("gate").given) as given:
        weights = given.extractfile(f"{order['trial']['models']['champion']}/weights")
        assert weights is not None
        assert weights.read() == b"r0"
        assert "challenger/weights" in given.getnames()
    last = gated.tell("gate", 0.3)
    assert (last["do"], last["code"], last["why"]) == ("leave", 0, "measured")
    assert not gated.place("gate").given.exists()
    assert gated.post().exit_code == EXITS["done"]
    assert gated.call_best("ask-best") == EXITS["skip"]
    assert gated.call_gate() == EXITS["skip"]
    gate = gated.folder.region("A").gate
    assert end_stays(gated.folder.region("A"), gate, gated.run.study, None)
    assert json.loads(gate.job.read_text())["stays"]
    assert publish_region(gated.folder, "A") == EXITS["done"]
    assert json.loads(gated.folder.region("A").verdict.read_text())["champion"]["run"] == "r0"


@pytest.mark.parametrize(("ended", "answer"), [(GOOD, "skip"), (BAD, "done"), (None, "done")])
def test_the_gate_has_a_separate_job_if_a_lanes_job_is_lost_before_it_measured(
    gated: Job, ended: object, answer: str
) -> None:
    gated.train_all()
    gated.tell("best", 0.3)
    if ended:
        gated.leave("gate", 0.3, ended=ended)
    assert gated.post("-9").exit_code == EXITS["done"]
    assert gated.call_best("ask-best") == EXITS["skip"]
    assert gated.call_gate() == EXITS[answer]


def test_the_next_agent_measures_for_the_gate_unless_its_package_arrived(
    gated: Job,
) -> None:
    gated.train_all()
    gated.leave("best", 0.3, ended=GOOD)
    assert gated.ask_as("t2")["name"] == "gate"
    assert gated.ask_as("t3")["name"] == "gate"
    gated.leave("gate", 0.3, ended=GOOD)
    assert gated.ask_as("t4")["why"] == "measured"
    assert gated.ask_as("t5")["why"] == "measured"


def test_a_gate_that_failed_in_a_lanes_job_is_retried_in_a_separate_job(gated: Job) -> None:
    gated.train_all()
    gated.tell("best", 0.3)
    assert gated.tell("gate", None, code=1, err="no memory")["do"] == "leave"
    assert "no memory" in gated.order["why"]
    assert gated.post().exit_code == EXITS["done"]
    assert gated.call_gate() == EXITS["done"]


def test_no_gate_follows_a_failed_full_training_in_its_lane(gated: Job) -> None:
    gated.train_all()
    assert gated.tell("best", None, code=1)["do"] == "leave"
    assert not gated.place("gate").given.exists()


def test_a_separate_job_measures_models_too_large_for_a_lanes_job(
    gated: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialfleet.workflows.control.scripts.gate_job._MOST_IN_LANE", 2)
    gated.train_all()
    assert gated.tell("best", 0.3)["do"] == "leave"
    assert not gated.folder.region("A").verdict.exists()
    assert gated.call_gate() == EXITS["done"]


def test_a_separate_job_measures_a_model_that_cant_be_sent_to_a_lanes_job(
    gated: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise UnsendableError("model/weights can't be sent: it became shorter while it was read")

    monkeypatch.setattr("trialfleet.workflows.control.scripts.gate_job.pack", cut)
    gated.train_all()
    assert gated.tell("best", 0.3)["do"] == "leave"
    assert not gated.folder.region("A").verdict.exists()
    assert gated.call_gate() == EXITS["done"]


def test_without_a_current_model_the_job_of_a_full_training_leaves(make_run: MakeRun) -> None:
    job = Job(make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": "all"}, gate={}))
    job.train_all()
    assert job.tell("best", 0.3)["do"] == "leave"
    assert job.call_gate() == EXITS["skip"]


def test_a_full_training_whose_job_is_lost_is_retried_in_a_separate_job(job: Job) -> None:
    job.train_all()
    assert job.order["name"] == "best"
    assert job.post("-9").exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS["done"]
    assert json.loads(job.folder.region("A").best.order.read_text())["name"] == "best"


@pytest.mark.parametrize(
    ("code", "has_model", "answer"), [(0, True, "skip"), (0, False, "done"), (1, True, "done")]
)
def test_a_reported_full_training_with_a_model_counts_if_its_script_was_killed(
    job: Job, code: int, has_model: bool, answer: str
) -> None:
    job.train_all()
    job.post("-9")
    assert job.call_best("ask-best") == EXITS["done"]
    best, job.leaves_model = job.folder.region("A").best, has_model
    job.leave("best", 0.5)
    job.place("best").left.replace(best.left)
    message = {
        "job": "9.0",
        "token": "t9",
        "turn": 1,
        "say": "ended",
        "trial": "best",
        "code": code,
    }
    best.said.write_text(json.dumps(message))
    assert job.call_best("ask-best") == EXITS[answer]
    assert untrusted_files.has_files(best.model) == (answer == "skip")


def test_a_full_training_that_failed_in_a_lane_is_retried_in_a_separate_job(job: Job) -> None:
    job.train_all()
    assert job.tell("best", None, code=1)["do"] == "leave"
    assert job.post().exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS["done"]


def test_a_full_training_that_leaves_no_model_ends_its_region_at_once(job: Job) -> None:
    job.train_all()
    job.leaves_model = False
    assert job.tell("best")["do"] == "leave"
    answer = job.post()
    assert answer.exit_code == EXITS["stop"]
    assert "left nothing in model/" in answer.message


def test_a_model_folder_without_any_file_counts_as_no_model(job: Job) -> None:
    job.train_all()
    job.leaves_model = False
    job.leave("best", 0.5)
    with tarfile.open(job.place("best").left, "a", format=tarfile.GNU_FORMAT) as tar:
        for name in ("model", "model/empty"):
            tar.add(job.run.folder / "box/checkpoint", name)
    job.say("ended", trial="best", code=0, cpu_seconds=1.0, memory_mb=10.0)
    job.handler.handle_events()
    answer = job.post()
    assert answer.exit_code == EXITS["stop"]
    assert "left nothing in model/" in answer.message


def test_a_restarted_agent_continues_the_full_training(job: Job) -> None:
    job.train_all()
    job.place("best").saved.write_bytes(b"a checkpoint")
    job.token, job.turn = "t2", 0
    job.say("ask")
    job.handler.handle_events()
    assert (job.order["name"], job.order["token"]) == ("best", "t2")
    assert job.place("best").saved.read_bytes() == b"a checkpoint"
