"""What the agents of jobs that train several trials are answered. The jobs are played here."""

from __future__ import annotations

import errno
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import Run, job_files, nodes
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.plan.trial_files import TrialFiles
from trialfleet.workflows.control.scripts.node_scripts import NodeScripts
from trialfleet.workflows.control.scripts.publish_node import publish_region
from trialfleet.workflows.facts.jobs.agent_messages import asked_since
from trialfleet.workflows.facts.jobs.job_facts import JobFacts
from trialfleet.workflows.facts.jobs.log_notes import noted_parts
from trialfleet.workflows.facts.jobs.parts import parts_of
from trialfleet.workflows.facts.models.folders import models_folder_of
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.graph import EXITS
from trialfleet.workflows.facts.run_folder.trial_names import is_lane
from trialfleet.workflows.facts.runs.job_costs import end_stays
from trialfleet.workflows.rules.hopeless_attempts import job_troubles

pytestmark = pytest.mark.slow
REMOVED = "-1002"


class Job:
    """A lane's job, and the service that answers it."""

    def __init__(self, run: Run, node: str = "A.l1") -> None:
        self.run, self.node = run, node
        self.folder = RunFolder(run.folder)
        self.handler = NodeScripts(self.folder)
        self.token, self.turn, self.leaves_model = "", 0, True

    def restart_service(self) -> None:
        self.handler = NodeScripts(self.folder)

    def call(self, *words: str) -> Reply:
        return self.handler.handle([words[0], "A", self.node, *words[1:]])

    def submit(self, agent: str = "t1") -> Reply:
        self.token, self.turn = agent, 0
        reply = self.call("ask")
        number = f"({len(agent):03}.000.000) 2026-11-20 10:00:01"
        with self.place().log.open("a") as log:
            log.write(f"000 {number} Job submitted from host: <127.0.0.1:1>\n...\n")
            log.write(f"001 {number} Job executing on host: <127.0.0.1:1>\n...\n")
        if reply.exit_code == EXITS["done"] and is_lane(self.node):
            self.say("ask")
            self.handler.noticed()
        return reply

    def post(self, code: str = "0", retry: int = 0) -> Reply:
        return self.call("tell", code, str(retry), "30", "0")

    def call_best(self, operation: str) -> int:
        return self.handler.handle([operation, "A", "A.best"]).exit_code

    def call_gate(self) -> int:
        return self.handler.handle(["ask-gate", "A", "A.gate"]).exit_code

    def place(self, name: str = "") -> TrialFolder:
        if name in {"best", "gate"}:
            end = getattr(self.folder.region("A"), name)
            return TrialFolder(end.root, self.place().node_root)
        return self.folder.region("A").trial(name or self.node)

    @property
    def order(self) -> dict[str, Any]:
        return dict(json.loads(self.place().order.read_text()))

    def say(self, say: str, **more: Any) -> None:
        self.turn += say != "begun" and say != "saved"
        plain = {"schema": 1, "job": f"{len(self.token)}.0", "token": self.token, "turn": self.turn}
        path = self.place().said
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps({**plain, "say": say, **more}))
        beside.replace(path)

    def leave(self, name: str, loss: float | None, err: str = "", ended: object = None) -> None:
        """Put what a trial left where its agent puts it; `ended`: how its package says it did."""
        box = self.run.folder / "box"
        for made in (box, box / "checkpoint"):
            made.mkdir(exist_ok=True)
        models = {model: {"metrics": {"loss": loss}} for model in ("champion", "challenger")}
        result = {"status": "complete", "metrics": {"loss": loss}, "models": models}
        (box / "result.json").write_text("" if loss is None else json.dumps(result))
        (box / "progress.jsonl").write_text('{"step": 1, "metrics": {"loss": 9}}\n')
        (box / "out").write_text(f"output of {name}")
        (box / "err").write_text(err)
        (box / "ended.json").write_text(json.dumps(ended))
        with tarfile.open(self.place(name).left, "w", format=tarfile.GNU_FORMAT) as tar:
            if ended is not None:
                tar.add(box / "ended.json", "ended.json")
            for file in ("result.json", "progress.jsonl", "out", "err"):
                tar.add(box / file, file)
            if name == "best" and self.leaves_model:
                tar.add(box / "result.json", "model/weights")

    def tell(
        self, name: str, loss: float | None = 0.5, code: int = 0, **more: Any
    ) -> dict[str, Any]:
        """End a trial, and return the order that follows."""
        self.leave(name, loss, more.pop("err", ""))
        self.say("told", trial=name, code=code, cpu_seconds=1.0, memory_mb=10.0, **more)
        self.handler.noticed()
        return self.order

    def train_all(self) -> None:
        """Train the three trials of a region, in a job that goes on."""
        self.submit()
        for number in (1, 2, 3):
            self.tell(f"A.l1.t0{number}")

    def ask_anew(self, agent: str) -> dict[str, Any]:
        """Ask as an agent that HTCondor started after another, and return the answer."""
        self.token, self.turn = agent, 0
        with self.place().log.open("a") as log:
            log.write("001 (002.000.000) 2026-11-20 10:00:05 Job executing on host: <1:1>\n...\n")
        self.say("ask")
        self.handler.noticed()
        return self.order

    @property
    def states(self) -> dict[str, str]:
        return {trial.node: trial.state for trial in self.run.trials()}


@pytest.fixture
def job(make_run: MakeRun) -> Job:
    return Job(make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": "all"}))


def test_a_job_is_handed_one_trial_after_another_until_the_budget_is_spent(job: Job) -> None:
    assert job.submit().exit_code == EXITS["done"]
    assert (job.order["token"], job.order["name"]) == ("t1", "A.l1.t01")
    second = job.tell("A.l1.t01", 0.5)
    assert (second["token"], second["turn"], second["do"]) == ("t1", 2, "train")
    assert (
        second["trial"]["params"]
        == json.loads(job.place("A.l1.t02").trial_json.read_text())["params"]
    )
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}
    assert job.place("A.l1.t01").out.read_text() == "output of A.l1.t01"
    assert job.tell("A.l1.t02", 0.4)["name"] == "A.l1.t03"
    best = job.tell("A.l1.t03", 0.3)  # the best settings are trained in full by the same job
    assert (best["name"], best["trial"]["mode"], best["trial"]["trial"]) == ("best", "final", 2)
    last = job.tell("best", 0.3)
    assert (last["do"], last["code"]) == ("leave", 0)
    assert job.post().exit_code == EXITS["done"]
    log = job.place().log
    assert noted_parts(log, job_files.stamp_of(log)) == parts_of(log), "what was over is noted"
    assert job.call_best("ask-best") == EXITS["skip"]
    assert [trial.value for trial in job.run.trials()] == [0.5, 0.4, 0.3]


def test_telling_and_asking_twice_changes_nothing(job: Job) -> None:
    job.submit()
    first = job.tell("A.l1.t01", 0.5)
    for _ in range(2):
        job.restart_service()
        job.handler.idle()
        assert job.order == first
    os.utime(job.place().said)
    job.say("told", trial="A.l1.t01", code=0)  # an agent that was told of it, in words of its own
    job.handler.noticed()
    assert job.order["name"] == "A.l1.t02"
    assert len(job.run.trials()) == 2


def test_a_trials_begin_is_noted_though_the_service_died_when_it_had_answered(
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


def test_what_was_told_while_no_service_lived_is_answered_by_the_next(job: Job) -> None:
    job.submit()
    job.handler = None  # type: ignore[assignment]
    job.leave("A.l1.t01", 0.5)
    job.say("told", trial="A.l1.t01", code=0)
    job.restart_service()
    job.handler.idle()
    assert job.order["name"] == "A.l1.t02"


def test_an_agent_that_comes_back_gets_the_same_trial_with_its_checkpoint(job: Job) -> None:
    job.submit()
    job.tell("A.l1.t01", 0.5)
    before = job.order["trial"]
    saved = job.place("A.l1.t02").saved
    saved.write_bytes(b"a checkpoint")
    job.token, job.turn = "t2", 0
    job.say("ask")
    job.handler.noticed()
    assert (job.order["token"], job.order["turn"], job.order["trial"]) == ("t2", 1, before)
    assert saved.read_bytes() == b"a checkpoint"


def test_a_result_that_had_arrived_is_told_though_job_dagman_and_service_were_lost(
    job: Job,
) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25)
    job.handler = None  # type: ignore[assignment]
    job.say("told", trial="A.l1.t01", code=0)
    job.restart_service()
    assert job.submit("t2").exit_code == EXITS["done"]
    assert job.order["name"] == "A.l1.t02"
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}


GOOD = {"code": 0, "seconds": 1.0, "cpu_seconds": 0.5, "memory_mb": 10.0, "over": None}
BAD = {**GOOD, "code": 1}


def test_a_trial_whose_package_has_come_is_over_though_nobody_told_of_it(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.ask_anew("t2")["name"] == "A.l1.t02"
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}
    assert "A.l1.t01 ends code=0 cpu=0.5 memory=10.0" in job.place().log.read_text()
    assert job.ask_anew("t3")["name"] == "A.l1.t02"
    assert len(job.run.trials()) == 2


def test_a_service_that_dies_between_package_and_study_judges_it_when_it_is_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    monkeypatch.setattr(
        "trialfleet.workflows.control.scripts.trial_scripts.TrialScripts.judge", die
    )
    with pytest.raises(KeyboardInterrupt):
        job.ask_anew("t2")
    assert not job.place("A.l1.t01").left.exists()
    monkeypatch.undo()
    job.restart_service()
    job.handler.idle()
    assert job.order["name"] == "A.l1.t02"
    assert job.states["A.l1.t01"] == "complete"


@pytest.mark.parametrize("code", ["-9", REMOVED, "75"])
def test_a_package_is_judged_when_its_job_is_lost(job: Job, code: str) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.post(code).exit_code == EXITS["retry"]
    assert job.states == {"A.l1.t01": "complete"}
    assert "A.l1.t01 ends code=0" in job.place().log.read_text()


def test_a_package_is_judged_when_dagman_is_lost(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    assert job.submit("t2").exit_code == EXITS["done"]
    assert job.order["name"] == "A.l1.t02"
    assert job.states["A.l1.t01"] == "complete"


def test_a_failed_attempt_whose_package_alone_tells_counts_once(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", None, "it broke", BAD)
    order = job.ask_anew("t2")
    assert (order["do"], order["code"]) == ("leave", 1)
    assert job.post("1").exit_code == EXITS["retry"]
    job.submit("t2x")
    assert job.order["name"] == "A.l1.t01"  # retries: 1
    assert job.tell("A.l1.t01", None, code=1, err="it broke")["name"] == "A.l1.t02"
    assert job.states["A.l1.t01"] == "failed"


@pytest.mark.parametrize("trials_per_job", ["all", 1])
def test_a_failed_attempt_that_was_told_counts_once(
    make_run: MakeRun, trials_per_job: str | int
) -> None:
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


def test_a_limit_is_told_by_the_package_alone(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", None, ended={**GOOD, "code": -9, "over": "memory"})
    assert job.ask_anew("t2")["name"] == "A.l1.t02"
    assert "over its memory: used 10 MB of 100 MB" in str(job.run.trials()[0].error)


@pytest.mark.parametrize(
    "ended", [[], "x", {"code": "x"}, {"code": 0, "over": "all"}, {"code": 0, "more": "x" * 9999}]
)
def test_a_package_that_does_not_say_how_its_trial_ended_ends_none(job: Job, ended: object) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=ended)
    assert job.ask_anew("t2")["name"] == "A.l1.t01"
    assert job.states == {"A.l1.t01": "unknown"}
    assert job.tell("A.l1.t01", 0.25)["name"] == "A.l1.t02"


def test_a_damaged_package_whose_trial_ended_is_a_failed_trial(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.25, ended=GOOD)
    left = job.place("A.l1.t01").left
    left.write_bytes(left.read_bytes()[:1200])
    assert job.ask_anew("t2")["name"] == "A.l1.t02"
    assert "its result can't be used" in str(job.run.trials()[0].error)


def test_a_full_training_whose_package_has_come_is_over_though_nobody_told_of_it(
    job: Job,
) -> None:
    job.train_all()
    job.leave("best", 0.3, ended=GOOD)
    order = job.ask_anew("t2")
    assert (order["do"], order["code"], order["why"]) == ("leave", 0, "trained in full")
    assert job.post().exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS["skip"]


@pytest.mark.parametrize(("ended", "answer"), [(GOOD, "skip"), (BAD, "done")])
def test_a_full_training_whose_package_has_come_outlives_its_job(
    job: Job, ended: object, answer: str
) -> None:
    job.train_all()
    job.leave("best", 0.3, ended=ended)
    assert job.post("-9").exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS[answer]
    assert job_files.has_files(job.folder.region("A").best.model) == (answer == "skip")


def test_a_job_of_one_training_is_judged_by_its_package_alone(make_run: MakeRun) -> None:
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


@pytest.fixture
def gated(make_run: MakeRun) -> Job:
    """A lane's job of a region in which a model is in force."""
    run = make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": "all"}, gate={})
    models = models_folder_of(run.study, "A")
    (models / "r0").mkdir(parents=True)
    (models / "r0/weights").write_text("r0")
    (models / "r0/provenance.json").write_text(json.dumps({"study": "demo", "run": "r0"}))
    (models / "latest").symlink_to("r0")
    return Job(run)


def test_the_job_of_a_full_training_measures_its_model_beside_the_one_in_force(gated: Job) -> None:
    gated.train_all()
    order = gated.tell("best", 0.3)
    assert (order["name"], order["trial"]["mode"], order["left"]) == (
        "gate",
        "evaluate",
        ["losses"],
    )
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
def test_a_gate_in_a_lanes_job_that_is_lost_is_measured_by_one_of_its_own(
    gated: Job, ended: object, answer: str
) -> None:
    gated.train_all()
    gated.tell("best", 0.3)
    if ended:
        gated.leave("gate", 0.3, ended=ended)
    assert gated.post("-9").exit_code == EXITS["done"]
    assert gated.call_best("ask-best") == EXITS["skip"]
    assert gated.call_gate() == EXITS[answer]


def test_a_gate_in_a_lanes_job_goes_on_with_the_next_agent_unless_its_package_has_come(
    gated: Job,
) -> None:
    gated.train_all()
    gated.leave("best", 0.3, ended=GOOD)
    assert gated.ask_anew("t2")["name"] == "gate"
    assert gated.ask_anew("t3")["name"] == "gate"
    gated.leave("gate", 0.3, ended=GOOD)
    assert gated.ask_anew("t4")["why"] == "measured"
    assert gated.ask_anew("t5")["why"] == "measured"


def test_a_gate_that_fails_in_a_lanes_job_has_one_of_its_own(gated: Job) -> None:
    gated.train_all()
    gated.tell("best", 0.3)
    assert gated.tell("gate", None, code=1, err="no memory")["do"] == "leave"
    assert "no memory" in gated.order["why"]
    assert gated.post().exit_code == EXITS["done"]
    assert gated.call_gate() == EXITS["done"]


def test_a_full_training_that_fails_is_followed_by_no_gate_in_its_lane(gated: Job) -> None:
    gated.train_all()
    assert gated.tell("best", None, code=1)["do"] == "leave"
    assert not gated.place("gate").given.exists()


def test_models_too_large_for_a_lanes_job_are_measured_by_one_of_the_gates_own(
    gated: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialfleet.workflows.control.scripts.gate._MOST_IN_LANE", 2)
    gated.train_all()
    assert gated.tell("best", 0.3)["do"] == "leave"
    assert not gated.folder.region("A").verdict.exists()
    assert gated.call_gate() == EXITS["done"]


def test_without_a_model_in_force_the_job_of_a_full_training_leaves(make_run: MakeRun) -> None:
    job = Job(make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": "all"}, gate={}))
    job.train_all()
    assert job.tell("best", 0.3)["do"] == "leave"
    assert job.call_gate() == EXITS["skip"]


def test_a_failed_attempt_ends_the_job_and_another_tries_the_trial_again(job: Job) -> None:
    job.submit()
    order = job.tell("A.l1.t01", None, code=1, err="it broke")
    assert (order["do"], order["code"]) == ("leave", 1)
    answer = job.post("1")
    assert answer.exit_code == EXITS["retry"]
    assert "it broke" in answer.message
    assert job.post("1").exit_code == EXITS["retry"]  # a script that was killed is run again
    job.submit("t2x")
    assert job.order["name"] == "A.l1.t01"
    assert job.tell("A.l1.t01", None, code=1, err="it broke")["name"] == "A.l1.t02"  # retries: 1
    assert job.states["A.l1.t01"] == "failed"


def test_a_trial_that_cant_be_trained_is_over_and_the_job_goes_on(job: Job) -> None:
    job.submit()
    assert job.tell("A.l1.t01", None, code=64, err="rejected: x")["name"] == "A.l1.t02"
    assert job.states == {"A.l1.t01": "failed", "A.l1.t02": "unknown"}


@pytest.mark.parametrize(
    ("over", "words"),
    [("memory", "over its memory: used 10 MB of 100 MB"), ("time", "over its time")],
)
def test_a_trial_over_its_limits_is_told_with_the_number(job: Job, over: str, words: str) -> None:
    job.submit()
    assert job.tell("A.l1.t01", None, code=-9, over=over)["name"] == "A.l1.t02"
    error = job.run.trials()[0].error
    assert error is not None
    assert words in error
    assert "raise " in error


def test_a_job_that_died_is_judged_by_its_node_and_its_trial_tried_again(job: Job) -> None:
    job.submit()
    job.tell("A.l1.t01", 0.5)
    answer = job.post("-9")
    assert answer.exit_code == EXITS["retry"]
    assert "attempt 1 of 2 failed" in answer.message
    job.submit("t2")
    assert job.order["name"] == "A.l1.t02"


def test_a_job_that_waits_has_no_trial_yet_and_finds_what_is_left(make_run: MakeRun) -> None:
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
    second.handler.noticed()
    assert second.order["do"] == "leave"
    assert second.post().exit_code == EXITS["done"]
    assert second.call("ask").exit_code == EXITS["skip"]
    assert [trial.node for trial in run.trials()] == ["A.l1.t01", "A.l1.t02"]


def test_a_job_that_never_came_to_ask_is_a_failed_attempt_of_its_trial(job: Job) -> None:
    job.call("ask")
    answer = job.post("2")
    assert answer.exit_code == EXITS["retry"]
    assert job.states == {"A.l1.t01": "unknown"}
    job.call("ask")
    assert job.post("2", retry=1).exit_code == EXITS["retry"]
    assert job.states["A.l1.t01"] == "failed"


def test_a_job_whose_time_is_up_leaves_and_the_lane_goes_on_in_another(job: Job) -> None:
    job.submit()
    order = job.tell("A.l1.t01", 0.5, wants=False)
    assert (order["do"], order["code"]) == ("leave", 0)
    answer = job.post()
    assert answer.exit_code == EXITS["retry"]
    assert "continues in another job" in answer.message
    job.submit("t2")
    assert job.order["name"] == "A.l1.t02"
    assert len(job.run.trials()) == 2


def test_a_job_that_had_no_answer_has_lost_nothing(job: Job) -> None:
    job.submit()
    job.leave("A.l1.t01", 0.5)
    job.handler = None  # type: ignore[assignment]
    job.say("told", trial="A.l1.t01", code=0)
    job.restart_service()
    assert job.post("75").exit_code == EXITS["retry"]
    assert job.states == {"A.l1.t01": "complete"}
    job.submit("t2")
    assert job.order["name"] == "A.l1.t02"


@pytest.mark.parametrize("name", ["A.l1.t09", "A.l2.t01", "../../outside", "A.best", "A.l1"])
def test_words_of_a_trial_that_is_not_the_jobs_are_refused(job: Job, name: str) -> None:
    job.submit()
    job.tell("A.l1.t01", 0.5)
    job.token, job.turn = "old", 3
    job.say("told", trial=name, code=0)
    job.handler.noticed()
    assert (job.order["do"], job.order["code"]) == ("leave", 1)
    assert job.states == {"A.l1.t01": "complete", "A.l1.t02": "unknown"}


@pytest.mark.parametrize(
    "words", ["", "[]", "{", '{"say": "told"}', '{"token": 1, "turn": "x"}', "\0" * 100]
)
def test_words_that_are_none_change_nothing(job: Job, words: str) -> None:
    job.submit()
    before = job.order
    beside = job.place().said.with_suffix(".part")
    beside.write_text(words)
    beside.replace(job.place().said)
    job.handler.noticed()
    assert job.order == before


def test_a_link_in_the_place_of_words_is_not_followed(job: Job, tmp_path: Path) -> None:
    job.submit()
    outside = tmp_path / "outside"
    outside.write_text(json.dumps({"job": "1.0", "token": "t1", "turn": 7, "say": "ask"}))
    job.place().said.unlink()
    job.place().said.symlink_to(outside)
    before = job.order
    job.handler.noticed()
    assert job.order == before
    assert job_files.size_of(job.place().said) == 0


def test_without_a_watch_of_the_kernels_words_are_looked_at(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_watch(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("inotify_simple.INotify.add_watch", no_watch)
    job.submit()
    job.handler.idle()
    job.leave("A.l1.t01", 0.5)
    job.say("told", trial="A.l1.t01", code=0)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert job.handler.due()
    job.handler.idle()
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


def test_a_number_of_trials_per_job(make_run: MakeRun) -> None:
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


def test_a_lanes_job_leaves_where_the_data_of_the_full_training_are_gone(
    make_run: MakeRun, work: Path
) -> None:
    (data := work / "rows.csv").write_text("1")
    job = Job(make_run(data="rows.csv", budget={"trials": 1, "lanes": 1}))
    job.submit()
    data.unlink()
    assert job.tell("A.l1.t01")["do"] == "leave"
    assert job.states == {"A.l1.t01": "complete"}


def test_a_full_training_whose_job_is_lost_has_a_job_of_its_own(job: Job) -> None:
    job.train_all()
    assert job.order["name"] == "best"
    assert job.post("-9").exit_code == EXITS["done"]
    assert job.call_best("ask-best") == EXITS["done"]
    assert json.loads(job.folder.region("A").best.order.read_text())["name"] == "best"


@pytest.mark.parametrize(
    ("code", "has_model", "answer"), [(0, True, "skip"), (0, False, "done"), (1, True, "done")]
)
def test_a_full_training_that_was_told_is_kept_though_its_script_was_killed(
    job: Job, code: int, has_model: bool, answer: str
) -> None:
    job.train_all()
    job.post("-9")
    assert job.call_best("ask-best") == EXITS["done"]
    best, job.leaves_model = job.folder.region("A").best, has_model
    job.leave("best", 0.5)
    job.place("best").left.replace(best.left)
    told = {"job": "9.0", "token": "t9", "turn": 1, "say": "told", "trial": "best", "code": code}
    best.said.write_text(json.dumps(told))
    assert job.call_best("ask-best") == EXITS[answer]
    assert job_files.has_files(best.model) == (answer == "skip")


def test_a_full_training_that_failed_in_a_lane_has_a_job_of_its_own(job: Job) -> None:
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


def test_a_question_without_an_answer_is_told(job: Job) -> None:
    job.submit()
    assert asked_since(job.place()) is None
    job.say("told", trial="A.l1.t01", time=123.0)
    os.utime(job.place().order, (1, 1))
    assert asked_since(job.place()) == 123.0
    facts = JobFacts(region="A", node="A.l1", job="12.0", status=2, since=0.0, asked=123.0)
    assert job_troubles([facts], 150.0) == []
    (trouble,) = job_troubles([facts], 160.0)
    assert str(trouble).startswith("A.l1: its job 12.0 has waited 37 s for the optimiser's service")
    job.leave("A.l1.t01", 0.5)
    job.handler.noticed()
    assert asked_since(job.place()) is None


def test_an_agent_that_comes_back_goes_on_with_the_full_training(job: Job) -> None:
    job.train_all()
    job.place("best").saved.write_bytes(b"a checkpoint")
    job.token, job.turn = "t2", 0
    job.say("ask")
    job.handler.noticed()
    assert (job.order["name"], job.order["token"]) == ("best", "t2")
    assert job.place("best").saved.read_bytes() == b"a checkpoint"


def test_a_run_that_an_earlier_release_planned_goes_on_with_a_job_for_each_trial(
    make_run: MakeRun,
) -> None:
    run = make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": 1})
    folder = RunFolder(run.folder)
    folder.agent.unlink()
    (folder.code / nodes.AGENT).unlink()
    text = folder.study.read_text()
    assert "trials_per_job: 1" in text
    folder.study.write_text(re.sub(r".*(trials_per_job|job_minutes):.*\n", "", text))
    job = Job(run, "A.l1.t01")
    assert os.access(folder.agent, os.X_OK)
    assert job.submit().exit_code == EXITS["done"]
    assert job.order["name"] == "A.l1.t01"
    result = {"status": "complete", "metrics": {"loss": 0.5}}
    job.place().result.write_text(json.dumps(result))  # HTCondor brought it, of a job of before
    assert job.post().exit_code == EXITS["done"]
    assert job.states == {"A.l1.t01": "complete"}
