"""Alerts about a study's days.

Each attempt at a day gets a digest, a table of its results. Other alerts say that a day waits for
data, that a region failed before it had a run, or that another manager took over a day.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from trialfleet.errors import TrialfleetError, join_names
from trialfleet.files import read_record
from trialfleet.workflows.facts.journal.event import Event, event_id
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal, Outcome
from trialfleet.workflows.facts.journal.lease import Lease
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.models.approval import promote_command, read_awaiting
from trialfleet.workflows.facts.models.folders import LATEST, region_models_folder
from trialfleet.workflows.facts.models.history import BY_A_PERSON, Change, changes
from trialfleet.workflows.facts.record_shapes import Published
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.formatting import (
    duration,
    in_one_line,
    local_time,
    number,
    result_text,
    usd,
    usd_decimals,
)
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.rules.cost_sums import CostSum, add, sums
from trialfleet.workflows.status.costs.bill import Bill
from trialfleet.workflows.status.costs.run_costs import read_costs
from trialfleet.workflows.status.day_outcomes import warnings_of_day
from trialfleet.workflows.status.earlier_model import WithPrevious, with_previous
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.notify import Channel
from trialfleet.workflows.study.spec import Study

_NAMED = 5  # at most this number of regions in a title
_STILL_NEWS = timedelta(days=2)  # older days give no event, even for a new channel


def tell_days(
    study: Study,
    channels: Sequence[Channel],
    outbox: Outbox,
    folder: DailyFolder,
    journal: Journal,
    now: datetime,
) -> None:
    """Put new alerts about open and recently ended attempts into `outbox`."""
    events = list(_digest_events(study, folder, journal, now, outbox))
    outbox.put(events, channels, is_daily=True)


def _digest_events(
    study: Study, folder: DailyFolder, journal: Journal, now: datetime, outbox: Outbox
) -> Iterator[Event]:
    for attempt in journal.attempts():
        if now - (attempt.ended or now) > _STILL_NEWS:
            continue
        found = journal.outcomes(attempt.date, attempt.date)
        outcomes = [one for one in found if one.attempt == attempt.attempt]
        yield from _without_run(study.name, folder, journal, attempt, outcomes)
        digest = event_id(journal.scope, "day-done", attempt.date, attempt.attempt)
        if attempt.ended and not outbox.has(digest):
            yield _digest(
                study,
                folder,
                digest,
                attempt,
                outcomes,
                _changes_by_people(study, journal, attempt),
            )


def awaited_event(
    study: str,
    journal: Journal,
    attempt: Attempt,
    awaited: Mapping[str, str],
    until: datetime | None,
) -> Event:
    """Return the alert for a day that waits for data.

    `awaited` has the regions whose data can't be used yet, each with the reason. `until` is when
    the wait ends, or None if that is unknown.
    """
    when = f" until {local_time(until)}" if until else ""
    title = f"{study} {attempt.date}: waits for the data of {join_names([*awaited], _NAMED)}{when}"
    return Event(
        id=event_id(journal.scope, "awaited", attempt.date),
        kind="attention",
        study=study,
        title=in_one_line(title),
        text="\n".join(f"{region}: {why}" for region, why in awaited.items()),
        data={"date": str(attempt.date), "regions": [*awaited]},
    )


def takeover_event(study: str, journal: Journal, day: date, previous: Lease) -> Event:
    """Return the alert that this manager has taken over the work on `day`.

    `previous` is the lease that the other manager had.
    """
    host = socket.gethostname()
    silent = duration(previous.age)
    return Event(
        id=event_id(journal.scope, "takeover", previous.token),
        kind="attention",
        study=study,
        title=in_one_line(
            f"{study} {day}: {host} took over from {previous.host}, silent for {silent}"
        ),
        text=f"{previous.host}: {previous.folder}\nThe day continues here; check that machine.",
        data={"date": str(day), "from": previous.host, "to": host},
    )


def _without_run(
    study: str,
    folder: DailyFolder,
    journal: Journal,
    attempt: Attempt,
    outcomes: list[Outcome],
) -> Iterator[Event]:
    has_run = RunFolder(folder.run(attempt.run)).study.exists()
    for one in outcomes:
        if one.ending is Ending.FAILED and one.run is None:
            yield Event(
                id=event_id(journal.scope, "region-failed", one.date, one.region, one.attempt),
                kind="region-failed",
                study=study,
                run=attempt.run if has_run else None,
                region=one.region,
                title=in_one_line(f"{study} {one.date}: {one.region}: failed: {one.why}"),
                text=_retry_text(one, folder),
                data={"date": str(one.date), "attempt": one.attempt, "why": one.why},
            )


def _retry_text(one: Outcome, folder: DailyFolder) -> str:
    between = f"--from {one.date} --to {one.date}"
    return f"To retry: trialfleet daily backfill {folder.study_as_typed} {between} --only missing"


@dataclass(frozen=True)
class DaysCosts:
    """The cost of a day's run: the total, each region's part of it, and what is missing."""

    total: CostSum | None  # None if unknown
    regions: Mapping[str, CostSum]
    notices: tuple[str, ...] = ()


def _costs(folder: DailyFolder, attempt: Attempt) -> DaysCosts | None:
    """Return the cost of an attempt's run; None without a run, or if no price is known."""
    place = folder.run(attempt.run)
    if not RunFolder(place).study.exists():
        return None
    try:
        found = read_costs([str(place)])
    except (TrialfleetError, OSError) as error:  # the day is still reported
        found = Bill((), (f"the cost of {attempt.run} is missing: {error}",))
    known = found.items if any(item.usd is not None for item in found.items) else ()
    if not (known or found.notices):
        return None
    regions = {one.key["region"]: one for one in sums(known, ["region"])}
    return DaysCosts(add(known) if known else None, regions, found.notices)


def _compare_with_earlier(
    folder: DailyFolder, outcomes: Iterable[Outcome]
) -> dict[str, WithPrevious]:
    found = {}
    for one in outcomes:
        run = RunFolder(folder.run(one.run)) if one.run else None
        record = run and run.region(region_slug(one.region)).published
        if run and record and record.exists():
            with suppress(TrialfleetError, OSError):  # the day is still reported
                model = Path(read_record(record, "path", shape=Published)["path"])
                found[one.region] = with_previous(model, load_frozen(run.study).study)
    return found


def _changes_by_people(
    study: Study, journal: Journal, attempt: Attempt
) -> list[tuple[str, Change]]:
    """Return the changes of current models that people made, each with its region.

    The period begins when the previous attempt, at any day, ended. It ends when `attempt` ended.
    """
    assert attempt.ended
    ends = [one.ended for one in journal.attempts() if one.ended and one.ended < attempt.ended]
    since = max(ends, default=attempt.started)
    return [
        (region, change)
        for region in attempt.regions
        for change in changes(region_models_folder(study, region_slug(region)) / LATEST)
        if change.by in BY_A_PERSON
        and change.time
        and since < datetime.fromisoformat(change.time) <= attempt.ended
    ]


def _change_line(region: str, change: Change) -> str:
    instead = f" instead of {change.previous}'s" if change.previous else ""
    return in_one_line(
        f"{region}: {change.run}'s model is the current one{instead}: {change.description}"
    )


def _digest(
    study: Study,
    folder: DailyFolder,
    key: str,
    attempt: Attempt,
    outcomes: list[Outcome],
    moves: list[tuple[str, Change]],
) -> Event:
    costs, measured = _costs(folder, attempt), _compare_with_earlier(folder, outcomes)
    counts = {e: sum(one.ending is e for one in outcomes) for e in Ending}
    words = ", ".join(f"{count} {ending}" for ending, count in counts.items() if count)
    again = f", attempt {attempt.attempt}" if attempt.attempt > 1 else ""
    total = costs.total if costs else None
    spent = f", {_money(total.usd, total)} USD" if total else ""
    failed = (one for one in outcomes if one.ending is Ending.FAILED)
    next_step = next((_retry_text(one, folder) for one in failed), "")
    waiting = [one for one in outcomes if _waits_for_approval(study, one)]
    table = digest_table(outcomes, costs, measured)
    warned = warnings_of_day(folder, outcomes)
    warnings = [in_one_line(f"{region}: {words}") for region, words in warned.items()]
    return Event(
        id=key,
        kind="day-done",
        study=study.name,
        run=attempt.run,
        title=in_one_line(f"{study.name} {attempt.date}{again}: {words or 'nothing to do'}{spent}"),
        text="\n".join(
            filter(
                None,
                [
                    table,
                    *warnings,
                    *_approval_lines(study, waiting),
                    *(_change_line(*each) for each in moves),
                    next_step,
                ],
            )
        ),
        data={
            "date": str(attempt.date),
            "attempt": attempt.attempt,
            "counts": {str(ending): count for ending, count in counts.items()},
            "regions": [
                {
                    "region": one.region,
                    "ended": str(one.ending),
                    "why": one.why,
                    **({"awaits_approval": True} if one in waiting else {}),
                    **_cost_data(costs.regions.get(one.region) if costs else None),
                    **_values(measured.get(one.region)),
                    **({"checks": warned[one.region]} if one.region in warned else {}),
                }
                for one in outcomes
            ],
            "moves": [{"region": region, **asdict(change)} for region, change in moves],
            **_cost_data(total),
        },
    )


def _waits_for_approval(study: Study, one: Outcome) -> bool:
    if one.ending is not Ending.KEPT or not study.publishes:
        return False
    found = read_awaiting(region_models_folder(study, region_slug(one.region)))
    return found is not None and found.run == one.run


def _approval_lines(study: Study, waiting: Iterable[Outcome]) -> Iterator[str]:
    for one in waiting:
        model = region_models_folder(study, region_slug(one.region)) / str(one.run)
        yield f"{one.region}: its new model waits for approval: {promote_command(model)}"


def _values(both: WithPrevious | None) -> dict[str, Any]:
    if both is None or both.value is None:
        return {}
    before = {} if both.value_before is None else {"value_before": both.value_before}
    return {"metric": both.metric, "value": both.value, **before}


def _cost_data(cost: CostSum | None) -> dict[str, float]:
    return {} if cost is None or cost.usd is None else {"usd": round(cost.usd, 6)}


def digest_table(
    outcomes: list[Outcome],
    costs: DaysCosts | None = None,
    measured: Mapping[str, WithPrevious] | None = None,
) -> str:
    """Return a table of the regions' outcomes. Failed regions are at the top.

    With `measured`, the table shows the results of each new model and of the region's previous one.
    """
    order = [Ending.FAILED, Ending.KEPT, Ending.PUBLISHED, Ending.UNCHANGED]
    rows = sorted(outcomes, key=lambda one: (order.index(one.ending), one.region))
    amounts = [_usd(costs, one.region) for one in rows]
    values = [_values_text((measured or {}).get(one.region)) for one in rows]
    width = max((len(one.region) for one in rows), default=0)
    widest, longest = (max(map(len, column), default=0) for column in (amounts, values))
    lines = [
        f"{one.region:<{width}}  {one.ending:<9}  {amount:>{widest}}{'  ' * bool(widest)}"
        f"{value:<{longest}}{'  ' * bool(longest)}{in_one_line(one.why)}".rstrip()
        for one, amount, value in zip(rows, amounts, values, strict=True)
    ]
    if costs and costs.total:
        lines.append(_cost_text(costs.total))
    return "\n".join([*lines, *map(in_one_line, costs.notices if costs else ())])


def _values_text(both: WithPrevious | None) -> str:
    if both is None or both.value is None:
        return ""
    before = "" if both.value_before is None else f", before {number(both.value_before)}"
    return f"{result_text(both.metric, both.value)}{before}"


def _usd(costs: DaysCosts | None, region: str) -> str:
    known = costs.regions.get(region) if costs else None
    if costs is None or costs.total is None or known is None or known.usd is None:
        return ""
    return f"{_money(known.usd, costs.total)} USD"


def _money(amount: float | None, total: CostSum) -> str:
    return usd(amount or 0.0, usd_decimals(total.usd or 0.0))


def _cost_text(total: CostSum) -> str:
    parts = [
        f"{_money(amount, total)} USD {what}"
        for what, amount in (("lost", total.lost), ("boot", total.boot), ("idle", total.idle))
        if amount
    ]
    missing = f"; {total.unpriced_hours:.1f} slot hours have no known price"
    within = f", of it {', '.join(parts)}" if parts else ""
    return f"cost: {_money(total.usd, total)} USD{within}{missing if total.unpriced_hours else ''}"
