"""The events of a study's days: a table of each day at its end, and regions that had no run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.facts.journal.event import Event, event_id, in_one_line
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.formatting import decimals_of, usd
from trialfleet.workflows.rules.cost_sums import Sum, add, sums
from trialfleet.workflows.status.costs.named import read_costs
from trialfleet.workflows.study.notify import Channel

_STILL_NEWS = timedelta(days=2)  # of a day's end, for those who have just asked to hear of it


def tell_days(
    study: str,
    channels: Sequence[Channel],
    folder: DailyFolder,
    journal: Journal,
    now: datetime,
) -> Outbox | None:
    """Put the events of the days into their outbox, each once, and return it.

    They are those of the days that have ended lately, and the regions that have failed meanwhile on
    one that goes on. Where nobody wants to hear, there is no outbox.
    """
    if not channels:
        return None
    outbox = Outbox(folder.alerts)
    events = list(_events(study, folder, journal, now, outbox))
    outbox.put(events, channels, is_daily=True)
    return outbox


def _events(
    study: str, folder: DailyFolder, journal: Journal, now: datetime, outbox: Outbox
) -> Iterator[Event]:
    for attempt in journal.attempts():
        if now - (attempt.ended or now) > _STILL_NEWS:
            continue
        found = journal.outcomes(attempt.date, attempt.date)
        outcomes = [one for one in found if one.attempt == attempt.attempt]
        yield from _without_run(study, folder, outcomes)
        if attempt.ended:
            digest = event_id(folder.root, "day-done", attempt.date, attempt.attempt)
            costs = None if outbox.has(digest) else _costs(folder, attempt)
            yield _digest(study, folder, digest, attempt, outcomes, costs)


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
                text=_again(one, folder),
                data={"date": str(one.date)},
            )


def _again(one: Outcome, folder: DailyFolder) -> str:
    between = f"--from {one.date} --to {one.date}"
    return f"Again: trialfleet daily backfill {folder.study_as_typed} {between} --only missing"


@dataclass(frozen=True)
class DaysCosts:
    """What a day's run has cost; by region where it can be put to one."""

    total: Sum
    regions: Mapping[str, Sum]


def _costs(folder: DailyFolder, attempt: Attempt) -> DaysCosts | None:
    """What a day's run has cost; None where there is no run, or nobody knows a price."""
    place = folder.run(attempt.run)
    if not RunFolder(place).study.exists():
        return None
    try:
        items = read_costs([str(place)]).items
    except (TrialfleetError, OSError):  # the day is told all the same
        return None
    if all(item.usd is None for item in items):
        return None
    return DaysCosts(add(items), {one.key["region"]: one for one in sums(items, ["region"])})


def _digest(
    study: str,
    folder: DailyFolder,
    key: str,
    attempt: Attempt,
    outcomes: list[Outcome],
    costs: DaysCosts | None,
) -> Event:
    counts = {e: sum(one.ending is e for one in outcomes) for e in Ending}
    words = ", ".join(f"{count} {ending}" for ending, count in counts.items() if count)
    again = f", attempt {attempt.attempt}" if attempt.attempt > 1 else ""
    spent = f", {_money(costs.total.usd, costs.total)} USD" if costs else ""
    failed = (one for one in outcomes if one.ending is Ending.FAILED)
    next_step = next((_again(one, folder) for one in failed), "")
    return Event(
        id=key,
        kind="day-done",
        study=study,
        run=attempt.run,
        title=in_one_line(f"{study} {attempt.date}{again}: {words or 'nothing to do'}{spent}"),
        text="\n".join(filter(None, [digest_table(outcomes, costs), next_step])),
        data={
            "date": str(attempt.date),
            "attempt": attempt.attempt,
            "counts": {str(ending): count for ending, count in counts.items()},
            "regions": [
                {
                    "region": one.region,
                    "ended": str(one.ending),
                    "why": one.why,
                    **_priced(costs.regions.get(one.region) if costs else None),
                }
                for one in outcomes
            ],
            **_priced(costs.total if costs else None),
        },
    )


def _priced(cost: Sum | None) -> dict[str, float]:
    return {} if cost is None or cost.usd is None else {"usd": round(cost.usd, 6)}


def digest_table(outcomes: list[Outcome], costs: DaysCosts | None = None) -> str:
    """Return what became of each region, in columns; what somebody may have to look at first."""
    order = [Ending.FAILED, Ending.KEPT, Ending.PUBLISHED, Ending.UNCHANGED]
    rows = sorted(outcomes, key=lambda one: (order.index(one.ending), one.region))
    amounts = [_usd(costs, one.region) for one in rows]
    width = max((len(one.region) for one in rows), default=0)
    widest = max(map(len, amounts), default=0)
    lines = [
        f"{one.region:<{width}}  {one.ending:<9}  {amount:>{widest}}{'  ' * bool(widest)}"
        f"{in_one_line(one.why)}".rstrip()
        for one, amount in zip(rows, amounts, strict=True)
    ]
    return "\n".join(lines + ([_spent(costs.total)] if costs else []))


def _usd(costs: DaysCosts | None, region: str) -> str:
    """What a region has cost; empty where it had no job, or nobody knows its price."""
    known = costs.regions.get(region) if costs else None
    if costs is None or known is None or known.usd is None:
        return ""
    return f"{_money(known.usd, costs.total)} USD"


def _money(amount: float | None, total: Sum) -> str:
    """An amount with as many decimals as all others of the day."""
    return usd(amount or 0.0, decimals_of(total.usd or 0.0))


def _spent(total: Sum) -> str:
    """What the day has cost, and how much of that led to nothing."""
    parts = [
        f"{_money(amount, total)} USD {what}"
        for what, amount in (("lost", total.lost), ("boot", total.boot), ("idle", total.idle))
        if amount
    ]
    missing = f"; {total.unpriced_hours:.1f} slot hours have no known price"
    within = f", of it {', '.join(parts)}" if parts else ""
    return f"cost: {_money(total.usd, total)} USD{within}{missing if total.unpriced_hours else ''}"
