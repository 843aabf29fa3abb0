"""What a node's scripts are answered, and what lies in the trial's folder then. No pool needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from trialfleet import InputError, Run, RunState
from trialfleet.optimizer.service import Reply
from trialfleet.workflows import plan as plan_module
from trialfleet.workflows.folder import RunFolder, TrialFolder
from trialfleet.workflows.node_scripts import NodeScripts
from trialfleet.workflows.plan import EXITS
from trialfleet.workflows.publish_node import publish_region
from trialfleet.workflows.status import StatusReader, open_run


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is submitted here, so /tmp will do; and no HTCondor is asked."""
    monkeypatch.setattr(plan_module, "_FORBIDDEN_PLACE", "/nowhere")
    monkeypatch.setenv("CONDOR_CONFIG", str(tmp_path / "no-such-config"))
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "no-such-pool"))
    return tmp_path


class Scripts:
    """A run's scripts as DAGMan would call them, the jobs played by the test."""

    def __init__(self, run: Run) -> None:
        self.folder = RunFolder(run.folder)
        self.handler = NodeScripts(self.folder)

    def call(self, *words: str) -> Reply:
        return self.handler.handle(list(words))

    def ask(self, node: str) -> int:
        return self.call("ask", "A", node).exit_code

    def finish(self, node: str, loss: float = 0.5, retry: int = 0) -> int:
        result = {"status": "complete", "metrics": {"loss": loss}}
        self.trial(node).result.write_text(json.dumps(result))
        return self.call("tell", "A", node, "0", str(retry), "1").exit_code

    def trial(self, node: str) -> TrialFolder:
        return self.folder.region("A").trial(node)


@pytest.fixture
def scripts(make_run: MakeRun) -> Scripts:
    return Scripts(make_run(budget={"trials": 3, "lanes": 1, "startup_trials": 3}))


def test_asking_writes_what_the_trial_is_told(scripts: Scripts) -> None:
    assert scripts.ask("A.l1.t01") == EXITS["done"]
    told = json.loads(scripts.trial("A.l1.t01").trial_json.read_text())
    assert told["params"] == {"x": 0.5}  # the default settings come first
    assert (told["region"], told["node"], told["trial"], told["mode"]) == (
        "A",
        "A.l1.t01",
        0,
        "tune",
    )
    assert "queue" in scripts.trial("A.l1.t01").submit.read_text().split("\n")


def test_asking_for_a_finished_trial_trains_nothing_again(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01")
    before = scripts.trial("A.l1.t01").result.read_text()
    assert scripts.ask("A.l1.t01") == EXITS["skip"]
    assert scripts.trial("A.l1.t01").result.read_text() == before


def test_asking_twice_tells_the_same_and_clears_what_an_attempt_left(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    first = scripts.trial("A.l1.t01").trial_json.read_bytes()
    scripts.trial("A.l1.t01").result.write_text('{"status": "complete"}')
    (scripts.trial("A.l1.t01").checkpoint / "state").touch()
    scripts.ask("A.l1.t01")
    assert scripts.trial("A.l1.t01").trial_json.read_bytes() == first
    assert scripts.trial("A.l1.t01").result.read_text() == ""
    assert list(scripts.trial("A.l1.t01").checkpoint.iterdir()) == []


def test_telling_twice_tells_once(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.finish("A.l1.t01", loss=0.5) == EXITS["done"]
    assert scripts.finish("A.l1.t01", loss=0.1) == EXITS["done"]
    assert [t.value for t in Run(scripts.folder.root).trials()] == [0.5]


def test_a_failed_attempt_is_tried_again_and_then_told_as_failed(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    assert scripts.call("tell", "A", "A.l1.t01", "1", "0", "1").exit_code == EXITS["retry"]
    assert Run(scripts.folder.root).trials()[0].state == "running"
    assert scripts.call("tell", "A", "A.l1.t01", "1", "1", "1").exit_code == EXITS["done"]
    record = Run(scripts.folder.root).trials()[0]
    assert (record.state, record.attempts, record.error) == ("failed", 2, "exit code 1")


def test_beyond_the_budget_nodes_are_skipped_but_known_ones_still_answered(
    scripts: Scripts,
) -> None:
    for i in (1, 2, 3):
        scripts.ask(f"A.l1.t0{i}")
    assert scripts.ask("A.l1.t04") == EXITS["skip"]
    assert scripts.ask("A.l1.t03") == EXITS["done"]


def test_too_many_failures_stop_the_region_and_say_why(make_run: MakeRun) -> None:
    scripts = Scripts(make_run(budget={"trials": 5, "lanes": 1, "failures": 1}))
    for i in (1, 2):
        scripts.ask(f"A.l1.t0{i}")
    assert scripts.call("tell", "A", "A.l1.t01", "1", "1", "1").exit_code == EXITS["done"]
    assert scripts.call("tell", "A", "A.l1.t02", "1", "1", "1").exit_code == EXITS["stop"]
    assert scripts.ask("A.l1.t03") == EXITS["stop"]
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["stop"]
    assert "failed for good" in scripts.folder.region("A").stopped.read_text()


def test_the_best_settings_are_trained_in_full_and_published(scripts: Scripts) -> None:
    for i, loss in ((1, 0.5), (2, 0.1), (3, 0.3)):
        scripts.ask(f"A.l1.t0{i}")
        scripts.finish(f"A.l1.t0{i}", loss)
    assert scripts.call("ask-best", "A", "A.best").exit_code == EXITS["done"]
    best = scripts.folder.region("A").best
    told = json.loads(best.trial_json.read_text())
    assert (told["mode"], told["trial"]) == ("final", 1)
    best.result.write_text('{"status": "complete", "metrics": {"loss": 0.05}}')
    empty = scripts.call("tell-best", "A", "A.best", "0", "0", "1")
    assert empty.exit_code == EXITS["stop"]
    assert "nothing in model/" in empty.message
    (best.model / "weights").touch()
    assert scripts.call("tell-best", "A", "A.best", "0", "0", "1").exit_code == EXITS["done"]
    assert publish_region(scripts.folder, "A") == EXITS["done"]
    assert publish_region(scripts.folder, "A") == EXITS["done"]
    settings = Run(scripts.folder.root).best()[0]
    assert (settings.value, settings.final) == (0.1, {"loss": 0.05})


def test_a_model_that_cant_be_published_stops_its_region_and_says_why(
    scripts: Scripts, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in (1, 2, 3):
        scripts.ask(f"A.l1.t0{i}")
        scripts.finish(f"A.l1.t0{i}")
    scripts.call("ask-best", "A", "A.best")
    best = scripts.folder.region("A").best
    best.result.write_text('{"status": "complete", "metrics": {"loss": 0.05}}')
    (best.model / "metrics.json").touch()
    assert publish_region(scripts.folder, "A") == EXITS["stop"]
    reason = json.loads(scripts.folder.region("A").stopped.read_text())["reason"]
    assert "that name is trialfleet's" in reason
    assert reason in capsys.readouterr().out


def test_without_a_complete_trial_there_is_nothing_to_train(scripts: Scripts) -> None:
    reply = scripts.call("ask-best", "A", "A.best")
    assert reply.exit_code == EXITS["stop"]
    assert "no trial completed" in reply.message


def test_a_second_service_knows_what_the_first_did(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    told = scripts.trial("A.l1.t01").trial_json.read_bytes()
    scripts.handler = NodeScripts(scripts.folder)
    scripts.ask("A.l1.t01")
    assert scripts.trial("A.l1.t01").trial_json.read_bytes() == told
    scripts.finish("A.l1.t01")
    assert len(Run(scripts.folder.root).trials()) == 1


def test_an_unknown_word_is_answered_and_not_a_crash(scripts: Scripts) -> None:
    reply = scripts.call("dance")
    assert reply.exit_code == EXITS["retry"]
    assert "ask, tell" in reply.message


def test_the_status_of_a_plan_is_planned(scripts: Scripts) -> None:
    status = StatusReader(scripts.folder).read()
    assert status.state is RunState.PLANNED
    assert status.regions[0].budget == 3
    assert json.loads(json.dumps(status.to_json()))["schema"] == 1


def test_the_status_counts_what_the_study_knows_when_no_pool_is_there(scripts: Scripts) -> None:
    for i in (1, 2):
        scripts.ask(f"A.l1.t0{i}")
    scripts.finish("A.l1.t01", 0.25)
    scripts.folder.dag.with_name("study.dag.condor.sub").touch()
    status = StatusReader(scripts.folder).read()
    assert status.state is RunState.UNKNOWN
    assert status.notice is not None
    region = status.regions[0]
    assert (region.done, region.failed, region.best, region.best_trial) == (1, 0, 0.25, 0)


def test_another_spelling_of_a_runs_folder_is_the_same_run(scripts: Scripts, work: Path) -> None:
    (work / "link").symlink_to(scripts.folder.root)
    assert open_run(work / "link") == scripts.folder
    assert open_run(scripts.folder.root / "regions" / "..") == scripts.folder


def test_a_run_that_was_moved_is_refused(scripts: Scripts, work: Path) -> None:
    scripts.folder.root.rename(work / "elsewhere")
    with pytest.raises(InputError, match="move it back"):
        open_run(work / "elsewhere")


def test_a_storage_out_of_reach_is_a_notice_beside_what_was_seen_last(scripts: Scripts) -> None:
    scripts.ask("A.l1.t01")
    scripts.finish("A.l1.t01", 0.25)
    reader = StatusReader(scripts.folder)
    assert reader.read().regions[0].done == 1
    for file in scripts.folder.root.glob("study.db*"):
        file.write_bytes(b"no database" * 1000)
    status = reader.read()
    assert "the study can't be read" in (status.notice or "")
    assert status.regions[0].done == 1
