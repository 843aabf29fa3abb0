"""`publish: none`, and trainers that leave no model. No pool needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.unit.run.test_node_scripts import Scripts
from trialfleet import Run
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.scripts.publish_node import publish_region
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.graph import EXITS

pytestmark = pytest.mark.slow


BUDGET = {"trials": 2, "lanes": 1}


class Regions(Scripts):
    """The scripts of a run of several regions with one trial each."""

    def tune(self, region: str) -> None:
        node = f"{region}.l1.t01"
        self.call("ask", region, node)
        place = self.folder.region(region).trial(node)
        place.result.write_text('{"status": "complete", "metrics": {"loss": 0.5}}')
        self.call("tell", region, node, "0", "0", "1", "0")

    def ask_best(self, region: str) -> int:
        return self.call("ask-best", region, f"{region}.best").exit_code

    def train(self, region: str, *, model: bool) -> int:
        best = self.folder.region(region).best
        best.result.write_text('{"status": "complete", "metrics": {"loss": 0.5}}')
        if model:
            (best.model / "weights").touch()
        result = self.call("tell-best", region, f"{region}.best", "0", "0", "1", "0")
        return result.exit_code

    def reason(self, region: str) -> str:
        return str(json.loads(self.folder.region(region).stopped.read_text())["reason"])


def test_a_study_that_publishes_nothing_has_no_full_training_and_no_model(
    make_run: MakeRun, work: Path
) -> None:
    run = make_run(publish="none", budget=BUDGET)
    dag = RunFolder(run.folder).region("A").dag.read_text()
    assert not any(name in dag for name in ("A.best", "A.publish", "ask-best", "publish.sub"))
    assert "CHILD A.tuned" in dag
    assert not (work / "models").exists()
    assert not (work / "none").exists()
    assert "2, without a full training" in plan_text(run)
    # A itself, two trials, tuned; optimizer and report
    assert plan_summary(run)["dag_nodes"] == 6


def test_a_region_that_publishes_nothing_is_done_when_its_trials_are(make_run: MakeRun) -> None:
    scripts = Regions(make_run(publish="none", budget=BUDGET))
    for node in ("A.l1.t01", "A.l1.t02"):
        scripts.ask(node)
        scripts.finish(node)
    run = Run(scripts.folder.root)
    assert run.status().regions[0].stage != "tuned"
    assert scripts.call("conclude", "A", "A.tuned").exit_code == EXITS["skip"]
    result = scripts.call("tell-best", "A", "A.tuned", "-1004", "0", "1", str(EXITS["skip"]))
    assert result.exit_code == EXITS["done"]
    assert scripts.call("end", "A", "0").message == "A: tuned"
    assert scripts.call("begin", "A").exit_code == EXITS["skip"]
    (best,) = run.best()
    assert (best.stage, best.published, best.final) == ("tuned", None, None)


def test_a_region_without_a_result_has_nothing_to_conclude(make_run: MakeRun) -> None:
    scripts = Regions(make_run(publish="none", budget=BUDGET))
    assert scripts.call("conclude", "A", "A.tuned").exit_code == EXITS["stop"]
    assert scripts.reason("A") == "no trial completed, so there are no best settings"
    assert not scripts.folder.region("A").is_done


def test_a_folder_called_none_is_written_with_a_dot(make_run: MakeRun, work: Path) -> None:
    assert make_run(publish="./none").study.publish == str(work / "none")


def test_a_trainer_without_a_model_is_told_what_was_expected(make_run: MakeRun) -> None:
    scripts = Regions(make_run(regions=["A", "B"], budget=BUDGET))
    scripts.tune("A")
    scripts.ask_best("A")
    assert scripts.train("A", model=False) == EXITS["stop"]  # at once: not retried
    for part in ("left nothing in model/", "mode final", "t.model", "publish: none"):
        assert part in scripts.reason("A")


def test_no_other_region_is_trained_by_a_trainer_that_left_no_model(make_run: MakeRun) -> None:
    scripts = Regions(make_run(regions=["A", "B"], budget=BUDGET))
    for region in ("A", "B"):
        scripts.tune(region)
    scripts.ask_best("A")
    scripts.train("A", model=False)
    assert scripts.ask_best("B") == EXITS["stop"]
    assert scripts.reason("B").startswith("not trained in full, as A with the same trainer: the")
    assert not scripts.folder.region("B").best.trial_json.exists()
    scripts.call("begin", "A")  # a person resumes the run
    assert scripts.ask_best("B") == EXITS["done"]


def test_one_region_without_a_model_keeps_no_other_back_where_another_has_one(
    make_run: MakeRun,
) -> None:
    scripts = Regions(make_run(regions=["A", "B", "C"], budget=BUDGET))
    for region in ("A", "B", "C"):
        scripts.tune(region)
    assert (scripts.ask_best("A"), scripts.train("A", model=True)) == (EXITS["done"],) * 2
    assert publish_region(scripts.folder, "A") == EXITS["done"]
    scripts.ask_best("B")
    assert scripts.train("B", model=False) == EXITS["stop"]
    assert scripts.ask_best("C") == EXITS["done"]


@pytest.mark.parametrize(
    ("line", "is_noted"),
    [
        ("model = fit(x)", True),  # what fits a model may save none
        ("if t.mode == 'final': save()", False),
        ("torch.save(net, t.model / 'weights')", False),
        ("cp weights model/", False),
        ('dir.create("model")', False),
    ],
)
def test_a_plan_says_where_a_trainer_seems_to_leave_no_model(
    make_run: MakeRun, work: Path, line: str, is_noted: bool
) -> None:
    (work / "fit.py").write_text(f"{line}\n")
    trainer = {"command": ["python3", "fit.py"], "files": [str(work / "fit.py")]}
    assert ("note     no file of the trainer" in plan_text(make_run(trainer=trainer))) == is_noted
    tuned = make_run(trainer=trainer, publish="none", out=work / "tuned")
    assert "note " not in plan_text(tuned)


def test_of_a_trainer_that_is_no_text_nothing_is_said(make_run: MakeRun, work: Path) -> None:
    (work / "fit").write_bytes(b"\x7fELF\xff")
    (work / "fit").chmod(0o755)
    trainer = {"command": ["./fit"], "files": [str(work / "fit")]}
    assert "note " not in plan_text(make_run(trainer=trainer))
