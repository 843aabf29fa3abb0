"""Late data: awaited for as long as the study says, reported once, and retried."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from tests.moto_server import s3_with_bucket
from tests.unit.daily.test_daily_days import put as put_data
from tests.unit.study.study_texts import MINIMAL, error_of, write
from trialfleet import plan
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily import day_attempt as day_module
from trialfleet.workflows.control.daily import day_loop as days_module
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.control.daily.late_data import late_regions
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, latest_outcomes
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.status.day_outcomes import left_out
from trialfleet.workflows.study.loading import load_day, load_whole

DAY = date(2026, 11, 22)
BEGINS = datetime(2026, 11, 22, 2, 30, tzinfo=UTC)
WAITS = "{at: '02:30', zone: UTC, wait_for_data: 3h}"
TEXT = (
    MINIMAL
    + f"data: 'data/{{region}}/{{date}}.txt'\ndaily: {WAITS}\nnotify: [{{command: 'false'}}]\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(day_module, "LATE_SECONDS", 0.0)
    (tmp_path / "go.sh").write_text("exit 0\n")
    return tmp_path


def put(here: Path, region: str, age: float = 100.0) -> Path:
    put_data(here, DAY, **{region: "1"})
    file = here / "data" / region / f"{DAY}.txt"
    written = time.time() - age
    os.utime(file, (written, written))
    return file


def clock_of(*moments: timedelta) -> Iterator[datetime]:
    """Yield the times that a clock shows, one after the other; then always the last."""
    yield from (BEGINS + moment for moment in moments)
    while True:
        yield BEGINS + moments[-1]


def late(here: Path, text: str = TEXT, said: list[str] | None = None) -> dict[str, str]:
    file, said = write(here, text), [] if said is None else said
    return late_regions(load_day(file, DAY), DAY, load_whole(file).daily, said.append)


def test_data_is_complete_a_minute_after_its_last_write(here: Path) -> None:
    put(here, "A")
    growing = put(here, "NO", age=5.0)
    assert late(here) == {"NO": f"data of {DAY} is being written: {growing}"}
    put(here, "NO", age=61.0)
    assert late(here) == {}
    growing.unlink()
    assert late(here) == {"NO": f"data of {DAY} isn't there: {growing}"}
    growing.mkdir()
    assert late(here) == {"NO": f"data of {DAY} is an empty folder: {growing}"}


def in_s3(here: Path) -> str:
    """Return the study with its data in S3."""
    for name in ("id", "secret"):
        (here / name).write_text(name)
    keys = "s3: {access_key_id_file: id, secret_access_key_file: secret}\n"
    return TEXT.replace("data/{region}/{date}.txt", "s3://data-of-ours/{region}/{date}.txt") + keys


def age_in_s3(seconds: float) -> None:
    """Let all objects have been written so long ago; moto lets nobody choose that."""
    for bucket in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.values():
        for key in bucket.keys.values():
            key.last_modified = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=seconds)


@pytest.mark.slow
def test_late_data_in_s3_is_awaited(here: Path, moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = s3_with_bucket(moto, "data-of-ours", monkeypatch)
    text = in_s3(here)
    s3.put_object(Bucket="data-of-ours", Key=f"A/{DAY}.txt", Body=b"1")
    s3.put_object(Bucket="data-of-ours", Key=f"NO/{DAY}.txt.tmp", Body=b"1")
    assert late(here, text) == {
        "A": f"data of {DAY} is being written: s3://data-of-ours/A/{DAY}.txt",
        "NO": f"data of {DAY} isn't there: s3://data-of-ours/NO/{DAY}.txt",
    }
    s3.put_object(Bucket="data-of-ours", Key=f"NO/{DAY}.txt/part-1", Body=b"1")  # a folder
    age_in_s3(61)
    assert late(here, text) == {}

    marked = text.replace("wait_for_data: 3h", "wait_for_data: 3h, ready_file: _SUCCESS")
    s3.put_object(Bucket="data-of-ours", Key="A/_SUCCESS", Body=b"")
    assert late(here, marked) == {
        "NO": f"data of {DAY} is incomplete: there is no s3://data-of-ours/NO/{DAY}.txt/_SUCCESS"
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    said: list[str] = []
    assert late(here, text, said) == {}, "unknown data is used without waiting"
    unknown = "used without waiting, because S3 doesn't say if it is complete: "
    assert [line.partition(unknown)[0] for line in said] == [
        f"s3://data-of-ours/{region}/{DAY}.txt: " for region in ("A", "NO")
    ]
    assert all("127.0.0.1:9" in line for line in said)


@pytest.mark.slow
def test_data_missing_in_s3_fails_its_region_without_a_run(
    here: Path, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_with_bucket(moto, "data-of-ours", monkeypatch)
    text = in_s3(here)
    file = write(here, text.replace("notify: [{command: 'false'}]", ""))
    Days(file, clock=lambda: BEGINS + timedelta(hours=3)).run(DAY)
    outcomes = Days(file).journal.outcomes()
    assert {(one.region, one.why.partition(": s3")[0]) for one in outcomes} == {
        ("A", f"data of {DAY} isn't there"),
        ("NO", f"data of {DAY} isn't there"),
    }


def test_a_study_that_does_not_wait_takes_what_is_there(here: Path) -> None:
    put(here, "A", age=0.0)
    put(here, "NO", age=0.0)
    assert late(here, TEXT.replace(", wait_for_data: 3h", "")) == {}


def test_data_is_complete_once_its_ready_file_exists(here: Path) -> None:
    text = TEXT.replace("wait_for_data: 3h", "wait_for_data: 3h, ready_file: _SUCCESS")
    for region in ("A", "NO"):
        put(here, region, age=0.0)
    (here / "data/A/_SUCCESS").touch()
    assert late(here, text) == {
        "NO": f"data of {DAY} is incomplete: there is no {here}/data/NO/_SUCCESS"
    }
    folders = text.replace("{date}.txt", "{date}")
    for region in ("A", "NO"):
        (here / "data" / region / str(DAY)).mkdir()
        (here / "data" / region / str(DAY) / "part-0").write_text("1")
    (here / "data/A" / str(DAY) / "_SUCCESS").touch()
    assert [*late(here, folders)] == ["NO"]


def test_a_folder_s_newest_file_counts(here: Path) -> None:
    old = time.time() - 1000
    for region in ("A", "NO"):
        for part in ("part-0", "part-1"):
            file = here / "data" / region / str(DAY) / part
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("1")
            os.utime(file, (old, old))
    (here / "data/NO" / str(DAY) / "part-1").write_text("2")
    assert [*late(here, TEXT.replace("{date}.txt", "{date}"))] == ["NO"]


@pytest.mark.slow
def test_data_that_never_comes_is_reported_once_and_fails_its_regions_in_the_end(
    here: Path,
) -> None:
    moments = clock_of(*[timedelta(minutes=n) for n in range(0, 190, 1)])
    days = Days(write(here, TEXT), clock=lambda: next(moments))
    days.run(DAY)
    assert {(one.region, one.ending) for one in days.journal.outcomes()} == {
        ("A", Ending.FAILED),
        ("NO", Ending.FAILED),
    }
    assert all("isn't there" in one.why for one in days.journal.outcomes())
    [attempt] = days.journal.attempts()
    assert attempt.ended
    assert attempt.ended >= BEGINS + timedelta(hours=3)
    events = [one.event for one in Outbox(days.folder.alerts).deliveries()]
    failed = ["region-failed"] * 2
    assert [event.kind for event in events] == ["attention", *failed, "day-done"]
    assert events[0].data["regions"] == ["A", "NO"]
    assert "waits for the data of A, NO until" in events[0].title
    days.finish_telling()
    kinds = [one.event.kind for one in Outbox(days.folder.alerts).deliveries()]
    assert kinds.count("attention") == 1
    assert kinds.count("region-failed") == 2


@pytest.mark.slow
def test_a_region_fails_if_its_data_is_still_missing_after_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is planned, and its end is made up: there is no pool."""
    put(here, "A")
    file = write(here, TEXT)
    moments = clock_of(*[timedelta(minutes=n) for n in range(0, 400, 20)])
    days = Days(file, clock=lambda: next(moments))
    attempt = days._first_attempt(DAY)
    there = load_day(file, DAY).study
    assert there
    plan(there, run=str(DAY), out=days.folder.run(str(DAY)), day=DAY)

    def ended(work: day_module.DailyWork, _run: object, one: Attempt) -> Iterator[float]:
        if one.attempt == 1:
            work.journal.record([one.outcome("A", Ending.PUBLISHED, "", run=one.run)], BEGINS)
        return iter(())

    monkeypatch.setattr(day_module.DailyWork, "_watch", ended)
    monkeypatch.setattr(day_module, "LATE_SECONDS", 0.01)
    monkeypatch.setattr(days_module, "BATCH_SECONDS", 0.5)  # the time is over before that
    days.run(DAY)
    assert attempt.regions == ("A", "NO")
    found = {one.region: (one.attempt, one.ending) for one in days.journal.outcomes()}
    assert found == {"A": (1, Ending.PUBLISHED), "NO": (2, Ending.FAILED)}
    assert "isn't there" in latest_outcomes(days.journal.outcomes())[DAY, "NO"].why
    assert [one.region for one in left_out(days.folder.run(str(DAY)), DAY)] == ["NO"]


def test_a_day_that_is_long_past_waits_for_nothing(here: Path) -> None:
    days = Days(write(here, TEXT), clock=lambda: BEGINS + timedelta(hours=4))
    days.run(DAY)
    assert [one.ending for one in days.journal.outcomes()] == [Ending.FAILED, Ending.FAILED]


def test_a_day_that_failed_without_data_is_retried_for_data_that_has_arrived(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that is refused stands for a run: there is no pool."""
    from trialfleet.errors import InputError

    days = Days(write(here, TEXT), clock=lambda: BEGINS + timedelta(hours=4))
    days.run(DAY)
    days.run(DAY)
    assert len(days.journal.attempts()) == 1, "there is nothing new"
    put(here, "NO")

    def refuse(*_given: object) -> None:
        raise InputError("refused")

    monkeypatch.setattr(day_module, "connect", lambda: None)
    monkeypatch.setattr(day_module, "plan_day", refuse)
    days.run(DAY)
    assert [one.regions for one in days.journal.attempts()] == [("A", "NO"), ("NO",)]
    assert latest_outcomes(days.journal.outcomes())[DAY, "NO"].why == "not planned: refused"
    days.run(DAY)
    assert len(days.journal.attempts()) == 2, "no file of it is new"


def test_status_shows_awaited_data(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(here, TEXT)
    days = Days(file, clock=lambda: BEGINS)
    days._first_attempt(DAY)
    monkeypatch.setattr("trialfleet.wall_clock.real_time", lambda: BEGINS + timedelta(minutes=10))
    said = CliRunner().invoke(main, ["daily", "status", str(file)]).output
    assert f"A: waits until 2026-11-22 05:30 UTC: data of {DAY} isn't there: " in said
    shown = json.loads(CliRunner().invoke(main, ["daily", "status", str(file), "--json"]).output)
    assert [*shown["awaited"]] == ["A", "NO"]
    monkeypatch.setattr("trialfleet.wall_clock.real_time", lambda: BEGINS + timedelta(hours=3))
    assert "awaited" not in CliRunner().invoke(main, ["daily", "status", str(file)]).output


@pytest.mark.parametrize(
    ("daily", "message"),
    [
        ("{at: '02:30', ready_file: _SUCCESS}", "ready_file: requires wait_for_data"),
        ("{at: '02:30', wait_for_data: 3h, ready_file: a/b}", "must be the name of a file"),
        ("{at: '02:30', wait_for_data: 3h, ready_file: ..}", "must be the name of a file"),
        ("{at: '02:30', wait_for_data: soon}", "must be hours and minutes"),
    ],
)
def test_wrong_wait_settings_are_refused(here: Path, daily: str, message: str) -> None:
    assert message in error_of(here, TEXT.replace(WAITS, daily))
