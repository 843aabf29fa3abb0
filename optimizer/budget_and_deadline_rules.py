"""Checks before a trial, full training or gate begins: disk, money, deadline, failures, budgets.

A full training makes a region's final model from the best settings. A gate compares this model with
the current one. A fact that a caller leaves out of `Facts` never causes a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from trialfleet.optimizer.region_types import Kind, Refused, Stopped

LEAST_FREE = 64 << 20  # bytes on the disk, for HTCondor's logs: with less, nothing begins

Activity = Literal["anything", "attempt", "trial", "region", "full training", "gate"]
_KINDS: Mapping[Activity, tuple[Kind, ...]] = {
    "anything": ("space",),
    "attempt": ("space", "money", "deadline"),  # another attempt at a trial that has begun
    "trial": ("space", "money", "deadline", "failures", "trials", "hours", "usd"),
    "region": ("failures",),
    "full training": ("space", "all money", "failures"),
    "gate": ("space", "all money"),
}
_ROUNDING = 1e-9  # of sums in USD


class UsdBudget(NamedTuple):
    """A budget in USD, the amounts spent and reserved, and the likely cost of one trial."""

    name: str
    usd: float
    spent: float
    reserved: float
    trial: float


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that decide whether a trial, a full training or a gate may begin."""

    free: float = math.inf  # bytes on the disk
    folder: str = ""  # on that disk
    # why the fleet's cost cap allows no more jobs, by mode (`tune`, `final`)
    out_of_money: Mapping[str, str] = field(default_factory=dict)
    deadline: datetime | None = None  # of the run's day
    now: datetime | None = None
    failed: int = 0  # trials of the region that failed for good
    failures: float = math.inf  # failed trials that are allowed
    last_failure: str = ""  # the last failed trial and its error
    begun: int = 0  # trials of the region
    trials: float = math.inf  # trials that are allowed
    age_hours: float = 0.0  # since the region's first trial began
    hours: float | None = None  # maximum of `age_hours`; None for no limit
    budgets: Callable[[], Iterable[UsdBudget]] = tuple  # called only if nothing else refuses


def refusal(activity: Activity, facts: Facts) -> Refused | None:
    """Return the most important reason not to begin `activity`, or None if it may begin."""
    return next((one for one in _refusal_reasons(facts) if one.kind in _KINDS[activity]), None)


def _refusal_reasons(facts: Facts) -> Iterator[Refused]:
    if facts.free < LEAST_FREE:
        free = f"no space: {int(facts.free) >> 20} MB are free in {facts.folder!r}"
        least = (
            f"at least {LEAST_FREE >> 20} MB must be free, because HTCondor's logs may need them"
        )
        yield Refused(f"{free}; {least}", "space")
    if reason := facts.out_of_money.get("final"):
        yield Refused(reason, "all money")
    if reason := facts.out_of_money.get("tune") or reason:
        yield Refused(reason, "money")
    if facts.deadline and facts.now and facts.now >= facts.deadline:
        over = f"the day's deadline, {facts.deadline:%Y-%m-%d %H:%M %Z}, is over"
        yield Refused(over, "deadline")
    if facts.failed > facts.failures:
        last = f"; the last one was {facts.last_failure}" if facts.last_failure else ""
        allowed = f"budget.failures allows {facts.failures}"
        yield Stopped(f"{facts.failed} trials failed for good; {allowed}{last}", "failures")
    if facts.begun >= facts.trials:
        yield Refused(f"the budget of {facts.trials} trials is used up", "trials")
    if facts.hours is not None and facts.age_hours >= facts.hours:
        yield Refused(f"the budget of {facts.hours:g} hours is used up", "hours")
    yield from (Refused(why, "usd") for why in map(_used_up_reason, facts.budgets()) if why)


def _used_up_reason(budget: UsdBudget) -> str | None:
    name, usd, spent, reserved, trial = budget
    if spent < usd and spent + reserved + trial <= usd + _ROUNDING:
        return None
    parts = [f"{_amount(spent)} USD are spent"]
    if reserved:
        parts.append(
            f"{_amount(reserved)} are reserved for running jobs and for full trainings to come"
        )
    if spent < usd:
        parts.append(f"one more trial costs about {_amount(trial)}")
    return f"{name} of {_amount(usd)} USD is used up: {', '.join(parts)}"


def _amount(usd: float) -> str:
    return f"{round(usd, 2):.12g}" if usd >= 0.1 else f"{usd:.2g}"
