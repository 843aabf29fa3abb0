"""`trialfleet daily status` in a narrow terminal."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.daily.days import Days
from trialfleet.workflows.journal.journal import Attempt, Ending, Outcome

DAY = date(2026, 11, 22)
BEFORE = date(2026, 11, 21)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_what_is_to_be_copied_stands_below_the_tables_once_for_each_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        kept = f"kept {day}: worse; to change that: {command}"
        reasons = [("A", Ending.KEPT, kept), ("NO", Ending.FAILED, f"exit code 1; see {log}")]
        journal.record(
            [
                Outcome(date=day, region=region, attempt=1, ending=ending, why=why, run=run)
                for region, ending, why in reasons
            ],
            NOON,
        )
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(main, ["daily", "status", str(file)]).output.splitlines()
    assert [line for line in lines if command in line] == [f"next  A  {command}"]
    assert [line for line in lines if str(log) in line] == [f"log  NO  {log}"]
    assert all(len(line) <= 80 for line in lines if line.startswith(("│", "┃")))
