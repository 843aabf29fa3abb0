"""The journal of a study's days: each region's outcome on each day.

A day has one attempt or several; later attempts are for the regions that failed. An attempt's
regions, run and deadline are recorded before the attempt begins. So the attempt continues unchanged
after a crash. Recorded outcomes never change: a second record of the same region, day and attempt
is ignored. A second successful outcome of a region on one day is ignored, too.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trialfleet.workflows.facts.models.folders import reason_not_latest
from trialfleet.workflows.facts.models.verdict import read_verdict
from trialfleet.workflows.facts.run_folder.folder import RegionFolder
from trialfleet.workflows.sqlite_file import open_database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
    date TEXT NOT NULL, attempt INTEGER NOT NULL, run TEXT NOT NULL, regions TEXT NOT NULL,
    started TEXT NOT NULL, deadline TEXT, ended TEXT, PRIMARY KEY (date, attempt)
) STRICT;
CREATE TABLE IF NOT EXISTS outcomes (
    date TEXT NOT NULL, region TEXT NOT NULL, attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('published', 'kept', 'unchanged', 'failed')),
    why TEXT NOT NULL, run TEXT, fingerprint TEXT, settings TEXT, recorded TEXT NOT NULL,
    PRIMARY KEY (date, region, attempt)
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS ends_well_once ON outcomes (date, region)
    WHERE outcome != 'failed';
CREATE TRIGGER IF NOT EXISTS outcomes_never_change BEFORE UPDATE ON outcomes
    BEGIN SELECT RAISE(ABORT, 'what is recorded never changes'); END;
CREATE TRIGGER IF NOT EXISTS outcomes_stay BEFORE DELETE ON outcomes
    BEGIN SELECT RAISE(ABORT, 'what is recorded never changes'); END;
"""


class Ending(StrEnum):
    """The way in which a day ended for a region."""

    PUBLISHED = "published"  # the region's new model is the current one
    KEPT = "kept"  # a model was trained, but the previous one stays current
    UNCHANGED = "unchanged"  # no model was trained: data and settings are those of the last one
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a region in one attempt at a day's run.

    `attempt` counts from 1. `why` is the reason if `ending` is KEPT or FAILED. `fingerprint`
    identifies the data. `settings` identifies everything else that affects the training.
    """

    date: date
    region: str
    attempt: int
    ending: Ending
    why: str = ""
    run: str | None = None
    fingerprint: str | None = None
    settings: str | None = None
    recorded: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a day's run; the first is for all regions, later ones for failed regions.

    Attributes:
        run: the id of the attempt's run. The run doesn't exist if no region needs training. If the
            attempt resumes an earlier attempt, this is the earlier attempt's run.
        deadline: the time after which no more trials begin; None if there is no deadline.
        ended: when the last region got an outcome; None before that.
    """

    date: date
    attempt: int
    run: str
    regions: tuple[str, ...]
    started: datetime
    deadline: datetime | None
    ended: datetime | None = None

    def is_past_deadline(self, now: datetime) -> bool:
        """Return whether the deadline has passed at the time `now`; False if there is none."""
        return self.deadline is not None and now >= self.deadline

    def outcome(self, region: str, ending: Ending, why: str, **more: Any) -> Outcome:
        """Return the outcome of a region in this attempt; `more` has other fields of `Outcome`."""
        day, number = self.date, self.attempt
        return Outcome(date=day, region=region, attempt=number, ending=ending, why=why, **more)


_ATTEMPTS, _OUTCOMES = TypeAdapter(list[Attempt]), TypeAdapter(list[Outcome])


class Journal:
    """A study's journal, an SQLite file that several processes may use."""

    def __init__(self, file: Path) -> None:
        """Open or create the journal; TrialfleetError if the file can't be used."""
        self.file = file
        with self._open() as connection:
            connection.executescript(_SCHEMA)

    @property
    def scope(self) -> str:
        """A text that identifies this journal; ids of events are made from it."""
        return str(self.file.parent)

    def begin(self, attempt: Attempt) -> Attempt:
        """Record an attempt, unless it is already recorded, and return the recorded attempt."""
        with self._open() as connection:
            connection.execute(
                "INSERT INTO attempts (date, attempt, run, regions, started, deadline)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    str(attempt.date),
                    attempt.attempt,
                    attempt.run,
                    json.dumps(attempt.regions, ensure_ascii=False),
                    _text(attempt.started),
                    _text(attempt.deadline),
                ),
            )
        return next(a for a in self.attempts(attempt.date) if a.attempt == attempt.attempt)

    def end(self, attempt: Attempt, now: datetime) -> None:
        """Record that an attempt ended at the time `now`, when its last region got an outcome."""
        with self._open() as connection:
            connection.execute(
                "UPDATE attempts SET ended = ? WHERE date = ? AND attempt = ? AND ended IS NULL",
                (_text(now), str(attempt.date), attempt.attempt),
            )

    def record(self, outcomes: Iterable[Outcome], now: datetime) -> None:
        """Record all outcomes or none; outcomes that are already recorded stay unchanged."""
        with self._open() as connection:
            connection.executemany(
                "INSERT INTO outcomes VALUES (:date, :region, :attempt, :ending, :why, :run,"
                " :fingerprint, :settings, :recorded) ON CONFLICT DO NOTHING",
                [vars(one) | {"date": str(one.date), "recorded": _text(now)} for one in outcomes],
            )

    def attempts(self, day: date | None = None) -> list[Attempt]:
        """Return the attempts at the day `day`, or at all days if `day` is None, oldest first."""
        where, given = ("", ()) if day is None else ("WHERE date = ?", (str(day),))
        query = f"SELECT * FROM attempts {where} ORDER BY date, attempt"  # noqa: S608 - ours
        with self._open() as connection:
            rows = [dict(row) for row in connection.execute(query, given)]
        return _ATTEMPTS.validate_python(
            [row | {"regions": json.loads(row["regions"])} for row in rows]
        )

    def outcomes(self, first: date | None = None, last: date | None = None) -> list[Outcome]:
        """Return all outcomes on the days `first` to `last`, oldest first; None means no limit."""
        between = (str(first or date.min), str(last or date.max))
        query = (
            "SELECT *, outcome AS ending FROM outcomes WHERE date BETWEEN ? AND ?"
            " ORDER BY date, attempt, rowid"
        )
        with self._open() as connection:
            return _OUTCOMES.validate_python(map(dict, connection.execute(query, between)))

    def last_models(self, before: date | None = None) -> dict[str, Outcome]:
        """Return each region's last outcome with a new model, up to the day before `before`."""
        endings = {Ending.PUBLISHED, Ending.KEPT}
        found = [o for o in self.outcomes(last=before) if before is None or o.date < before]
        return {o.region: o for o in found if o.ending in endings}

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return open_database(self.file, "journal")


def next_number(attempts: Iterable[Attempt]) -> int:
    """Return the number of a day's next attempt; `attempts` are all its earlier attempts."""
    return max((one.attempt for one in attempts), default=0) + 1


def latest_outcomes(outcomes: Iterable[Outcome]) -> dict[tuple[date, str], Outcome]:
    """Return each day's and region's successful outcome, or the last attempt's if there is none."""
    order = sorted(outcomes, key=lambda one: (one.ending is not Ending.FAILED, one.attempt))
    return {(one.date, one.region): one for one in order}


def ending_with_model(files: RegionFolder) -> tuple[Ending, str]:
    """Return KEPT and the reason if a region's new model isn't current; else PUBLISHED and ""."""
    verdict = read_verdict(files.verdict) if files.verdict.exists() else None
    if verdict and not verdict.promoted:
        return Ending.KEPT, verdict.why
    if not_latest := reason_not_latest(files.published):
        return Ending.KEPT, not_latest
    return Ending.PUBLISHED, ""


def _text(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat(timespec="seconds") if moment else None
