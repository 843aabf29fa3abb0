"""Costs as a list of items, and their sums by common keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trialfleet.workflows.facts.jobs.cost import HOUR

BY = ("study", "run", "day", "team", "region", "kind")


class Kind(StrEnum):
    """The purpose of a cost."""

    TRIAL = "trials"
    BETWEEN = "between trials"  # jobs that train several, while they were at none
    FULL = "full trainings"
    GATE = "gate"
    FAILED = "failed"  # attempts at any of these that led to nothing
    EVICTED = "evicted"  # executions of any of these that were cut off
    BOOT = "boot"  # nodes on their way into the pool
    IDLE = "idle"  # nodes in the pool, and parts of them, without a job


LOST = frozenset({Kind.FAILED, Kind.EVICTED})
OVERHEAD = frozenset({Kind.BOOT, Kind.IDLE})


@dataclass(frozen=True, kw_only=True)
class Item:
    """The cost of one job on one node, or of a node's time without a job.

    Attributes:
        study: the study's name; this and the following keys are empty if unknown.
        run: the run's id.
        day: of a run of a day that day, else the day on which it was planned.
        team: the study's.
        region: the region's name.
        kind: the purpose.
        seconds: how long a job held its slot; of a node without a job, as long as all of it had to
            be idle to cost as much.
        usd: its cost; None if the node's price is unknown.
        instance: the EC2 instance; None on other machines.
    """

    study: str = ""
    run: str = ""
    day: str = ""
    team: str = ""
    region: str = ""
    kind: Kind
    seconds: float
    usd: float | None
    instance: str | None = None


@dataclass(frozen=True, kw_only=True)
class CostSum:
    """A sum of items.

    Attributes:
        key: what they have in common, by the names asked for.
        usd: all known costs; None if no price is known. The same holds for the other sums.
        work: of it, what led to results, with the time of jobs between two of their trials.
        lost: of it, attempts that failed and executions that were cut off.
        boot: of it, nodes on their way into the pool.
        idle: of it, nodes without a job.
        hours: for how long jobs held slots, with or without result.
        unpriced_hours: of these, on nodes of unknown price: their cost is missing.
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
        """Return it as plain data."""
        figures = {name: value for name, value in vars(self).items() if name != "key"}
        return {**self.key, **{name: value and round(value, 6) for name, value in figures.items()}}


def sums(items: Iterable[Item], by: Sequence[str]) -> list[CostSum]:
    """Return the sums of items that share the keys `by`, names of `BY`; sorted by them.

    A run is STUDY/RUN unless its study is among the names: several studies may have a run of an id.
    """
    groups: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        values = {name: str(getattr(item, name)) for name in by}
        if item.run and "run" in by and "study" not in by:
            values["run"] = f"{item.study}/{item.run}"
        groups.setdefault(tuple(values.values()), []).append(item)
    return [add(groups[key], dict(zip(by, key, strict=True))) for key in sorted(groups)]


def add(items: Sequence[Item], key: dict[str, str] | None = None) -> CostSum:
    """Return the sum of items."""
    is_priced = not items or any(item.usd is not None for item in items)

    def usd(kinds: Iterable[Kind]) -> float | None:
        chosen = set(kinds)
        costs = [item.usd for item in items if item.kind in chosen]
        known = [cost for cost in costs if cost is not None]
        return sum(known, 0.0) if known or (not costs and is_priced) else None

    def hours(chosen: Iterable[Item]) -> float:
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
