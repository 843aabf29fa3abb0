"""The program that sends alerts while HTCondor's job for a study's days is on hold."""

from __future__ import annotations

from pathlib import Path

from trialfleet.files import lock_file
from trialfleet.workflows.control.dagman.alert_and_export_processes import SCHEDULE_LOCK
from trialfleet.workflows.control.daily.schedule import watch_held_job
from trialfleet.workflows.facts.journal.folder import DailyFolder


def test_a_second_program_for_the_same_schedule_ends_at_once(tmp_path: Path) -> None:
    """A new supervisor can't know the process that its predecessor started."""
    days = DailyFolder(tmp_path)
    days.alerts.mkdir()
    with lock_file(days.alerts / SCHEDULE_LOCK, wait=False) as ours:
        assert ours
        watch_held_job(days)  # would raise, because no study is named here
