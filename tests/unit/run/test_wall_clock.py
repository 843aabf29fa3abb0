"""Clocks after the time of day was set: the previous time stays in use for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.conftest import MakeRun
from trialfleet.wall_clock import SETTLED_SECONDS, WallClock
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import load_frozen

BEGAN = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Machine:
    """A machine's clocks, of which one can be set."""

    def __init__(self) -> None:
        self.tick = 0.0
        self.wrong = timedelta()
        self.clock = WallClock(lambda: self.right + self.wrong, lambda: self.tick)

    @property
    def right(self) -> datetime:
        return BEGAN + timedelta(seconds=self.tick)

    def after(self, seconds: float) -> datetime:
        """Return the time in use after this number of seconds."""
        self.tick += seconds
        return self.clock.now()


@pytest.mark.parametrize("hours", [-1, 1, 24])
def test_a_clock_that_is_corrected_is_never_used_while_it_is_wrong(hours: float) -> None:
    machine = Machine()
    assert machine.after(500) == machine.right
    machine.wrong = timedelta(hours=hours)
    for _ in range(6):
        assert machine.after(5) == machine.right
        assert machine.clock.is_set
    machine.wrong = timedelta()
    for _ in range(60):
        assert machine.after(5) == machine.right
    assert not machine.clock.is_set


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_stays_changed_is_used_after_a_while(hours: float) -> None:
    machine = Machine()
    machine.wrong = timedelta(hours=hours)
    assert machine.after(5) == machine.right
    assert machine.after(SETTLED_SECONDS) == machine.right + machine.wrong


def test_a_clock_that_is_adjusted_gradually_is_used() -> None:
    machine = Machine()
    for _ in range(100):
        machine.wrong += timedelta(seconds=2)
        assert machine.after(60) == machine.right + machine.wrong


def test_a_clock_that_is_wrong_for_a_moment_ends_no_day(make_run: MakeRun) -> None:
    machine = Machine()
    folder = RunFolder(make_run().folder)
    day = RunsDay(date=date(2026, 11, 22), deadline=BEGAN + timedelta(minutes=30))
    frozen = load_frozen(folder.study).model_copy(update={"day": day})
    studies = RegionStudies(folder, frozen)
    studies._clock = machine.clock
    assert studies.end_reason() is None
    machine.wrong = timedelta(hours=1)
    machine.tick += 10
    assert studies.end_reason() is None
    machine.wrong = timedelta()
    machine.tick += 30
    assert studies.end_reason() is None
    machine.tick += 1800
    assert "the day's deadline" in (studies.end_reason() or "")


def test_logs_have_times_in_utc() -> None:
    program = (
        "import logging; from trialfleet.wall_clock import log_in_utc; "
        "log_in_utc('%(message)s'); logging.info('hello')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=True,
    )
    time, _, message = done.stderr.partition(" ")
    assert message == "hello\n"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(time)) < timedelta(minutes=1)
