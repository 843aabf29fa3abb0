"""Start times of days, missed days that are run later, and the timers of systemd and HTCondor."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest

from trialfleet.errors import PoolError
from trialfleet.workflows.control.daily.missed_days import (
    days_to_do,
    next_start,
    timer_hours_and_minutes,
)
from trialfleet.workflows.control.daily.start_script import write_start
from trialfleet.workflows.control.daily.systemd_timer import Units
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.study.daily import Daily

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
    assert daily().due_day(at(now)) == date.fromisoformat(day)


@pytest.mark.parametrize(
    ("now", "day"),
    [
        ("2026-11-21T23:54", "2026-11-21"),
        ("2026-11-21T23:56", "2026-11-22"),  # a scheduler whose clock is ahead
        ("2026-11-22T00:00", "2026-11-22"),
    ],
)
def test_a_day_that_starts_at_midnight_is_due_shortly_before(now: str, day: str) -> None:
    assert daily(at="00:00", zone="UTC").due_day(at(now)) == date.fromisoformat(day)


def test_the_next_start_is_after_now_also_where_clocks_change() -> None:
    assert next_start(daily(), at("2026-11-22T01:30")) == at("2026-11-23T01:30")
    assert next_start(daily(), at("2026-11-22T01:29")) == at("2026-11-22T01:30")
    assert next_start(daily(), at("2026-10-24T12:00")) == at("2026-10-25T00:30")  # it comes twice
    assert next_start(daily(), at("2027-03-27T12:00")) == at("2027-03-28T01:30")  # it never comes


@pytest.mark.parametrize(
    ("missed", "days"), [("all", [20, 21, 22]), ("latest", [22]), ("none", [22])]
)
def test_missed_days_are_run_as_the_study_says(missed: str, days: list[int]) -> None:
    begun = {date(2026, 11, n) for n in (17, 19, 18)}
    now = at("2026-11-22T06:00")
    assert [day.day for day in days_to_do(daily(missed=missed), begun, now)] == days
    assert days_to_do(daily(missed=missed), [], now) == [date(2026, 11, 22)]
    begun = {date(2026, 11, 22)}  # joined, or shown
    assert days_to_do(daily(missed=missed), begun, now) == [date(2026, 11, 22)]


def test_a_deadline_counts_from_the_start() -> None:
    start = at("2026-11-22T01:30")
    assert daily().deadline_after(start) is None
    ends = daily(deadline="1h30m").deadline_after(start)
    assert ends == at("2026-11-22T03:00")


def test_a_timer_starts_each_hour_at_the_studys_minute() -> None:
    now = at("2026-11-22T12:00")
    assert timer_hours_and_minutes(daily(zone="Asia/Kathmandu"), now, UTC) == ("*", "45")
    assert timer_hours_and_minutes(daily(missed="none"), now, UTC) == ("0,1", "30")


@needs_systemd
@pytest.mark.slow
@pytest.mark.parametrize("missed", ["latest", "none"])
@pytest.mark.parametrize(
    ("zone", "time_of_day"),
    [
        ("Europe/Oslo", "02:30"),
        ("America/New_York", "02:00"),
        ("Australia/Lord_Howe", "02:15"),
        ("Pacific/Chatham", "02:50"),  # the clocks go forward from 02:45 to 03:45
        ("Pacific/Apia", "02:30"),
        ("Asia/Kathmandu", "02:30"),
    ],
)
def test_systemd_starts_each_day_when_the_study_promises(
    tmp_path: Path, zone: str, time_of_day: str, missed: str
) -> None:
    settings = daily(zone=zone, at=time_of_day, missed=missed)
    units = Units("demo", tmp_path, system=False, run=lambda _: "")
    units.install("demo", settings, tmp_path / "daily.start", "")
    [value] = re.findall("(?m)^OnCalendar=(.*)$", units.timer.read_text())
    for day in [date(2027, 1, 1), *changes(zone)[:4]]:
        base = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=2)
        starts = systemds_starts(value, base)
        promised = promised_starts(settings, base, base + timedelta(days=4))
        assert set(promised) <= set(starts), (zone, day)


def systemds_starts(value: str, base: datetime) -> list[datetime]:
    """Return what `systemd-analyze calendar` prints for five days."""
    printed = subprocess.run(
        ["systemd-analyze", "calendar", f"--base-time={base:%F %T} UTC", "--iterations=250", value],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C"},
    ).stdout
    texts = re.findall(r"(?m)^ *(?:Next elapse|Iter.*|Iteration #\d+): (.* UTC)$", printed)
    return [
        datetime.strptime(text, "%a %Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC) for text in texts
    ]


def promised_starts(settings: Daily, base: datetime, end: datetime) -> list[datetime]:
    starts = [next_start(settings, base)]
    while (following := next_start(settings, starts[-1])) <= end:
        starts.append(following)
    return starts


def changes(zone: str) -> list[date]:
    """Return the days of the next 20 years on which a zone's clocks are set."""
    there = ZoneInfo(zone)
    days = [date(2026, 11, 25) + timedelta(days=n) for n in range(20 * 365)]
    offsets = [datetime(d.year, d.month, d.day, 12, tzinfo=there).utcoffset() for d in days]
    return [days[n] for n in range(1, len(days)) if offsets[n] != offsets[n - 1]]


def zones_with_different_clocks() -> list[str]:
    """Return the zones that this machine knows, one for each way in which clocks are set."""
    found: dict[object, str] = {}
    for name in sorted(available_timezones()):
        noon = datetime(2026, 11, 25, 12, tzinfo=ZoneInfo(name))
        days = changes(name)
        offsets = [noon.replace(year=d.year, month=d.month, day=d.day).utcoffset() for d in days]
        found.setdefault((noon.utcoffset(), tuple(days), tuple(offsets)), name)
    return list(found.values())


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_htcondors_cron_starts_each_day_when_the_study_promises_in_every_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine's zone is the study's: then a time may be missing, or come twice, for both."""
    for zone in zones_with_different_clocks():
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        for time_of_day, missed in (("0:15", "none"), ("2:15", "none"), ("2:30", "latest")):
            settings = daily(zone=None, at=time_of_day, missed=missed)
            for day in changes(zone)[:4]:
                base = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=2)
                starts = crons_starts(
                    timer_hours_and_minutes(settings, base, None), base, base + timedelta(days=6)
                )
                for promised in promised_starts(settings, base, base + timedelta(days=5)):
                    late = [start - promised for start in starts if start >= promised]
                    assert min(late) < timedelta(minutes=4), (zone, time_of_day, promised)
    monkeypatch.undo()
    time.tzset()


def crons_starts(keys: tuple[str, str], base: datetime, end: datetime) -> list[datetime]:
    """Return when the schedd starts a job with these keys, by the rule of its condor_crontab.cpp.

    It looks for the next local time that fits, and starts two minutes from now where `mktime` says
    that this is over.
    """
    hours = range(24) if keys[0] == "*" else sorted(map(int, keys[0].split(",")))
    minutes = sorted(map(int, keys[1].split(",")))
    moment, starts = int(base.timestamp()), []
    while moment < end.timestamp():
        moment += 60 - moment % 60
        local = time.localtime(moment)
        fitting = (
            (day, hour, minute)
            for day in (local.tm_mday, local.tm_mday + 1)
            for hour in hours
            for minute in minutes
            if (day, hour, minute) >= (local.tm_mday, local.tm_hour, local.tm_min)
        )
        found = time.mktime((local.tm_year, local.tm_mon, *next(fitting), 0, 0, 0, -1))
        moment = int(found) if found >= moment else moment + 120
        starts.append(datetime.fromtimestamp(moment, UTC))
    return starts


@needs_systemd
@pytest.mark.parametrize("system", [False, True])
def test_systemd_accepts_units_in_a_folder_with_special_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, system: bool
) -> None:
    here = tmp_path / HOSTILE
    here.mkdir()
    monkeypatch.chdir(here)
    folder = DailyFolder.for_study("demo")
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
    assert "\nOnCalendar=*-*-* 0,1:30:00 UTC\n" in units.timer.read_text()
    assert units.remove()
    assert not units.remove()
    assert list(units.place.iterdir()) == []


def test_a_removed_timer_leaves_no_stamp_file(
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


def test_a_systemd_that_does_not_answer_cannot_be_used() -> None:
    def refuses(_: list[str]) -> str:
        raise PoolError("Failed to connect to bus")

    assert not Units("name", Path("/nowhere"), system=False, run=refuses).can_be_used()


@pytest.mark.slow
def test_the_start_script_runs_in_the_folder_of_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / HOSTILE
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("AWS_PROFILE", "it's $HOME")
    folder = DailyFolder.for_study("demo")
    write_start(folder, "demo", Path("no-study.yaml"))
    ended = subprocess.run(["/bin/sh", str(folder.start)], cwd="/", capture_output=True, text=True)
    assert ended.returncode == 2
    assert str(here / "no-study.yaml") in ended.stderr
