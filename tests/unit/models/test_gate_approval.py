"""A model that passed the gate waits for a person's approval."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.models.conftest import KEPT_R1, Day, MakeDay
from tests.unit.terminal import printed
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.control.models.retention import models_to_keep
from trialfleet.workflows.facts.journal.journal import Ending, ending_with_model
from trialfleet.workflows.facts.models.approval import read_awaiting
from trialfleet.workflows.facts.models.history import changes
from trialfleet.workflows.facts.models.listing import ModelState, list_published_models
from trialfleet.workflows.views.report.groups import group_regions
from trialfleet.workflows.views.report.page_texts import attention
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.terminal.status_view import run_view
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.slow
ASKS = {"gate": {"approve": True}}


@pytest.fixture
def waiting(champion: Day, make_day: MakeDay) -> Day:
    """The run r2: its model passed the gate and waits for approval."""
    day = make_day("r2", **ASKS)
    day.decide(0.4, 0.3)
    return day


def test_a_model_that_passed_waits_until_a_person_promotes_it(
    waiting: Day, monkeypatch: pytest.MonkeyPatch, work: Path
) -> None:
    assert json.loads(waiting.files.verdict.read_text())["verdict"] == "promoted"
    assert (waiting.latest, waiting.region_status.stage) == ("r1", "kept")
    path = waiting.models / "r2"
    assert re.fullmatch(
        rf"waits for approval since \d{{4}}-\d\d-\d\d \d\d:\d\d: loss 0\.3, champion 0\.4"
        rf"; to change that: trialfleet promote {path}",
        waiting.not_latest,
    )
    ending, why = ending_with_model(waiting.files)
    assert ending is Ending.KEPT
    assert why == (
        "it passed the gate: loss 0.3, champion 0.4; with gate.approve a person promotes it: "
        f"trialfleet promote {path}"
    )
    monkeypatch.chdir(work)
    done = CliRunner().invoke(main, ["promote", "r2/A", "--why", "looked at it"])
    assert done.output == "demo/A: latest is r2 (was r1)\n"
    assert (waiting.latest, waiting.not_latest, waiting.region_status.stage) == (
        "r2",
        "",
        "published",
    )
    assert changes(path.with_name("latest"))[-1].why == "looked at it"
    assert read_awaiting(path.parent) is None


def test_each_view_shows_that_the_model_waits_for_approval(
    waiting: Day, list_models: Callable[..., str]
) -> None:
    waits = waiting.not_latest.partition("; to change that")[0]
    assert f"r2: {waits.removesuffix(': loss 0.3, champion 0.4')}" in list_models()
    assert re.search(r"r2 .* waits for approval since", list_models("A"))
    assert "gate      passed: loss 0.3, champion 0.4" in list_models("A", "--card", "r2")
    (region,) = json.loads(list_models("--json"))
    assert [model["standing"] for model in region["models"]] == [
        ModelState.CURRENT,
        ModelState.AWAITS,
    ]
    status = waiting.status
    assert f"A: {waits}; to change that: trialfleet promote {waiting.models / 'r2'}" in " ".join(
        printed(run_view(status)).split()
    )
    assert status.to_json()["regions"][0]["awaits_approval"]
    (trouble,) = attention(read_report(waiting.folder))
    assert trouble.reason == waits
    assert [group.title for group in group_regions(read_report(waiting.folder))] == ["Not current"]
    answer = explain("A", str(waiting.run.folder))
    assert (answer.kind.value, answer.why) == ("awaits-approval", waits)
    assert answer.command == f"trialfleet promote {waiting.models / 'r2'}"


def test_the_first_model_of_a_region_waits_too(
    make_day: MakeDay, list_models: Callable[..., str]
) -> None:
    day = make_day("r1", **ASKS)
    day.ask_gate()
    day.publish()
    assert not (day.models / "latest").is_symlink()
    assert "this study had no current model" in day.not_latest
    for named in ([], ["A"], ["demo"]):
        assert "waits for approval since" in list_models(*named)
    promote(day.models / "r1")
    assert day.not_latest == ""


def test_a_newer_model_that_passes_waits_in_place_of_the_earlier_one(
    waiting: Day, make_day: MakeDay
) -> None:
    third = make_day("r3", **ASKS)
    assert third.decide(0.4, 0.2)["champion"]["run"] == "r1"
    assert third.not_latest.startswith("waits for approval since")
    assert waiting.not_latest.startswith("it passed the gate and was not approved: loss 0.3")
    assert [model.standing for model in list_published_models(third.models)] == [
        ModelState.CURRENT,
        ModelState.NEVER,
        ModelState.AWAITS,
    ]
    promote(third.models / "r2")  # the older one, by name
    assert (third.latest, waiting.not_latest) == ("r2", "")
    assert third.not_latest.startswith("waits for approval since")
    promote(third.models / "r3")
    rollback(third.models)
    assert third.not_latest.startswith(
        "another model replaced it as the current model; it had passed the gate: "
    )
    assert read_awaiting(third.models) is None


def test_no_model_waits_once_a_newer_one_is_current_without_approval(
    waiting: Day, make_day: MakeDay
) -> None:
    third = make_day("r3")
    third.decide(0.4, 0.2)
    assert third.latest == "r3"
    assert read_awaiting(third.models) is None
    assert "was not approved" in waiting.not_latest


def test_keep_does_not_remove_a_model_that_waits(waiting: Day) -> None:
    assert models_to_keep(waiting.models) == {"r1", "r2"}


def test_a_rejected_model_waits_for_no_approval(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2", **ASKS)
    day.decide(0.4, 0.5)
    assert KEPT_R1 in day.not_latest
    assert read_awaiting(day.models) is None
