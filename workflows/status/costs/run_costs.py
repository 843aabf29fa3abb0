"""The command `trialfleet cost`: the choice of the runs, and the sums of their costs by group."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.infra.fleet.scaling.instance_costs import Lifetime
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.facts.runs.lookup import find_run, runs_here
from trialfleet.workflows.facts.runs.spending import read_spending
from trialfleet.workflows.formatting import usd
from trialfleet.workflows.rules.cost_sums import BY, CostItem, CostSum, add, sums
from trialfleet.workflows.status.costs.bill import Bill, BilledRun, bill, reported_lifetimes

_CENT, _NEAR = 0.01, 0.02  # USD, and a share: tolerances, because nodes run on between two reads


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of runs, in USD, grouped by the keys `by`. `notices` name unknown costs."""

    by: tuple[str, ...]
    rows: tuple[CostSum, ...]
    total: CostSum
    notices: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the costs as plain data."""
        return {
            "schema": 1,
            "currency": "USD",
            "by": list(self.by),
            "rows": [row.to_json() for row in self.rows],
            "total": self.total.to_json(),
            "notices": list(self.notices),
        }


def cost(*names: str | PathLike[str], by: Sequence[str] = ()) -> Costs:
    """Return the costs of runs: work, lost work, and nodes' time without a job.

    Args:
        names: runs, runs' folders, or studies. A study means all of its runs. Without names: all
            runs in `./runs`, and the total cost of their fleets.
        by: the keys to group by: study, run, day, team, region, kind (what the money was spent on).
            The default is region for one run, otherwise run.

    Raises:
        InputError: a run, study or key doesn't exist.
    """
    if unknown := [key for key in by if key not in BY]:
        raise InputError(
            f"--by {','.join(by)}: unknown key {unknown[0]!r}{did_you_mean(unknown[0], BY)}; "
            f"write comma-separated keys from: {', '.join(BY)}"
        )
    found = read_costs([os.fspath(name) for name in names])
    several = len({(item.study, item.run) for item in found.items}) > 1
    keys = tuple(dict.fromkeys(by)) or (("run",) if several else ("region",))
    rows, total = sums(found.items, keys), add(found.items)
    unpriced = [_unpriced_text(total.unpriced_hours)] if total.unpriced_hours else []
    return Costs(
        by=keys, rows=tuple(rows), total=total, notices=(*found.notices, *found.remarks, *unpriced)
    )


def _unpriced_text(hours: float) -> str:
    # short times would round to 0.00 hours
    time = f"{hours:.2f} slot hours" if hours >= 0.1 else f"{hours * 60:.2g} slot minutes"
    return (
        f"the cost of {time} is unknown, and missing above, because their nodes advertise no "
        "price; set usd_per_hour in the study (docs/costs.md)"
    )


def read_costs(names: Sequence[str] = (), now: datetime | None = None) -> Bill:
    """Return the bill of the runs in `names` (runs, their folders, studies).

    Without names, all runs in `./runs` are included. Nodes that still run are charged until `now`,
    by default the present. Raises InputError if a name doesn't exist.
    """
    here, unread = _all_here()
    chosen = [BilledRun.open(place) for place in _places(names)] if names else here
    fleets = {run.fleet.full_name: run.fleet for run in chosen if run.fleet}
    # other runs on the same nodes bear a share of these nodes' idle time
    others = [run for run in here if run.fleet and run.fleet.full_name in fleets]
    runs = {run.folder.root: run for run in [*others, *chosen]} if fleets else {}
    runs |= {run.folder.root: run for run in chosen}
    lifetimes, notices = _lifetimes(runs.values(), fleets.values(), now)
    found = bill(runs.values(), lifetimes, now or datetime.now(UTC))
    wanted = {run.name for run in chosen}
    items = found.items
    if fleets or not names:  # on a fleet, unread runs would bear a share of the idle time
        notices += unread
    if names:
        items = tuple(item for item in items if (item.study, item.run) in wanted)
    is_one = names and len(chosen) == 1
    remarks = _beside_the_status(chosen[0], items, now) if is_one else []
    return Bill(items, (*notices, *found.notices), tuple(remarks))


def _beside_the_status(
    run: BilledRun, items: Sequence[CostItem], now: datetime | None
) -> list[str]:
    money = read_spending(run.folder, run.frozen.run, run.fleet, now)
    own = add(items).usd or 0.0
    if money is None or abs(money.spent - own) <= max(_CENT, _NEAR * own):
        return []
    line = (
        f"`trialfleet status` shows {usd(money.spent)} USD, the cost of all of the fleet's nodes "
        f"since the run started; these {usd(own)} USD are the run's share of that, and the cost of "
        "its other jobs"
    )
    return [line]


def _places(names: Iterable[str]) -> list[Path]:
    here = runs_here()
    places: dict[Path, None] = {}
    for name in names:
        of_study = [run.folder for run in here if name and run.study == name]
        is_run = any(name in {run.run, run.name} for run in here)
        found = [find_run(name)] if is_run or not of_study else of_study
        places |= dict.fromkeys(place.absolute() for place in found)
    return list(places)


def _all_here() -> tuple[list[BilledRun], list[str]]:
    """Return the runs in `./runs`, and a notice for each one that can't be read."""
    found, unread = [], []
    for run in runs_here():
        try:
            found.append(BilledRun.open(run.folder))
        except InputError as error:
            unread.append(f"the run {run.folder} is not counted: {error}")
    return found, unread


def _lifetimes(
    runs: Iterable[BilledRun], fleets: Iterable[Fleet], now: datetime | None
) -> tuple[dict[str, Lifetime], list[str]]:
    reports = [(run.fleet.full_name, run.folder.fleet_state) for run in runs if run.fleet]
    found: dict[str, Lifetime] = {}
    notices = []
    for fleet in fleets:
        own = [report for name, report in reports if name == fleet.full_name]
        found |= reported_lifetimes(fleet, own)
        try:
            recorded, unread = _recorded_lifetimes(fleet, now)
        except TrialfleetError as error:
            notices.append(
                f"the nodes of the fleet {fleet.full_name} are known only from the autoscaler's "
                f"reports on this machine: {error}"
            )
        else:
            found |= recorded
            notices += [f"the fleet {fleet.full_name}: {line}" for line in unread]
    return found, notices


def _recorded_lifetimes(
    fleet: Fleet, now: datetime | None
) -> tuple[Mapping[str, Lifetime], list[str]]:
    # only runs on a fleet need AWS's library
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.scaling.cost_record import current_record

    record, unread = current_record(Aws(), fleet, now)
    return record.lifetimes, unread
