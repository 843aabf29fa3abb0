"""`trialfleet cost` without a pool: which runs it selects, and how it adds up their costs."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.conftest import MakeRun
from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.optimizer.storage import open_storage
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily.day_alerts import tell_days
from trialfleet.workflows.control.notify.delivery import deliver
from trialfleet.workflows.control.notify.slack_message import slack_text
from trialfleet.workflows.facts.journal.event import Event
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.lookup import runs_here
from trialfleet.workflows.facts.runs.run_storage import storage_url, study_name
from trialfleet.workflows.rules.cost_sums import CostSum
from trialfleet.workflows.status.costs.run_costs import _unpriced_text
from trialfleet.workflows.study.loading import load_published
from trialfleet.workflows.study.notify import Channel
from trialfleet.workflows.views.terminal.result_tables import costs_table

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(work: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of one study and one of another; each region has a trial of a dollar and an hour."""
    monkeypatch.chdir(work)
    for study, run, regions in (("s", "r1", "AB"), ("s", "r2", "A"), ("t", "r1", "A")):
        place = work / "runs" / study / run
        planned = make_run(name=study, run=run, out=place, regions=list(regions), team=study)
        storage = open_storage(storage_url(RunFolder(place), planned.study))
        for region in regions:
            name = study_name(planned.study, run, region)
            trial = optuna.trial.create_trial(value=1.0, user_attrs=attributes(lost=region == "B"))
            optuna.create_study(study_name=name, storage=storage).add_trial(trial)
    return work


def attributes(*, lost: bool) -> dict[str, Any]:
    stay = {"machine": "m", "instance": None, "began": 0.0, "ended": 3600.0, "usd": 1.0}
    stays = [{**stay, "end": "done"}]
    if lost:
        stays = [{**stay, "end": "evicted", "usd": 0.5}, {**stay, "end": "done", "usd": None}]
    return {"node": "x", "params": {}, "job": {"stays": stays}}


def cost(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["cost", "--json", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def rows(*words: str) -> dict[tuple[str, ...], float]:
    found = cost(*words)
    return {tuple(row[key] for key in found["by"]): row["usd"] for row in found["rows"]}


def test_a_run_that_cannot_be_read_is_named_beside_the_total(runs: Path) -> None:
    damaged = RunFolder(runs / "runs" / "t" / "r1").study
    damaged.write_text("{")
    assert rows() == {("s/r1",): 1.5, ("s/r2",): 1.0}
    beginning = "the run runs/t/r1 is not counted: "
    (notice,) = [each for each in cost()["notices"] if each.startswith(beginning)]
    assert str(damaged) in notice
    assert not any(each.startswith(beginning) for each in cost("s/r1")["notices"])


@pytest.mark.usefixtures("runs")
def test_cost_groups_runs_by_the_requested_keys() -> None:
    assert rows("s/r2") == {("A",): 1.0}
    assert rows("s") == {("s/r1",): 1.5, ("s/r2",): 1.0}
    assert rows("s/r1", "t/r1") == {("s/r1",): 1.5, ("t/r1",): 1.0}
    assert set(rows("--by", "study,run")) == {("s", "r1"), ("s", "r2"), ("t", "r1")}
    assert rows("s", "t/r1", "--by", "study") == {("s",): 2.5, ("t",): 1.0}
    assert rows("--by", "team, kind") == {
        ("s", "evicted"): 0.5,
        ("s", "trials"): 2.0,
        ("t", "trials"): 1.0,
    }
    assert rows("--by", "region") == {("A",): 3.0, ("B",): 0.5}
    (row,) = cost("--by", "day")["rows"]
    assert (row["usd"], row["work"], row["lost"], row["hours"]) == (3.5, 3.0, 0.5, 5.0)


def test_notices_name_unknown_and_missing_costs(runs: Path) -> None:
    (notice,) = cost("s")["notices"]
    assert "the cost of 1.00 slot hours is unknown" in notice
    assert "the cost of 0.12 slot minutes is unknown" in _unpriced_text(0.002)
    (runs / "runs/t/r1/study.db").write_text("no database")
    notices = cost()["notices"]
    assert any("the cost of t/r1 is missing" in attributes for attributes in notices)
    assert cost()["total"]["usd"] == 2.5


@pytest.mark.usefixtures("runs")
def test_cost_prints_a_table_with_a_total() -> None:
    shown = CliRunner().invoke(main, ["cost", "s"]).output
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["run", "USD", "work", "lost", "slot", "hours"]
    assert lines[1] == ["s/r1", "1.50", "1.00", "0.5000", "3.00"]
    assert ["total", "2.50", "2.00", "0.5000", "4.00"] in lines


def test_an_unknown_price_is_shown_as_a_dash(runs: Path, make_run: MakeRun) -> None:
    planned = make_run(name="u", run="r1", out=runs / "runs/u/r1", regions=["A", "B"])
    storage = open_storage(storage_url(RunFolder(planned.folder), planned.study))
    for region in "AB":
        attributes_ = attributes(lost=True)
        for stay in attributes_["job"]["stays"]:
            stay["usd"] = None
        trial = optuna.trial.create_trial(value=1.0, user_attrs=attributes_)
        name = study_name(planned.study, "r1", region)
        optuna.create_study(study_name=name, storage=storage).add_trial(trial)
    found = cost("u/r1")
    assert [row["usd"] for row in found["rows"]] == [None, None]
    assert found["total"]["usd"] is None
    shown = CliRunner().invoke(main, ["cost", "u/r1"]).output
    lines = [line.split() for line in shown.splitlines()]
    dash = "\N{EN DASH}"
    assert lines[:2] == [["region", "USD", "slot", "hours"], ["A", dash, "2.00"]]
    assert ["total", dash, "4.00"] in lines
    assert "0.00" not in shown


def test_little_time_has_more_decimals() -> None:
    for hours, text in ((0.0021, "0.0021"), (2.0, "2.00")):
        sums = dict.fromkeys(("work", "lost", "boot", "idle"), 0.0)
        total = CostSum(key={}, usd=1.0, hours=hours, unpriced_hours=0.0, **sums)
        printed = io.StringIO()
        Console(file=printed).print(costs_table([], total, ["run"]))
        assert text in printed.getvalue().split()


def test_cost_without_jobs_or_with_wrong_arguments_says_so(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    assert "no job has run yet" in CliRunner().invoke(main, ["cost"]).output
    for words, attributes in (
        (["--by", "regions"], "unknown key 'regions' (did you mean 'region'?)"),
        (["--by", ""], "write comma-separated keys from: study, run, day, team, region, kind"),
        (["nowhere"], "not a run's folder"),
    ):
        done = CliRunner().invoke(main, ["cost", *words])
        assert done.exit_code == 2
        assert attributes in done.output


def alert_of_day(runs: Path) -> dict[str, Any]:
    """Return the alert about a day of the run s/r1."""
    now = datetime(2026, 11, 22, 8, tzinfo=UTC)
    folder = DailyFolder(runs / "runs" / "s")
    journal = Journal(folder.journal)
    day = Attempt(
        date=now.date(), attempt=1, run="r1", regions=("A", "B", "C"), started=now, deadline=None
    )
    journal.begin(day)
    journal.record(
        [
            Outcome(date=now.date(), region="A", attempt=1, ending=Ending.PUBLISHED, run="r1"),
            Outcome(
                date=now.date(), region="B", attempt=1, ending=Ending.FAILED, why="no", run="r1"
            ),
            Outcome(date=now.date(), region="C", attempt=1, ending=Ending.UNCHANGED),
        ],
        now,
    )
    journal.end(day, now)
    heard = runs / "heard"
    channel = Channel.model_validate({"command": ["sh", "-c", f"cat > '{heard}'"]})
    study = load_published(write(runs, MINIMAL)).model_copy(update={"name": "s"})
    outbox = Outbox(folder.alerts)
    tell_days(study, [channel], outbox, folder, journal, now)
    assert deliver(outbox, [channel]) == 0
    alert: dict[str, Any] = json.loads(heard.read_text())
    return alert


def test_the_alert_of_a_day_has_its_cost_and_that_of_each_region(runs: Path) -> None:
    alert = alert_of_day(runs)
    assert alert["title"] == "s 2026-11-22: 1 published, 1 unchanged, 1 failed, 1.50 USD"
    assert alert["text"].splitlines() == [
        "B  failed     0.50 USD  no",
        "A  published  1.00 USD",
        "C  unchanged",
        "cost: 1.50 USD, of it 0.50 USD lost; 1.0 slot hours have no known price",
        (
            "To retry: trialfleet daily backfill STUDY --from 2026-11-22 --to 2026-11-22 --only "
            "missing"
        ),
    ]
    assert alert["data"]["usd"] == 1.5
    assert [one.get("usd") for one in alert["data"]["regions"]] == [1.0, 0.5, None]
    assert "`" not in alert["text"]
    assert slack_text([Event.read(alert)]).startswith("*s 2026-11-22: 1 published")


def test_the_alert_of_a_day_says_that_its_cost_is_missing(runs: Path) -> None:
    run = RunFolder(runs / "runs" / "s" / "r1")
    run.database.write_bytes(b"no database" * 1000)
    alert = alert_of_day(runs)
    assert alert["title"] == "s 2026-11-22: 1 published, 1 unchanged, 1 failed"
    assert "the cost of s/r1 is missing: " in alert["text"]
    assert "usd" not in alert["data"]


def test_a_run_whose_folder_can_not_be_read_is_named_by_each_view(runs: Path) -> None:
    study = RunFolder(runs / "runs" / "t" / "r1").study
    study.unlink()
    study.symlink_to(study.name)  # root, too, can't read it
    text = "the run in 'runs/t/r1' can't be read: Too many levels of symbolic links"
    assert cost()["notices"][0] == f"the run runs/t/r1 is not counted: {text}"
    for words in (["runs"], ["status", "t/r1"]):
        assert text in CliRunner().invoke(main, words).output
    assert runs_here()[-1].name == "t/r1"
    assert runs_here()[-1].submitted
