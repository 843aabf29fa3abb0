"""When days begin, which are made up for, and what systemd is told of it."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from trialfleet.errors import PoolError
from trialfleet.workflows.daily.crontab import cron_keys
from trialfleet.workflows.daily.missed import days_to_do, due_day, next_start
from trialfleet.workflows.daily.start import write_start
from trialfleet.workflows.daily.units import Units, calendar, explained
from trialfleet.workflows.journal.folder import DailyFolder
from trialfleet.workflows.study.daily import Daily, RunsDay

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)
HOSTILE = "a 'b' %h; $HOME ü"


def daily(**changes: Any) -> Daily:
    return Daily.model_validate({"at": "02:30", "zone": "Europe/Oslo"} | changes)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "day"),
    [
        ("2026-11-22T01:31", "2026-11-22"),  # 2:31 in Oslo
        ("2026-11-22T01:26", "2026-11-22"),  # a scheduler whose clock is ahead
        ("2026-11-22T01:00", "2026-11-21"),
        ("2026-11-21T23:30", "2026-11-21"),  # the 22nd in Oslo, and not yet half past two
        ("2026-07-22T00:31", "2026-07-22"),  # summer time
    ],
)
def test_a_day_is_due_from_its_time_on_in_its_zone(now: str, day: str) -> None:
    assert due_day(daily(), at(now)) == date.fromisoformat(day)


def test_the_next_start_is_after_now_also_where_clocks_change() -> None:
    assert next_start(daily(), at("2026-11-22T01:30")) == at("2026-11-23T01:30")
    assert next_start(daily(), at("2026-11-22T01:29")) == at("2026-11-22T01:30")
    assert next_start(daily(), at("2026-10-24T12:00")) == at("2026-10-25T00:30")  # it comes twice


@pytest.mark.parametrize(
    ("missed", "days"), [("all", [20, 21, 22]), ("latest", [22]), ("none", [22])]
)
def test_missed_days_are_made_up_for_as_the_study_says(missed: str, days: list[int]) -> None:
    begun = {date(2026, 11, n) for n in (17, 19, 18)}
    now = at("2026-11-22T06:00")
    assert [day.day for day in days_to_do(daily(missed=missed), begun, now)] == days
    assert days_to_do(daily(missed=missed), [], now) == [date(2026, 11, 22)]
    begun = {date(2026, 11, 22)}  # joined, or shown
    assert days_to_do(daily(missed=missed), begun, now) == [date(2026, 11, 22)]


def test_a_deadline_is_so_long_after_the_start() -> None:
    start = at("2026-11-22T01:30")
    assert daily().ends(start) is None
    ends = daily(deadline="1h30m").ends(start)
    assert ends == at("2026-11-22T03:00")
    day = RunsDay(date=date(2026, 11, 22), deadline=ends)
    assert day.refusal(at("2026-11-22T02:59")) is None
    assert day.refusal(at("2026-11-22T03:00")) == (
        "the day's deadline, 2026-11-22 03:00 UTC, is over"
    )


def test_htcondors_job_starts_at_the_studys_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = at("2026-11-22T12:00")
    assert cron_keys(daily(zone="Asia/Kathmandu"), now) == ("*", "45")
    assert cron_keys(daily(missed="none"), now) in {("0,1", "30")}  # the machine's time is UTC


@needs_systemd
@pytest.mark.parametrize("zone", [None, "Europe/Oslo", "UTC"])
def test_systemd_reads_when_days_begin(zone: str | None) -> None:
    output = explained(daily(zone=zone))
    assert "02:30:00" in output
    assert "Next elapse" in output
    assert calendar(daily(zone=None, at="7:05")) == "*-*-* 07:05:00"


@needs_systemd
@pytest.mark.parametrize("system", [False, True])
def test_systemd_takes_the_units_whatever_their_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, system: bool
) -> None:
    here = tmp_path / HOSTILE
    here.mkdir()
    monkeypatch.chdir(here)
    folder = DailyFolder.of("demo")
    write_start(folder, "demo", here / "study.yaml")
    asked: list[list[str]] = []
    units = Units("trialfleet-daily-demo", tmp_path / "units", system, run=recorder(asked))
    units.install("demo", daily(missed="none"), folder.start, "root")
    assert asked[1][-3:] == ["enable", "--now", "trialfleet-daily-demo.timer"]
    assert ("--user" in asked[0]) is not system
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(units.timer), str(units.service)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert "demo" not in verified.stderr, verified.stderr
    assert "a 'b' %%h; $$HOME ü/runs/demo/daily.start\"" in units.service.read_text()
    assert "Persistent=false" in units.timer.read_text()
    assert units.remove()
    assert not units.remove()
    assert list(units.place.iterdir()) == []


def test_a_timer_that_is_removed_leaves_nothing_of_when_it_fired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    stamp = tmp_path / "systemd/timers/stamp-trialfleet-daily-demo.timer"
    stamp.parent.mkdir(parents=True)
    asked: list[list[str]] = []
    units = Units("trialfleet-daily-demo", tmp_path / "units", system=False, run=recorder(asked))
    units.install("demo", daily(), tmp_path / "daily.start", "")
    stamp.touch()  # as systemd does
    assert units.remove()
    assert not stamp.exists()
    assert asked[-1][-2:] == ["reset-failed", "trialfleet-daily-demo.service"]


def recorder(asked: list[list[str]]) -> Any:
    """Stands for systemctl, which can't be had where systemd doesn't run."""

    def run(words: list[str]) -> str:
        asked.append(words)
        return ""

    return run


def test_a_systemd_that_does_not_answer_is_none() -> None:
    def refuses(_: list[str]) -> str:
        raise PoolError("Failed to connect to bus")

    assert not Units("name", Path("/nowhere"), system=False, run=refuses).can_be_used()


@pytest.mark.slow
def test_the_start_begins_where_it_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / HOSTILE
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("AWS_PROFILE", "it's $HOME")
    folder = DailyFolder.of("demo")
    write_start(folder, "demo", Path("no-study.yaml"))
    ended = subprocess.run(["/bin/sh", str(folder.start)], cwd="/", capture_output=True, text=True)
    assert ended.returncode == 2
    assert str(here / "no-study.yaml") in ended.stderr
