"""The schedule of a study's days: what `install` says, and alerts while HTCondor's job is held."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.files import lock_file
from trialfleet.workflows.control.dagman.alert_and_export_processes import SCHEDULE_LOCK
from trialfleet.workflows.control.daily import schedule
from trialfleet.workflows.control.daily.schedule import install, watch_held_job
from trialfleet.workflows.control.daily.systemd_timer import Units
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Journal


def test_a_second_program_for_the_same_schedule_ends_at_once(tmp_path: Path) -> None:
    """A new supervisor can't know the process that its predecessor started."""
    days = DailyFolder(tmp_path)
    days.alerts.mkdir()
    with lock_file(days.alerts / SCHEDULE_LOCK, wait=False) as ours:
        assert ours
        watch_held_job(days)  # would raise, because no study is named here


@pytest.mark.parametrize("missed", ["latest", "none"])
def test_install_says_that_the_timer_begins_the_due_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: str
) -> None:
    """The timer starts each hour, so it need not wait for the next day."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go.sh").touch()
    text = f"data: d.txt\ndaily: {{at: '02:30', zone: UTC, missed: {missed}}}\n"
    file, said = write(tmp_path, MINIMAL + text), list[str]()
    for name in ("can_be_used", "install"):
        monkeypatch.setattr(Units, name, lambda *_: True)
    monkeypatch.setattr(schedule, "is_lingering", lambda: True)
    install(file, said.append)
    folder = DailyFolder.for_study("demo")
    journal = Journal(folder.journal)  # as `daily status` makes it before the first day
    install(file, said.append)
    about_due = [line for line in said if "is due, so the timer begins it within an hour" in line]
    assert len(about_due) == 2 * (missed == "latest")
    said.clear()
    now = datetime.now(UTC)
    for day in (now.date(), now.date() - timedelta(days=1)):  # one of them is due
        journal.begin(
            Attempt(date=day, attempt=1, run="r1", regions=("A",), started=now, deadline=None)
        )
    install(file, said.append)
    assert len(said) == 2
