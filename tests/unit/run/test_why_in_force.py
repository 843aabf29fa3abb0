"""`trialfleet why` of a region whose `latest` a person has moved since its run published."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.stored_runs import stored
from trialfleet import Run
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.explain import explain

WORSE = "loss 9, champion 0.1"
KEPT = f"kept the current model (run day1) instead of this one: {WORSE}"


@pytest.fixture
def models(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models of region A of the runs day1 and day2, of which the gate kept the second out."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("SUDO_USER", "anna")
    folder = work / "models" / "demo" / "A"
    for name in ("day1", "day2"):
        run = make_run(run=name, out=work / "runs" / "demo" / name, publish="models", gate={})
        files = RunFolder(run.folder)
        files.dag_files.submit.touch()
        (folder / name).mkdir(parents=True)
        (folder / name / "provenance.json").write_text(json.dumps({"study": "demo", "run": name}))
        is_kept = name == "day2"
        more = {"not_latest": f"{KEPT}; to change that: x"} if is_kept else {}
        write_json(files.region("A").published, {"path": str(folder / name), **more})
        verdict = {
            "verdict": "kept" if is_kept else "promoted",
            "why": WORSE if is_kept else "there was no model",
            "metric": "loss",
            "champion": {"run": "day1", "metrics": {"loss": 0.1}} if is_kept else None,
            "challenger": {"run": name, "metrics": {"loss": 9.0}},
            "baseline": None,
            "interval": None,
        }
        write_json(files.region("A").verdict, verdict)
    history.note(folder / "latest", "day1", "publish")
    (folder / "latest").symlink_to("day1")
    return folder


def since(models: Path) -> str:
    """Return the text on the time at which `latest` moved last."""
    time = history.changes(models / "latest")[-1].time
    assert time is not None
    return f"since {datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M}"


def explain_region_a(run: str) -> Answer:
    return explain("A", run)


def test_a_model_that_a_person_promoted_past_the_gate_is_shown_as_current(models: Path) -> None:
    before = explain_region_a("day2")
    assert (before.kind, before.why) == (Kind.GATE_KEPT, f"the gate {KEPT}")
    promote(models / "day2")
    answer = explain_region_a("day2")
    assert (answer.kind, answer.blame) == (Kind.WELL, Blame.NOBODY)
    assert answer.why == (
        f"its model has been current {since(models)}, by hand (promote by anna): "
        f"{models / 'day2'}; the gate had {KEPT}"
    )
    assert not answer.command


@pytest.mark.usefixtures("empty_queue")
def test_a_reason_of_several_rejected_models_is_shown_once_with_their_number(
    models: Path, make_run: MakeRun
) -> None:
    run = make_run(run="two", regions=["A", "B"], publish="models", gate={})
    files = RunFolder(run.folder)
    files.dag_files.submit.touch()
    doubtful = "no better than a constant prediction (loss 9); are the labels right?"
    for name in ("A", "B"):
        verdict = json.loads(
            RunFolder(models.parents[2] / "runs/demo/day2").region("A").verdict.read_text()
        )
        write_json(files.region(name).verdict, verdict | {"why": doubtful})
        words = f"kept the current model (run day1) instead of this one: {doubtful}"
        published = models.parent / name / "two"
        (published / "provenance.json").parent.mkdir(parents=True)
        (published / "provenance.json").write_text(json.dumps({"study": "demo", "run": "two"}))
        write_json(
            files.region(name).published,
            {"path": str(published), "not_latest": f"{words}; to change that: x"},
        )
    answer = explain(None, "two")
    assert answer.why == (
        "2 of 2 regions, for example A: the gate kept the current model (run day1) instead of this "
        "one: "
        f"{doubtful}"
    )
    assert [note for note in answer.notes if note.startswith("A: ")] == []
    assert len(answer.notes) == 1
    files.region("B").published.unlink()
    files.region("B").verdict.unlink()
    write_json(files.region("B").stopped, {"reason": "no trial can succeed"})
    assert explain(None, "two").why.startswith(
        "2 of 2 regions for different reasons, for example A: the gate"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("empty_queue")
def test_best_says_that_a_rejected_model_is_not_the_current_one(models: Path) -> None:
    place = models.parents[2] / "runs" / "demo" / "day2"
    best = RunFolder(place).region("A").root / "best"
    write_json(best / "result.json", {"status": "complete", "metrics": {"loss": 9.0}})
    with stored(Run(place)) as opened:
        opened.fill("A", 3, datetime(2026, 11, 22, 7))
    lines = CliRunner().invoke(main, ["best", "day2"]).output.splitlines()
    assert lines[-1] == f"model  A  {models / 'day2'}  (not the current model)"


def test_the_model_that_was_replaced_is_shown_as_no_longer_current(models: Path) -> None:
    assert explain_region_a("day1").why == f"its model is published and current: {models / 'day1'}"
    promote(models / "day2")
    answer = explain_region_a("day1")
    assert (answer.kind, answer.blame) == (Kind.NOT_LATEST, Blame.PERSON)
    assert answer.why == (
        "its model is no longer current: "
        f"the model of day2 has been current {since(models)}, by hand "
        "(promote by anna)"
    )
    assert answer.lines()[1] == (
        f"next: to make it current again: trialfleet promote {models / 'day1'}"
    )


def test_a_rollback_is_shown_for_both_models(models: Path) -> None:
    promote(models / "day2")
    rollback(models)
    back = explain_region_a("day1")
    how = f"{since(models)}, by hand (rollback by anna)"
    expected = f"its model has been current {how}: {models / 'day1'}"
    assert (back.kind, back.why) == (Kind.WELL, expected)
    answer = explain_region_a("day2")
    assert (answer.kind, answer.blame) == (Kind.NOT_LATEST, Blame.PERSON)
    assert answer.why == (
        f"its model was rolled back: the model of day1 has been current {since(models)}, "
        f"by hand (rollback by anna); the gate had {KEPT}"
    )
    assert answer.command == f"trialfleet promote {models / 'day2'}"


def test_a_model_that_a_newer_run_replaced_is_no_problem(models: Path) -> None:
    history.note(models / "latest", "day2", "publish")
    (models / "latest").unlink()
    (models / "latest").symlink_to("day2")
    answer = explain_region_a("day1")
    assert answer.kind is Kind.WELL
    current = f"the model of day2 has been current {since(models)}"
    assert answer.why == f"its model is published; {current}"
    assert not answer.command
