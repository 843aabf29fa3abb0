"""Sums of costs by study, run, day, team, region or kind of cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trialfleet.workflows.facts.jobs.slot_price import HOUR

BY = ("study", "run", "day", "team", "region", "kind")


class Kind(StrEnum):
    """A purpose for which money was spent."""

    TRIAL = "trials"
    BETWEEN = "between trials"  # shared jobs, while they trained no trial
    FULL = "full trainings"
    GATE = "gate"
    FAILED = "failed"  # attempts of any kind above without a result
    EVICTED = "evicted"  # interrupted executions of any kind above
    BOOT = "boot"  # nodes before they join the pool
    IDLE = "idle"  # nodes of the pool, or parts of nodes, without a job


LOST = frozenset({Kind.FAILED, Kind.EVICTED})
OVERHEAD = frozenset({Kind.BOOT, Kind.IDLE})


@dataclass(frozen=True, kw_only=True)
class CostItem:
    """The cost of one job on one machine, or of a machine's time without a job.

    `seconds` is how long the job held its slot. Boot and idle time is counted for whole machines:
    ten seconds of a half-idle machine count as five.
    """

    study: str = ""
    run: str = ""
    day: str = ""  # of a daily run, or on which another run was planned
    team: str = ""
    region: str = ""
    kind: Kind
    seconds: float
    usd: float | None  # None if the machine's price is unknown
    instance: str | None = None  # None on other machines than EC2's


@dataclass(frozen=True, kw_only=True)
class CostSum:
    """A sum of items. Costs are in USD, and None if no price is known.

    Attributes:
        key: the values that all items have in common, such as {"study": "flights"}.
        usd: all known costs.
        work: the cost of jobs without the part in `lost`. It includes jobs' time between trials.
        lost: the cost of failed attempts and interrupted executions.
        boot: the cost of machines before they joined the pool.
        idle: the cost of machines in the pool, or of parts of them, while they had no job.
        hours: the time for which jobs held slots.
        unpriced_hours: the part of `hours` whose cost is not in `usd`, because the machine's price
            is unknown.
    """

    key: dict[str, str]
    usd: float | None
    work: float | None
    lost: float | None
    boot: float | None
    idle: float | None
    hours: float
    unpriced_hours: float

    def to_json(self) -> dict[str, Any]:
        """Return the sum as plain data."""
        figures = {name: value for name, value in vars(self).items() if name != "key"}
        return {**self.key, **{name: value and round(value, 6) for name, value in figures.items()}}


def sum_known(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the known costs, or None if no cost is known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def sums(items: Iterable[CostItem], by: Sequence[str]) -> list[CostSum]:
    """Return a sum for each group of items with the same values of `by`, sorted by these values.

    `by` has names from `BY`. If it has "run" without "study", runs are named STUDY/RUN, because
    several studies may have a run with the same id.
    """
    groups: dict[tuple[str, ...], list[CostItem]] = {}
    for item in items:
        values = {name: str(getattr(item, name)) for name in by}
        if item.run and "run" in by and "study" not in by:
            values["run"] = f"{item.study}/{item.run}"
        groups.setdefault(tuple(values.values()), []).append(item)
    return [add(groups[key], dict(zip(by, key, strict=True))) for key in sorted(groups)]


def add(items: Sequence[CostItem], key: dict[str, str] | None = None) -> CostSum:
    """Return the sum of items, with the given `key`."""
    is_priced = not items or any(item.usd is not None for item in items)

    def usd(kinds: Iterable[Kind]) -> float | None:
        chosen = set(kinds)
        costs = [item.usd for item in items if item.kind in chosen]
        return sum_known(costs) if costs or not is_priced else 0.0

    def hours(chosen: Iterable[CostItem]) -> float:
        return sum(item.seconds for item in chosen if item.kind not in OVERHEAD) / HOUR

    return CostSum(
        key=key or {},
        usd=usd(Kind),
        work=usd(set(Kind) - LOST - OVERHEAD),
        lost=usd(LOST),
        boot=usd({Kind.BOOT}),
        idle=usd({Kind.IDLE}),
        hours=hours(items),
        unpriced_hours=hours(item for item in items if item.usd is None),
    )
