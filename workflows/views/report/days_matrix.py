"""The table of a study's last 14 days, in the report and on the live page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.cleaning import clean
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Ending, Journal, Outcome
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.views.terminal.days_table import DayView, newest_days

_SHOWN_DAYS = 14
MARKS = {Ending.PUBLISHED: "✓", Ending.UNCHANGED: "=", Ending.KEPT: "·", Ending.FAILED: "✕"}


def read_days(folder: DailyFolder, last: date | None = None) -> tuple[DayView, ...]:
    """Return a study's last 14 days up to `last`, the newest first.

    The result is empty if the study's journal of days is missing or unreadable.
    """
    if not folder.journal.is_file():
        return ()
    try:
        return newest_days(Journal(folder.journal), _SHOWN_DAYS, last)
    except TrialfleetError:
        return ()


def days_of_run(
    folder: DailyFolder, day: date, run: str, regions: Iterable[RegionStatus]
) -> tuple[DayView, ...]:
    """Return a study's last days up to `day`, including failed and stopped regions of `run`.

    While the run writes its report, the study's journal of days lacks the run's failed and stopped
    regions. They are added from `regions`.
    """
    found = [_clean(each) for each in read_days(folder, day)]
    if found and found[0].date == day:
        failed = [each for each in regions if each.stage in {Stage.FAILED, Stage.STOPPED}]
        found[0] = _add_failed_regions(found[0], run, failed)
    return tuple(found)


def _add_failed_regions(day: DayView, run: str, failed: Iterable[RegionStatus]) -> DayView:
    reported = {one.region for one in day.outcomes}
    more = [
        attempt.outcome(
            clean(region.name),
            Ending.FAILED,
            clean(region.failure),
            run=run,
        )
        for attempt in day.attempts
        for region in failed
        if attempt.run == run and region.name in attempt.regions
    ]
    own = {one.region: one for one in more if one.region not in reported}
    counts = Counter(day.counts) + Counter({Ending.FAILED: len(own)})
    return replace(
        day,
        counts={ending: counts[ending] for ending in Ending},
        open=day.open - len(own),
        outcomes=tuple(sorted([*day.outcomes, *own.values()], key=lambda one: one.region)),
    )


def _clean(day: DayView) -> DayView:
    return replace(day, outcomes=tuple(map(clean, day.outcomes)))


def share(day: DayView, ending: Ending) -> float:
    """Return the percentage of a day's regions with the outcome `ending`."""
    whole = sum(day.counts.values()) + day.open
    return round(100 * day.counts[ending] / whole, 1) if whole else 0.0


@dataclass(frozen=True, kw_only=True)
class RegionDays:
    """A region's row in the table of days.

    `outcomes` has the region's outcome on each day, oldest first, or None for a day without one.
    """

    region: str
    outcomes: tuple[Outcome | None, ...]


def matrix(days: tuple[DayView, ...]) -> list[RegionDays]:
    """Return a row per region, with regions that had problems on the latest days first.

    `days` begins with the newest day.
    """
    by_region: dict[str, dict[date, Outcome]] = defaultdict(dict)
    for day in days:
        for one in day.outcomes:
            by_region[one.region][day.date] = one
    dates = [day.date for day in days[::-1]]
    rows = [
        RegionDays(region=region, outcomes=tuple(own.get(each) for each in dates))
        for region, own in by_region.items()
    ]
    return sorted(rows, key=lambda row: (_bad_days(row), row.region))


def _bad_days(row: RegionDays) -> tuple[int, ...]:
    order = {Ending.FAILED: 0, Ending.KEPT: 1}
    return tuple(order.get(one.ending, 2) if one else 2 for one in row.outcomes[::-1])
