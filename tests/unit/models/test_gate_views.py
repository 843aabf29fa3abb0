"""The gate's verdict in the status, the report, the commands and `why`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.models.conftest import KEPT_R1, Day, MakeDay
from tests.unit.terminal import printed
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.watching import show_end
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.models.verdict import ComparedModel, Verdict
from trialfleet.workflows.facts.runs.lookup import FoundRun
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.views.report.groups import group_regions
from trialfleet.workflows.views.report.page_texts import attention, header
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.report.terminal_table import summary_table
from trialfleet.workflows.views.terminal.run_list import list_runs, runs_table
from trialfleet.workflows.views.terminal.status_view import run_view
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("challenger", "words"),
    [
        (0.3, "A: the gate let it pass: loss 0.3, champion 0.4"),
        (0.9, "A: the gate let a model pass that measured worse: loss 0.9, champion 0.4"),
    ],
)
def test_the_end_of_a_run_says_how_a_model_passed(
    champion: Day,
    make_day: MakeDay,
    capsys: pytest.CaptureFixture[str],
    challenger: float,
    words: str,
) -> None:
    day = make_day("r2", gate={"tolerance": 1.0})
    day.decide(0.4, challenger)
    status = day.status
    with pytest.raises(SystemExit):
        show_end(day.run, replace(status, state=RunState.DONE))
    assert words in capsys.readouterr().out


def test_each_view_says_that_a_worse_model_passed(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2", gate={"tolerance": 1.0})
    assert day.decide(0.4, 0.9)["verdict"] == "promoted"
    passed = "the gate let a model pass that measured worse: loss 0.9, champion 0.4, within the"
    status = day.status
    assert status.to_json()["regions"][0]["gate"]["is_worse"] is True
    assert f"A: {passed}" in " ".join(printed(run_view(status)).split())
    assert passed in explain("A", str(day.run.folder)).why
    report = read_report(day.folder)
    assert attention(report)[0].reason.startswith(passed)
    assert '"is_worse":true' in report.to_json()


def test_models_shows_the_current_model_and_why_the_others_are_not_current(
    champion: Day, make_day: MakeDay, list_models: Callable[..., str]
) -> None:
    make_day("r2").decide(0.4, 0.5)
    assert "rejected (kept r1): loss 0.5, champion 0.4: worse by 0.1" in list_models()
    table = list_models("A").splitlines()
    assert table[1].split()[2:] == ["metric", "by", "the", "last", "gate", "state"]
    assert re.search(r"loss 0.4 +loss 0.4 \(r2's rows\) +current *$", table[2])
    assert re.search(r"loss 0.4 +loss 0.5 \(r2's rows\) +rejected \(kept r1\)", table[3])
    card = list_models("A", "--card")
    assert "promoted: this study had no current model" in card
    assert "r1 " in card  # measured again by r2's gate
    assert f"{KEPT_R1}: loss 0.5" in list_models("A", "--card", "r2")
    (region,) = json.loads(list_models("--json"))
    assert [model["current"] for model in region["models"]] == [True, False]
    assert region["models"][0]["evaluations"] == [{"run": "r2", "value": 0.4}]
    wrong = CliRunner().invoke(main, ["models", "A", "--card", "r9"])
    assert wrong.exit_code == 2
    assert "its models: r1, r2" in wrong.output
    assert CliRunner().invoke(main, ["rollback", "B"]).exit_code == 2


def test_no_view_calls_a_rejected_model_published(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    day.decide(0.4, 0.5)
    assert (champion.region_status.stage, day.region_status.stage) == ("published", "kept")
    assert Stage.KEPT.is_good  # it has ended well
    found = list_runs([FoundRun(day.run.folder, "demo", "r2", 0.0)])
    assert (found[0].published, found[0].kept) == (0, 1)
    assert "0 of 1, 1 not current" in printed(runs_table(found))
    report = read_report(day.folder)
    assert [group.title for group in group_regions(report)] == ["Not current"]
    assert header(report)[0] == ("Models published", "0", "of 1 region · 1 not current")
    (trouble,) = attention(report)
    assert trouble.reason.startswith(f"{KEPT_R1}: loss 0.5, champion 0.4")
    assert "promote" not in trouble.reason
    assert "kept" in printed(summary_table(report))
    promote(day.models / "r2")
    assert day.region_status.stage == "published"  # a person decided otherwise


def write_measured_day(models_folder: Path, number: int, champion: float) -> None:
    """Write a rejected model and its gate's measurement of r1."""
    model = models_folder / f"d{number}"
    model.mkdir()
    verdict = Verdict(
        verdict="kept",
        why="",
        metric="loss",
        champion=ComparedModel(run="r1", metrics={"loss": champion}),
        challenger=ComparedModel(run=model.name, metrics={"loss": 1.0}),
        baseline=None,
        interval=None,
    )
    origin = {"study": "demo", "run": model.name, "created": f"2026-01-0{number}T00:00:00+00:00"}
    (model / "provenance.json").write_text(json.dumps(origin))
    (model / "card.json").write_text(json.dumps({**origin, "gate": verdict.to_json()}))


@pytest.mark.parametrize(("today", "drifted"), [(0.41, False), (0.9, True)])
def test_each_view_says_that_the_champion_has_drifted(
    champion: Day,
    make_day: MakeDay,
    list_models: Callable[..., str],
    today: float,
    drifted: bool,
) -> None:
    for number, value in enumerate([0.40, 0.41, 0.39, 0.42, 0.40], start=1):
        write_measured_day(champion.models, number, value)
    day = make_day("r2")
    day.decide(today, today + 0.1)
    drift = f"r1 has drifted: loss {today:.4g}, outside its past range, 0.3555 to 0.4445"
    status = day.status
    shown = [
        status.regions[0].drift or "",
        read_report(day.folder).to_json(),
        *(list_models(*words) for words in ([], ["A"], ["A", "--card"])),
        printed(run_view(status)),
    ]
    assert [drift in " ".join(each.split()) for each in shown] == [drifted] * len(shown)
