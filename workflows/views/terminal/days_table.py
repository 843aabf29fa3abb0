"""The tables of `trialfleet daily status`, with days and the outcome of each region."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import (
    Attempt,
    Ending,
    Journal,
    Outcome,
)
from trialfleet.workflows.facts.journal.lease import Lease
from trialfleet.workflows.facts.models.approval import TO_CHANGE, UnapprovedModel, promote_command
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.failed_attempts import SEE
from trialfleet.workflows.formatting import local_time
from trialfleet.workflows.status.day_outcomes import outcomes_now, warnings_of_day
from trialfleet.workflows.views.output import Fitting, cut_to_width, with_hint_if_cut

if TYPE_CHECKING:
    from rich.table import Table


# the text before a command or a path in a reason, and the label of its separate line
_TO_COPY = {TO_CHANGE: "to change that", SEE: "log"}


@dataclass(frozen=True, kw_only=True)
class DayView:
    """One day of a study's daily runs.

    Attributes:
        open: the number of regions that have no outcome yet.
        counts: the number of regions with each outcome.
        attempts: the attempts to run the study for the day, oldest first.
        runs: the ids of the attempts' runs that exist.
        outcomes: the regions' outcomes, in the order of the regions' names.
        checks: by region, a warning if the day's data differ from those of past days.
    """

    date: date
    counts: dict[Ending, int]
    open: int
    attempts: tuple[Attempt, ...]
    runs: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    checks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DaysOverview:
    """The last days of a study's daily runs.

    Attributes:
        days: the days, newest first.
        newest: the outcomes of the newest day.
        next_start: when the next day's runs start, or None if the study has no `daily:` table now.
        clock: the installed schedule, as text, or None if no schedule is installed.
        clock_fault: why the installed schedule can't start the next day's runs, or that it has not
            begun the due day in time; "" if nothing is known to be wrong.
        awaiting: the models that wait for a person's approval, by region.
        models_away: why it is unknown which models wait for approval, or "" if it is known.
        awaited: the reasons why the newest day still waits for data, by region.
        lease: which of two managers starts the daily runs, and until when, or None if there is only
            one manager.
        database_away: why the managers' shared database is unreachable, or "" if it answers.
        undelivered: the alerts that could not be sent so far, a line per channel and error.
    """

    study: str
    days: tuple[DayView, ...]
    newest: tuple[Outcome, ...]
    next_start: datetime | None
    clock: str | None
    clock_fault: str = ""
    awaiting: dict[str, UnapprovedModel] = field(default_factory=dict)
    models_away: str = ""
    awaited: dict[str, str] = field(default_factory=dict)
    lease: Lease | None = None
    database_away: str = ""
    undelivered: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the days as plain data."""
        return {"schema": 1, **asdict(self)}


def newest_days(journal: Journal, most: int, last: date | None = None) -> tuple[DayView, ...]:
    """Return at most `most` days of a study, the newest first, without days after `last`."""
    attempts = [one for one in journal.attempts() if last is None or one.date <= last]
    dates = sorted({attempt.date for attempt in attempts}, reverse=True)[:most]
    found = outcomes_now(journal, min(dates)) if dates else {}
    folder = DailyFolder(journal.file.parent)
    return tuple(
        _day_view(folder, day, attempts, [o for (d, _), o in found.items() if d == day])
        for day in dates
    )


def _day_view(
    folder: DailyFolder, day: date, attempts: list[Attempt], outcomes: list[Outcome]
) -> DayView:
    own = tuple(attempt for attempt in attempts if attempt.date == day)
    runs = dict.fromkeys(attempt.run for attempt in own)
    counts = Counter(outcome.ending for outcome in outcomes)
    regions = {region for attempt in own for region in attempt.regions}
    return DayView(
        date=day,
        counts={ending: counts[ending] for ending in Ending},
        open=len(regions) - len(outcomes),
        attempts=own,
        runs=tuple(run for run in runs if RunFolder(folder.run(run)).study.exists()),
        outcomes=tuple(sorted(outcomes, key=lambda one: one.region)),
        checks=warnings_of_day(folder, outcomes),
    )


def days_table(shown: DaysOverview) -> Table:
    """Return the days as a table."""
    from rich.table import Table

    table = Table(title=f"{shown.study}: days")
    table.add_column("day")
    for title in (*Ending, "open"):
        table.add_column(str(title), justify="right")
    table.add_column("run")
    for day in shown.days:
        counts = [*(day.counts[ending] for ending in Ending), day.open]
        table.add_row(str(day.date), *(str(count or "·") for count in counts), ", ".join(day.runs))
    return table


def newest_table(shown: DaysOverview) -> Fitting:
    """Return a table of the newest day's outcomes."""
    return _table(shown.study, str(shown.days[0].date), shown.newest, with_days=False)


def reasons_table(shown: DaysOverview) -> Fitting | None:
    """Return a table of the earlier days' outcomes that have a reason, or None if none has."""
    explained = [one for day in shown.days[1:] for one in day.outcomes if one.why]
    if not explained:
        return None
    return _table(shown.study, "earlier days", explained, with_days=True)


def _table(study: str, title: str, outcomes: Sequence[Outcome], *, with_days: bool) -> Fitting:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    for name in (*(["day"] if with_days else []), "region", "ended", "why"):
        table.add_column(name, overflow="fold")
    for one in outcomes:
        day = [str(one.date)] if with_days else []
        why = cut_to_width(_split(_outcome_reason(one))[0])
        table.add_row(*day, Text(one.region), one.ending.value, why)
    return with_hint_if_cut(table, full_reason_hint(study, outcomes))


def full_reason_hint(study: str, outcomes: Iterable[Outcome]) -> str:
    """Return a line with the command that shows a table's shortened reasons in full.

    The command names the run, because otherwise `trialfleet why` would explain a region's newest
    outcome. If the outcomes are of several runs, the command has the placeholder RUN.
    """
    runs = {one.run for one in outcomes if one.why and one.run}
    if not runs:
        return "full reasons: trialfleet daily status --json"
    run = shlex.quote(f"{study}/{runs.pop() if len(runs) == 1 else 'RUN'}")
    return f"full reasons: trialfleet why REGION --run {run}, or daily status --json"


def commands_to_copy(shown: DaysOverview) -> list[str]:
    """Return a line for each command or path in the reason of a region's newest outcome.

    The caller prints these lines below the table, because a table would wrap or cut them.
    """
    newest: dict[str, Outcome] = {}
    for day in shown.days:
        for one in day.outcomes:
            newest.setdefault(one.region, one)
    split = {region: _split(one.why)[1:] for region, one in newest.items()}
    return [f"{label}  {name}  {text}" for name, (label, text) in split.items() if text]


def approval_commands(shown: DaysOverview) -> list[str]:
    """Return, for each model that waits for approval, a line with the command to approve it."""
    return [
        f"{region}: the model of {one.run} waits for approval since {local_time(one.since)}: "
        f"{promote_command(one.path)}"
        for region, one in shown.awaiting.items()
    ]


def _split(why: str) -> tuple[str, str, str]:
    """Split off the command or path at a reason's end.

    Return the rest of the reason, a label for the command or path, and the command or path itself.
    The last two are "" if the reason has no command or path.
    """
    for mark, label in _TO_COPY.items():
        words, found, text = why.partition(mark)
        if found:
            return words, label, text
    return why, "", ""


def _outcome_reason(one: Outcome) -> str:
    if one.ending is Ending.UNCHANGED:
        return one.why or "its data and settings have not changed since its last model"
    return one.why or (f"its new model is that of the run {one.run}" if one.run else "")
