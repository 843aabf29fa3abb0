"""The outcome of each region on a study's days, even before the journal records it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import (
    Attempt,
    Ending,
    Journal,
    Outcome,
    ending_with_model,
    latest_outcomes,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.table_findings import read_warnings
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.daily import RunsDay


def outcomes_now(
    journal: Journal, first: date | None = None, last: date | None = None
) -> dict[tuple[date, str], Outcome]:
    """Return the regions' present outcomes on the days from `first` to `last`, by day and region.

    While a failed region is tried again, its earlier failure doesn't count. A new model counts even
    before the journal has the outcome.
    """
    again = {
        (attempt.date, region): attempt
        for attempt in journal.attempts()
        if attempt.ended is None
        for region in attempt.regions
    }
    models = [
        made
        for (day, region), attempt in again.items()
        if (first or day) <= day <= (last or day)
        and (made := _read_outcome(journal, attempt, region))
    ]
    found = latest_outcomes([*journal.outcomes(first, last), *models])
    return {
        key: one
        for key, one in found.items()
        if key not in again or one.ending is not Ending.FAILED or one.attempt >= again[key].attempt
    }


def left_out(run: Path, day: date) -> list[Outcome]:
    """Return the outcomes of regions that failed on `day` before a run was planned for them.

    The attempt in which a region failed either planned the run in the folder `run`, or planned no
    run, for example because the data never arrived. The result is empty if the study has no
    journal.
    """
    folder = DailyFolder(run.parent)
    if not folder.journal.exists():
        return []
    journal = Journal(folder.journal)
    numbers = {
        one.attempt
        for one in journal.attempts(day)
        if one.run == run.name or not RunFolder(folder.run(one.run)).study.exists()
    }
    return [
        one
        for one in outcomes_now(journal, day, day).values()
        if one.ending is Ending.FAILED and one.run is None and one.attempt in numbers
    ]


def left_out_or_why(run: Path, day: RunsDay | None) -> tuple[list[Outcome], str | None]:
    """Return the outcomes from `left_out`, or [] and the reason if the journal can't be read.

    `day` is None if the run is not of a day. Then there are none.
    """
    try:
        return left_out(run, day.date) if day else [], None
    except TrialfleetError as error:
        return [], unknown_days_text(error)


def absence_text(one: Outcome) -> str:
    """Return the text that a region is not in its day's run, from its outcome."""
    return f"{one.region} is not in this run, because its day failed: {one.why}"


def unknown_days_text(error: TrialfleetError) -> str:
    """Return the message that a study's days are unknown, because its journal can't be read."""
    return f"the study's days are unknown: {error}"


def warnings_of_day(folder: DailyFolder, outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return the warnings from the checks of the day's table, by region."""
    found = {
        one.region: read_warnings(RunFolder(folder.run(one.run)).region(region_slug(one.region)))
        for one in outcomes
        if one.run
    }
    return {region: words for region, words in found.items() if words}


def _read_outcome(journal: Journal, attempt: Attempt, region: str) -> Outcome | None:
    run = RunFolder(DailyFolder(journal.file.parent).run(attempt.run))
    files = run.region(region_slug(region))
    if not files.published.exists():
        return None
    return attempt.outcome(region, *ending_with_model(files), run=attempt.run)
