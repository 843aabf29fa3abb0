"""The events of a study's days: a table of each day at its end, and regions that had no run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from trialfleet.workflows.daily.folder import DailyFolder
from trialfleet.workflows.daily.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.notify.delivery import deliver
from trialfleet.workflows.notify.event import Event, event_id, in_one_line
from trialfleet.workflows.notify.outbox import Outbox
from trialfleet.workflows.study.notify import Channel

_STILL_NEWS = timedelta(days=2)  # of a day's end, for those who have just asked to hear of it
_AGAIN_SECONDS = 15.0


def tell_days(
    study: str,
    channels: Sequence[Channel],
    folder: DailyFolder,
    journal: Journal,
    now: datetime,
    seconds: float,
) -> int:
    """Tell of the days that have ended lately, each once.

    Args:
        study: its name.
        channels: who wants to hear of them.
        folder: of the study's days.
        journal: what became of them.
        now: the time.
        seconds: for so long what doesn't arrive is sent again; the next day's start goes on.

    Returns:
        How many messages have not arrived.
    """
    if not channels:
        return 0
    outbox = Outbox(folder.alerts)
    outbox.put(_events(study, folder, journal, now), channels, is_daily=True)
    end = time.monotonic() + seconds
    with outbox.alone(wait=True):
        while (left := deliver(outbox, channels)) and time.monotonic() < end:
            time.sleep(_AGAIN_SECONDS)
    return left


def _events(study: str, folder: DailyFolder, journal: Journal, now: datetime) -> Iterator[Event]:
    for attempt in journal.attempts():
        if attempt.ended and now - attempt.ended <= _STILL_NEWS:
            found = journal.outcomes(attempt.date, attempt.date)
            outcomes = [one for one in found if one.attempt == attempt.attempt]
            yield from _without_run(study, folder, outcomes)
            yield _digest(study, folder, attempt, outcomes)


def _without_run(study: str, folder: DailyFolder, outcomes: list[Outcome]) -> Iterator[Event]:
    """The regions that failed before there was a run, which would have reported it."""
    for one in outcomes:
        if one.ending is Ending.FAILED and one.run is None:
            yield Event(
                id=event_id(folder.root, "region-failed", one.date, one.region, one.attempt),
                kind="region-failed",
                study=study,
                region=one.region,
                title=in_one_line(f"{study} {one.date}: {one.region}: failed: {one.why}"),
                text=_again(one),
                data={"date": str(one.date)},
            )


def _again(one: Outcome) -> str:
    day = one.date
    return f"Again: trialfleet daily backfill STUDY.yaml --from {day} --to {day} --only missing"


def _digest(study: str, folder: DailyFolder, attempt: Attempt, outcomes: list[Outcome]) -> Event:
    counts = {e: sum(one.ending is e for one in outcomes) for e in Ending}
    words = ", ".join(f"{count} {ending}" for ending, count in counts.items() if count)
    again = f", attempt {attempt.attempt}" if attempt.attempt > 1 else ""
    return Event(
        id=event_id(folder.root, "day-done", attempt.date, attempt.attempt),
        kind="day-done",
        study=study,
        run=attempt.run,
        title=in_one_line(f"{study} {attempt.date}{again}: {words or 'nothing to do'}"),
        text=digest_table(outcomes),
        data={
            "date": str(attempt.date),
            "attempt": attempt.attempt,
            "counts": {str(ending): count for ending, count in counts.items()},
            "regions": [
                {"region": one.region, "ended": str(one.ending), "why": one.why} for one in outcomes
            ],
        },
    )


def digest_table(outcomes: list[Outcome]) -> str:
    """Return what became of each region, in columns; what somebody may have to look at first."""
    order = [Ending.FAILED, Ending.KEPT, Ending.PUBLISHED, Ending.UNCHANGED]
    rows = sorted(outcomes, key=lambda one: (order.index(one.ending), one.region))
    width = max((len(one.region) for one in rows), default=0)
    lines = [
        f"{one.region:<{width}}  {one.ending:<9}  {in_one_line(one.why)}".rstrip() for one in rows
    ]
    return "\n".join(lines)
