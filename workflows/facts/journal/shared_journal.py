"""The journal of a study with two managers, in the study's database.

Each manager has a copy of the journal in a file. Programs that only show the journal read this
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trialfleet.errors import OptimizerError
from trialfleet.workflows.facts.journal.journal import Attempt, Journal, Outcome
from trialfleet.workflows.facts.journal.shared_rows import Row, SharedRows

_ATTEMPT, _OUTCOME = TypeAdapter(Attempt), TypeAdapter(Outcome)
_SENT = "sent"  # the kind of the rows of sent events

Wait = Callable[[OptimizerError], None]


class SharedJournal(Journal):
    """A journal of two managers; writes raise LeaseLostError if this manager has lost the lease."""

    def __init__(self, file: Path, rows: SharedRows, wait: Wait | None = None) -> None:
        """Open or create `file`, this manager's copy of the journal.

        `rows` has the journal in the database. If a write to the database fails, `wait` is called
        with the error, and then the write is tried again; without `wait`, the error is raised.
        """
        super().__init__(file)
        self._rows, self._wait = rows, wait

    @property
    def scope(self) -> str:
        """A text from which ids of events are made; it is the same on both managers."""
        return self._rows.study

    def begin(self, attempt: Attempt) -> Attempt:
        """Record an attempt, unless it is already recorded, and return the recorded attempt."""
        self._write([Row("attempt", _key(attempt), _ATTEMPT.dump_python(attempt, mode="json"))])
        return super().begin(attempt)

    def end(self, attempt: Attempt, now: datetime) -> None:
        """Record that an attempt ended at the time `now`, when its last region got an outcome."""
        ended = replace(attempt, ended=now)
        self._write([Row("ended", _key(attempt), _ATTEMPT.dump_python(ended, mode="json"))])
        super().end(attempt, now)

    def record(self, outcomes: Iterable[Outcome], now: datetime) -> None:
        """Record all outcomes or none; outcomes that are already recorded stay unchanged."""
        given = list(outcomes)
        days = {one.date for one in given}
        known = {_key(one, one.region) for day in days for one in self.outcomes(day, day)}
        new = [one for one in given if _key(one, one.region) not in known]
        if new:
            self._write(
                Row("outcome", _key(one, one.region), _OUTCOME.dump_python(one, mode="json"))
                for one in [replace(one, recorded=now) for one in new]
            )
            super().record(new, now)

    def pull(self) -> list[str]:
        """Copy the new records from the database to the file.

        Return the ids of the events that these records mark as sent. Raises OptimizerError if the
        database can't be used.
        """
        news = self._rows.news()
        for kind, rows in groupby(news, key=lambda row: row.kind):
            self._copy(kind, [row.content for row in rows])
        return [row.key for row in news if row.kind == _SENT]

    def _write(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        while True:
            try:
                return self._rows.write(rows)
            except OptimizerError as error:
                if self._wait is None:
                    raise
                self._wait(error)

    def _copy(self, kind: str, contents: list[dict[str, Any]]) -> None:
        if kind == "outcome":
            outcomes = map(_OUTCOME.validate_python, contents)
            for recorded, some in groupby(outcomes, key=lambda one: one.recorded):
                assert recorded
                super().record(list(some), recorded)
        elif kind in {"attempt", "ended"}:
            for attempt in map(_ATTEMPT.validate_python, contents):
                super().begin(attempt)
                if attempt.ended:
                    super().end(attempt, attempt.ended)

    def note_sent(self, events: Iterable[str]) -> None:
        """Tell the other manager, through the database, that alerts of these events were sent."""
        self._rows.note(Row(_SENT, event, {}) for event in events)


def _key(one: Attempt | Outcome, *more: str) -> str:
    return "/".join([str(one.date), str(one.attempt), *more])
