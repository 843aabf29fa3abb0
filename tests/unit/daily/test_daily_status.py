"""`trialfleet daily status`: long reasons, models that wait for approval, and hints."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Outcome
from trialfleet.workflows.facts.models.approval import note_awaiting, passed_words, read_awaiting
from trialfleet.workflows.formatting import local_time
from trialfleet.workflows.views.terminal.days_table import full_reason_hint

DAY = date(2026, 11, 22)
BEFORE = date(2026, 11, 21)
LONG = "test_rmse 1595, champion 383.1: worse by 1212, and that is more than chance (95%); " * 2
LONG = LONG.strip("; ")
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_reason_takes_one_line_and_its_command_is_below_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    command = f"trialfleet promote '{tmp_path}/models/a model with a long path/demo/A/2026-11-21'"
    log = tmp_path / "runs" / "demo" / "a-day-s-run-with-a-long-name" / "regions" / "NO" / "err"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go.sh").write_text("exit 0\n")
    file = write(tmp_path, MINIMAL + "daily: {at: '02:30', zone: UTC}\n")
    journal = Days(file, clock=lambda: NOON, say=lambda _: None).journal
    for day in (BEFORE, DAY):
        run = f"demo-{day}"
        journal.begin(
            Attempt(date=day, attempt=1, run=run, regions=("A", "NO"), started=NOON, deadline=None)
        )
        kept = f"kept {day}: {LONG}; to change that: {command}"
        reasons = [("A", Ending.KEPT, kept), ("NO", Ending.FAILED, f"exit code 1; see {log}")]
        journal.record(
            [
                Outcome(date=day, region=region, attempt=1, ending=ending, why=why, run=run)
                for region, ending, why in reasons
            ],
            NOON,
        )
    monkeypatch.setenv("COLUMNS", str(width))
    lines = CliRunner().invoke(main, ["daily", "status", str(file)]).output.splitlines()
    assert [line for line in lines if "promote" in line] == [f"to change that  A  {command}"]
    assert [line for line in lines if str(log) in line] == [f"log  NO  {log}"]
    rows = [line for line in lines if line.startswith("│")]
    assert all(len(line) <= width for line in rows)
    assert len(rows) == 2 + 2 + 2, "a line for each day, region, and region of the day before"
    assert sum(line.endswith("… │") for line in rows) == 2
    assert [line for line in lines if line.startswith("full reasons")] == [
        f"full reasons: trialfleet why REGION --run demo/demo-{day}, or daily status --json"
        for day in (DAY, BEFORE)
    ]
    monkeypatch.setenv("COLUMNS", "1000")
    whole = CliRunner().invoke(main, ["daily", "status", str(file)]).output
    assert whole.count(LONG) == 2
    assert "full reasons" not in whole


def test_a_model_that_waits_for_approval_is_shown_until_it_is_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go.sh").write_text("exit 0\n")
    file = write(tmp_path, MINIMAL + "daily: {at: '02:30', zone: UTC}\n")
    model = tmp_path / "models" / "demo" / "A" / "r2"
    model.mkdir(parents=True)
    write_json(model / "provenance.json", {"study": "demo", "region": "A", "run": "r2"})
    note_awaiting(model)
    since = read_awaiting(model.parent)
    assert since
    journal = Days(file, clock=lambda: NOON, say=lambda _: None).journal
    journal.begin(
        Attempt(date=DAY, attempt=1, run="r2", regions=("A",), started=NOON, deadline=None)
    )
    why = passed_words(model, "loss 0.3, champion 0.4")
    one = Outcome(date=DAY, region="A", attempt=1, ending=Ending.KEPT, why=why, run="r2")
    journal.record([one], NOON)
    monkeypatch.setenv("COLUMNS", "80")

    def status(*words: str) -> str:
        return CliRunner().invoke(main, ["daily", "status", str(file), *words]).output

    since_then = f"waits for approval since {local_time(since.since)}"
    asked = f"A: the model of r2 {since_then}: trialfleet promote"
    assert f"{asked} {model}" in status().splitlines()
    waiting = json.loads(status("--json"))["awaiting"]["A"]
    assert (waiting["run"], waiting["path"]) == ("r2", str(model))
    models = tmp_path / "models"
    models.rename(tmp_path / "kept")
    models.symlink_to("models")  # can't be read
    (line,) = (line for line in status().splitlines() if line.startswith("it is unknown"))
    assert line.startswith("it is unknown whether models wait for approval: ")
    models.unlink()
    (tmp_path / "kept").rename(models)
    promote(model)
    assert "waited for approval" not in status()
    assert [line for line in status().splitlines() if line.startswith("to change that")] == []
    assert json.loads(status("--json"))["awaiting"] == {}


def test_the_hint_below_the_table_names_the_command_for_full_reasons() -> None:
    def hint(*runs: str | None) -> str:
        reasons = [
            Outcome(date=DAY, region=str(at), attempt=1, ending=Ending.FAILED, why=LONG, run=run)
            for at, run in enumerate(runs)
        ]
        return full_reason_hint("demo", reasons)

    one = "full reasons: trialfleet why REGION --run demo/r1, or daily status --json"
    assert hint("r1", "r1") == hint("r1", None) == one
    assert hint("r1", "r2") == one.replace("r1", "RUN")
    assert hint(None) == "full reasons: trialfleet daily status --json", "no run can tell"
