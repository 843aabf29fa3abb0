"""The money spent on a fleet's instances, calculated from their lifetimes and prices.

Costs are an estimate of EC2's bill for the instances alone, without disks and traffic:

- The price is the one at the launch. A spot price may have changed since.
- The end is the time that AWS reports. If AWS reports none, the end is the time of the first poll
  that doesn't list the instance. If its lease ended earlier, the end is the end of the lease.
- An instance is missing if it began and ended between two polls that were over an hour apart.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from trialfleet.files import checker, first_error
from trialfleet.infra.fleet.choice.interruption_history import History, PoolHistory
from trialfleet.infra.fleet.spec.machines import Instance, Pool
from trialfleet.infra.pool.machines import Machine

HALF_LIFE = timedelta(days=5)
LEAST = timedelta(minutes=1)  # EC2 bills seconds, and a minute at least
NOTICES = ("rebalance recommendation", "spot interruption")  # prefixes of a node's note
# Period for which an ended instance counts in its pool's history.
HISTORY_PERIOD = timedelta(days=30)
KEPT = timedelta(days=90)  # period for which ended instances and their runs stay in the record


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """The life of one instance.

    Attributes:
        price: USD per hour, or None if unknown.
        expires: the end of its lease, from AWS's last listing.
        ended: when it ended, or was found to be gone. None while it lives.
        joined: when it was first seen in the pool, or None if it never was.
        why: why it drains or has ended, and who requested that. Empty if unknown.
        zone, lifecycle: empty in old records.
        taken_back: when AWS reclaimed it, or gave notice that it may. None if neither.
        bandwidth: GB/s of a GPU's memory, as the GPU probe measured. None if not measured.
    """

    type: str
    price: float | None
    launched: datetime
    expires: datetime | None = None
    ended: datetime | None = None
    joined: datetime | None = None
    run: str = ""
    why: str = ""
    zone: str = ""
    lifecycle: str = ""
    taken_back: datetime | None = None
    bandwidth: float | None = None

    @property
    def pool(self) -> Pool:
        """The instance's capacity pool: type, zone, and spot or on-demand."""
        return self.type, self.zone, "spot" if self.lifecycle == "spot" else "on-demand"

    def end_time(self, now: datetime) -> datetime:
        """Return the recorded end or, without one, the end of the lease, but at most `now`."""
        return self.ended or min(now, self.expires or now)

    def may_live(self, now: datetime) -> bool:
        """Return whether the instance has no recorded end and its lease has not expired."""
        return self.ended is None and self.end_time(now) == now

    def cost(self, now: datetime, since: datetime | None = None) -> float:
        """Return the cost in USD until the instance's recorded end or, without one, until `now`.

        The cost counts from the launch, or from `since` if that is later. It is 0 if the price is
        unknown.
        """
        end = max(self.ended or now, self.launched + LEAST)
        begin = max(self.launched, since or self.launched)
        return (self.price or 0.0) * max(0.0, (end - begin) / timedelta(hours=1))


@dataclass(frozen=True, kw_only=True)
class NodesLeft:
    """The instances that still live although their fleet has no autoscaler.

    `until` is the time when the last lease ends, or None if the end of a lease is unknown.
    `per_hour` is the price of all instances in USD per hour.
    """

    nodes: tuple[str, ...]
    until: datetime | None
    per_hour: float


def nodes_left(lifetimes: Mapping[str, Lifetime], now: datetime) -> NodesLeft | None:
    """Return the instances that still live according to their records, or None if none does."""
    living = {k: v for k, v in lifetimes.items() if v.may_live(now)}
    if not living:
        return None
    ends = [life.expires for life in living.values() if life.expires]
    return NodesLeft(
        nodes=tuple(living),
        until=max(ends) if len(ends) == len(living) else None,
        per_hour=sum(life.price or 0.0 for life in living.values()),
    )


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A fleet's record of costs: instances' lifetimes by id, and the start times of runs by id."""

    lifetimes: Mapping[str, Lifetime] = field(default_factory=dict)
    runs: Mapping[str, datetime] = field(default_factory=dict)

    def add_listing(
        self, listed: Iterable[Instance], now: datetime, silent: Iterable[str] = ()
    ) -> Ledger:
        """Return the record, updated with AWS's list of instances, including ended ones.

        An instance that is not listed counts as ended. But in the AWS regions `silent`, which did
        not answer, it counts as ended only when its lease ends. The record drops an instance when
        `KEPT` has passed since its end.
        """
        listed = list(listed)
        living = {instance.id for instance in listed if instance.is_alive}
        lifetimes = {**self.lifetimes, **{one.id: self._update_lifetime(one) for one in listed}}
        unseen = tuple(silent)
        living |= {k for k, v in lifetimes.items() if v.zone.startswith(unseen) and v.may_live(now)}
        for name in lifetimes.keys() - living:
            lifetimes[name] = _end_lifetime(lifetimes[name], now)
        recent = {k: v for k, v in lifetimes.items() if v.ended is None or now - v.ended < KEPT}
        # A dropped run began before all lifetimes that are kept, so `cost` and `status` stay the
        # same without its start time. A run with a node in the record is kept.
        its = {life.run for life in recent.values()}
        runs = {k: v for k, v in self.runs.items() if k in its or now - v < KEPT}
        return replace(self, lifetimes=recent, runs=runs)

    def combine(self, kept: Ledger) -> Ledger:
        """Return this record combined with `kept`. An end in either record counts."""
        lifetimes = {**kept.lifetimes, **self.lifetimes}
        ended = {k: v for k, v in kept.lifetimes.items() if v.ended and not lifetimes[k].ended}
        return Ledger(lifetimes=lifetimes | ended, runs={**kept.runs, **self.runs})

    def add_machines(self, pool: Iterable[Machine], now: datetime) -> Ledger:
        """Return the record, updated with what the pool knows of the fleet's machines."""
        new = {
            node.instance: _add_machine(self.lifetimes[node.instance], node, now)
            for node in pool
            if node.instance in self.lifetimes
        }
        return replace(self, lifetimes={**self.lifetimes, **new})

    def history(self, now: datetime) -> History:
        """Return the node hours and interruptions of each capacity pool, and the nodes' speeds."""
        lives = self.lifetimes.values()
        recent = (one for one in lives if one.ended is None or now - one.ended < HISTORY_PERIOD)
        return learn_history((one for one in recent if one.zone), now)

    def add_reasons(self, whys: Mapping[str, str]) -> Ledger:
        """Return the record with `whys`, the reasons why instances drain or end, by instance id.

        If an ended instance has a reason already, that reason stays.
        """
        new = {
            name: replace(life, why=whys[name])
            for name, life in self.lifetimes.items()
            if name in whys and not (life.ended and life.why)
        }
        return replace(self, lifetimes={**self.lifetimes, **new})

    def alive_since(self, moment: datetime) -> Mapping[str, Lifetime]:
        """Return the instances that lived at this moment or later, by id."""
        return {k: v for k, v in self.lifetimes.items() if v.ended is None or v.ended > moment}

    def begin_run(self, run: str, now: datetime, planned: datetime | None = None) -> Ledger:
        """Return the record with `now` as the start of `run`, unless a start is recorded already.

        `planned` is the time at which the run was planned. An earlier recorded start is replaced,
        because it belongs to another run with this id.
        """
        known = self.runs.get(run)
        if known and planned and known < planned:
            return replace(self, runs={**self.runs, run: now})
        return replace(self, runs={run: now, **self.runs})

    def cost(self, now: datetime, since: datetime | None = None) -> float:
        """Return the cost of all instances in USD, counted from `since` if it is given."""
        return sum(lifetime.cost(now, since) for lifetime in self.lifetimes.values())

    def _update_lifetime(self, instance: Instance) -> Lifetime:
        listed = Lifetime(type=instance.type, price=instance.price, launched=instance.launched)
        known = self.lifetimes.get(instance.id, listed)
        ended = known.ended
        if instance.ended_at:  # by AWS's clock; not before this machine saw it live
            ended = max(instance.ended_at, known.joined or instance.launched)
        return replace(
            known,
            type=instance.type,
            price=instance.price,
            launched=instance.launched,
            expires=instance.expires or known.expires,
            ended=None if instance.is_alive else ended,
            run=instance.run,
            zone=instance.zone,
            lifecycle=instance.lifecycle,
            taken_back=known.taken_back or (ended if instance.was_taken_back else None),
        )


def learn_history(lives: Iterable[Lifetime], now: datetime) -> History:
    """Return the history as known at the time `now`, calculated from nodes' lives.

    A node's weight halves with each HALF_LIFE since its end or AWS's notice that it may reclaim it.
    """
    hours: dict[Pool, float] = defaultdict(float)
    interruptions: dict[Pool, float] = defaultdict(float)
    last: dict[Pool, datetime] = {}
    bandwidths: dict[str, list[float]] = defaultdict(list)
    for one in lives:
        ended = min(one.taken_back or one.end_time(now), now)
        weight = 0.5 ** ((now - ended) / HALF_LIFE)
        hours[one.pool] += weight * max(0.0, (ended - one.launched) / timedelta(hours=1))
        if one.taken_back:
            interruptions[one.pool] += weight
            last[one.pool] = max(ended, last.get(one.pool, ended))
        if one.bandwidth and 0 < one.bandwidth < math.inf:
            bandwidths[one.type].append(one.bandwidth)
    return History(
        pools={
            pool: PoolHistory(
                hours=hours[pool], interruptions=interruptions[pool], last=last.get(pool)
            )
            for pool in hours
        },
        bandwidths={kind: statistics.median(found) for kind, found in bandwidths.items()},
        at=now,
    )


def _add_machine(life: Lifetime, node: Machine, now: datetime) -> Lifetime:
    taken_back = life.taken_back or (now if node.note.startswith(NOTICES) else None)
    measured = life.bandwidth or node.bandwidth
    return replace(life, joined=life.joined or now, taken_back=taken_back, bandwidth=measured)


def _end_lifetime(lifetime: Lifetime, now: datetime) -> Lifetime:
    return replace(lifetime, ended=max(lifetime.end_time(now), lifetime.launched))


def parse(value: Any) -> Ledger:
    """Return the record from JSON data. ValueError if it is invalid."""
    try:
        runs: dict[str, datetime] = checker(dict[str, datetime]).validate_python(value["runs"])
        return Ledger(lifetimes=parse_lines(value["instances"]), runs=runs)
    except ValidationError as error:
        raise ValueError(first_error(error)) from error
    except (LookupError, TypeError) as error:
        raise ValueError("it must be a JSON object with `runs` and `instances`") from error


def parse_lines(value: Any) -> dict[str, Lifetime]:
    """Return instances' lifetimes by id, from JSON data. ValueError if it is invalid."""
    found: dict[str, Lifetime] = checker(dict[str, Lifetime]).validate_python(value)
    return found
