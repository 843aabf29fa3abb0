"""`publish: none`, and trainers that leave no model. No pool needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.scripts.publish_program import publish_region
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.slow


BUDGET = {"trials": 2, "lanes": 1}


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
    scripts = Scripts(make_run(publish="none", budget=BUDGET))
    scripts.train(0.5, 0.5)
    run = scripts.run
    assert run.status().regions[0].stage != "tuned"
    assert scripts.call("conclude", "A", "A.tuned").exit_code == EXITS["skip"]
    result = scripts.call("tell-best", "A", "A.tuned", "-1004", "0", "1", str(EXITS["skip"]))
    assert result.exit_code == EXITS["done"]
    assert scripts.call("end", "A", "0").message == "A: tuned"
    assert scripts.call("begin", "A").exit_code == EXITS["skip"]
    (best,) = run.best()
    assert (best.stage, best.published, best.final) == ("tuned", None, None)


def test_a_region_without_a_result_has_nothing_to_conclude(make_run: MakeRun) -> None:
    scripts = Scripts(make_run(publish="none", budget=BUDGET))
    assert scripts.call("conclude", "A", "A.tuned").exit_code == EXITS["stop"]
    assert scripts.stop_reason == "no trial completed, so there are no best settings"
    assert not scripts.files.is_done


def test_a_folder_called_none_is_written_with_a_dot(make_run: MakeRun, work: Path) -> None:
    assert make_run(publish="./none").study.publish == str(work / "none")


def test_the_reason_says_what_a_trainer_without_a_model_lacks(make_run: MakeRun) -> None:
    scripts = Scripts(make_run(regions=["A", "B"], budget=BUDGET))
    scripts.train(0.5)
    scripts.train_best()
    assert scripts.tell_best(0).exit_code == EXITS["stop"]  # at once: not retried
    for part in ("left nothing in model/", "mode final", "t.model", "publish: none"):
        assert part in scripts.stop_reason


def test_no_other_region_is_trained_by_a_trainer_that_left_no_model(make_run: MakeRun) -> None:
    one = Scripts(make_run(regions=["A", "B"], budget=BUDGET))
    other = one.in_region("B")
    for region in (one, other):
        region.train(0.5)
    one.train_best()
    one.tell_best(0)
    assert other.ask_best().exit_code == EXITS["stop"]
    assert other.stop_reason.startswith("not trained in full, because A, with the same trainer, ")
    assert not other.best.trial_json.exists()
    one.call("begin", "A")  # a person resumes the run
    assert other.ask_best().exit_code == EXITS["done"]


def test_one_region_without_a_model_stops_no_other_where_another_has_one(
    make_run: MakeRun,
) -> None:
    with_model = Scripts(make_run(regions=["A", "B", "C"], budget=BUDGET))
    without_model, last = with_model.in_region("B"), with_model.in_region("C")
    for region in (with_model, without_model, last):
        region.train(0.5)
    with_model.train_best()
    (with_model.best.model / "weights").touch()
    assert with_model.tell_best(0).exit_code == EXITS["done"]
    assert publish_region(with_model.folder, "A") == EXITS["done"]
    without_model.train_best()
    assert without_model.tell_best(0).exit_code == EXITS["stop"]
    assert last.ask_best().exit_code == EXITS["done"]


@pytest.mark.parametrize(
    ("line", "is_noted"),
    [
        ("model = fit(x)", True),  # code that fits a model may save none
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


def test_a_plan_says_nothing_about_a_trainer_that_is_no_text(make_run: MakeRun, work: Path) -> None:
    (work / "fit").write_bytes(b"\x7fELF\xff")
    (work / "fit").chmod(0o755)
    trainer = {"command": ["./fit"], "files": [str(work / "fit")]}
    assert "note " not in plan_text(make_run(trainer=trainer))
