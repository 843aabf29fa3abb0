"""The journal of a study's days: records never change, whichever process writes them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.facts.journal.journal import (
    Attempt,
    Ending,
    Journal,
    Outcome,
    latest_outcomes,
)

DAY = date(2026, 11, 22)
NOW = datetime(2026, 11, 22, 2, 30, tzinfo=UTC)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "daily.db")


def outcome(ending: Ending, attempt: int = 1, day: date = DAY, why: str = "") -> Outcome:
    return Outcome(date=day, region="São", attempt=attempt, ending=ending, why=why)


def attempt(run: str = "2026-11-22", regions: tuple[str, ...] = ("São", "B")) -> Attempt:
    return Attempt(date=DAY, attempt=1, run=run, regions=regions, started=NOW, deadline=None)


def test_the_first_record_stays(journal: Journal) -> None:
    journal.record([outcome(Ending.FAILED, why="first")], NOW)
    journal.record([outcome(Ending.PUBLISHED, why="second")], NOW)
    (found,) = journal.outcomes()
    assert (found.ending, found.why, found.recorded) == (Ending.FAILED, "first", NOW)


def test_a_region_succeeds_only_once_on_a_day(journal: Journal) -> None:
    for number, ending in enumerate((Ending.FAILED, Ending.KEPT, Ending.PUBLISHED), start=1):
        journal.record([outcome(ending, number)], NOW)
    assert [one.ending for one in journal.outcomes()] == [Ending.FAILED, Ending.KEPT]
    journal.record([outcome(Ending.FAILED, 4)], NOW)
    assert latest_outcomes(journal.outcomes())[DAY, "São"].ending is Ending.KEPT


@pytest.mark.parametrize("change", ["UPDATE outcomes SET why = 'x'", "DELETE FROM outcomes"])
def test_the_database_refuses_changes_of_a_record(
    journal: Journal, tmp_path: Path, change: str
) -> None:
    journal.record([outcome(Ending.PUBLISHED)], NOW)
    connection = sqlite3.connect(tmp_path / "daily.db")
    with pytest.raises(sqlite3.IntegrityError, match="never changes"):
        connection.execute(change)
    connection.close()


def test_an_attempt_stays_as_it_was_begun(journal: Journal) -> None:
    first = journal.begin(attempt())
    assert journal.begin(attempt("other", ("C",))) == first == attempt()
    journal.end(first, NOW)
    journal.end(first, datetime(2030, 1, 1, tzinfo=UTC))
    assert [one.ended for one in journal.attempts()] == [NOW]


def test_the_last_model_is_of_an_earlier_day_that_trained_one(journal: Journal) -> None:
    days = [date(2026, 11, n) for n in (18, 19, 20, 21, 22)]
    for day, ending in zip(days, Ending, strict=False):
        journal.record([outcome(ending, day=day)], NOW)
    journal.record([outcome(Ending.PUBLISHED, day=days[4])], NOW)
    assert journal.last_models(days[4])["São"].date == days[1]
    assert journal.last_models(days[1])["São"].date == days[0]
    assert journal.last_models(days[0]) == {}


def test_a_file_that_is_no_journal_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "daily.db").write_text("no database, and long enough to be seen as none" * 10)
    with pytest.raises(TrialfleetError, match=r"daily\.db"):
        Journal(tmp_path / "daily.db")


RACE = """
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from trialfleet.workflows.facts.journal.journal import Ending, Journal, Outcome
me, now = sys.argv[2], datetime(2026, 11, 22, tzinfo=UTC)
for n in range(200):
    day = date(2026, 1, 1) + timedelta(days=n)
    ending = Ending.PUBLISHED if me == "1" else Ending.UNCHANGED
    one = Outcome(date=day, region="A", attempt=int(me), ending=ending, why=me)
    Journal(Path(sys.argv[1])).record([one], now)
"""


@pytest.mark.slow
def test_one_record_stays_when_two_processes_race(tmp_path: Path) -> None:
    file = tmp_path / "daily.db"
    racers = [subprocess.Popen([sys.executable, "-c", RACE, str(file), me]) for me in ("1", "2")]
    assert [racer.wait() for racer in racers] == [0, 0]
    found = Journal(file).outcomes()
    assert len(found) == len({one.date for one in found}) == 200
