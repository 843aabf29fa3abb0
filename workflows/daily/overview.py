"""What `trialfleet daily status` shows: days and what became of their regions."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from trialfleet.workflows.daily.journal import Attempt, Ending, Journal, Outcome, latest_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class DayView:
    """A day.

    Attributes:
        counts: regions by how they ended.
        open: regions that have no outcome yet.
        attempts: its attempts, the oldest first.
    """

    date: date
    counts: dict[Ending, int]
    open: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The days of a study.

    Attributes:
        days: the newest first.
        newest: what became of each region on the newest day.
        next_start: when the next day begins.
        clock: what starts it; None if nothing of ours does.
    """

    study: str
    days: tuple[DayView, ...]
    newest: tuple[Outcome, ...]
    next_start: datetime
    clock: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"schema": 1, **asdict(self)}


def overview(
    study: str, journal: Journal, next_start: datetime, clock: str | None, most: int
) -> Overview:
    """Return a study's days, the newest `most` of them."""
    attempts = journal.attempts()
    dates = sorted({attempt.date for attempt in attempts}, reverse=True)[:most]
    found = latest_of(journal.outcomes(min(dates, default=None))) if dates else {}
    days = [_day(day, attempts, [o for (d, _), o in found.items() if d == day]) for day in dates]
    newest = [outcome for (day, _), outcome in found.items() if dates and day == dates[0]]
    return Overview(
        study=study,
        days=tuple(days),
        newest=tuple(sorted(newest, key=lambda one: one.region)),
        next_start=next_start,
        clock=clock,
    )


def _day(day: date, attempts: list[Attempt], outcomes: list[Outcome]) -> DayView:
    own = tuple(attempt for attempt in attempts if attempt.date == day)
    counts = Counter(outcome.ending for outcome in outcomes)
    regions = {region for attempt in own for region in attempt.regions}
    return DayView(
        date=day,
        counts={ending: counts[ending] for ending in Ending},
        open=len(regions) - len(outcomes),
        attempts=own,
    )


def days_table(shown: Overview) -> Table:
    """Return the days as a table."""
    from rich.table import Table

    table = Table(title=f"{shown.study}: days")
    table.add_column("day")
    for title in (*Ending, "open"):
        table.add_column(str(title), justify="right")
    table.add_column("run")
    for day in shown.days:
        counts = [*(day.counts[ending] for ending in Ending), day.open]
        runs = ", ".join(attempt.run for attempt in day.attempts)
        table.add_row(str(day.date), *(str(count or "·") for count in counts), runs)
    return table


def newest_table(shown: Overview) -> Table:
    """Return what became of each region on the newest day as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=str(shown.days[0].date))
    for title in ("region", "ended", "why"):
        table.add_column(title, overflow="fold")
    for one in shown.newest:
        why = one.why or (f"data {one.fingerprint[:12]}" if one.fingerprint else "")
        table.add_row(Text(one.region), one.ending.value, Text(why))
    return table
