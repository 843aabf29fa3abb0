"""What a fleet's instances have cost: a record in its bucket, since AWS forgets ended instances.

The record has a line per instance: when it was launched, at what price, until when it was seen.
What it says is an estimate of EC2's bill for the instances alone, without disks and traffic:

- A price is that of the launch; a spot price may have moved since.
- The end of an instance is when it was first seen to be gone, or the end of its lease if that was
  earlier: late by at most the time between two looks, never early. Of an instance that came and
  went while nobody looked, the hour in which AWS still lists it counts as lived.
- What came and went between two looks more than an hour apart is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import bucket
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

LEAST = timedelta(minutes=1)  # EC2 bills seconds, and a minute at least
KEPT = timedelta(days=90)  # for how long an ended instance stays in the record


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """An instance's life.

    Attributes:
        price: USD per hour; None if nobody knows.
        expires: the end of its lease when it was last seen.
        ended: when it was found to be gone; None while it lives.
        joined: when it was first seen in the pool; None if it never was.
        run: the run for which it was launched; empty: for none, or it isn't known.
    """

    type: str
    price: float | None
    launched: datetime
    expires: datetime | None = None
    ended: datetime | None = None
    joined: datetime | None = None
    run: str = ""

    def cost(self, now: datetime, since: datetime | None = None) -> float:
        """Return what it cost until `now`, in USD; of a part of its life if `since` lies in it."""
        end = max(self.ended or now, self.launched + LEAST)
        begin = max(self.launched, since or self.launched)
        return (self.price or 0.0) * max(0.0, (end - begin) / timedelta(hours=1))


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The lives of a fleet's instances, by id, and when its runs began."""

    lifetimes: Mapping[str, Lifetime] = field(default_factory=dict)
    runs: Mapping[str, datetime] = field(default_factory=dict)

    def noted(self, listed: Iterable[Instance], now: datetime) -> Ledger:
        """Return the record after a look at what AWS lists, those that are gone among it."""
        listed = list(listed)
        living = {instance.id for instance in listed if instance.alive}
        lifetimes = {**self.lifetimes, **{one.id: self._lifetime(one) for one in listed}}
        for name in lifetimes.keys() - living:
            lifetimes[name] = _ended(lifetimes[name], now)
        recent = {k: v for k, v in lifetimes.items() if v.ended is None or now - v.ended < KEPT}
        return replace(self, lifetimes=recent)

    def joined(self, instances: Iterable[str], now: datetime) -> Ledger:
        """Return the record after a look at the pool, in which these instances are."""
        new = {
            name: replace(self.lifetimes[name], joined=now)
            for name in instances
            if name in self.lifetimes and self.lifetimes[name].joined is None
        }
        return replace(self, lifetimes={**self.lifetimes, **new}) if new else self

    def since(self, moment: datetime) -> Mapping[str, Lifetime]:
        """Return the instances that lived then or later."""
        return {k: v for k, v in self.lifetimes.items() if v.ended is None or v.ended > moment}

    def begun(self, run: str, now: datetime, planned: datetime | None = None) -> Ledger:
        """Return the record with a run in it, which begins now unless it has before.

        A run that had begun before this one was planned is another study's of the same id.
        """
        known = self.runs.get(run)
        if known and planned and known < planned:
            return replace(self, runs={**self.runs, run: now})
        return replace(self, runs={run: now, **self.runs})

    def cost(self, now: datetime, since: datetime | None = None) -> float:
        """Return what all instances cost in USD, of their lives after `since` if it is given."""
        return sum(lifetime.cost(now, since) for lifetime in self.lifetimes.values())

    def _lifetime(self, instance: Instance) -> Lifetime:
        known = self.lifetimes.get(instance.id)
        return Lifetime(
            type=instance.type,
            price=instance.price,
            launched=instance.launched,
            expires=instance.expires or (known.expires if known else None),
            ended=known.ended if known and not instance.alive else None,
            joined=known.joined if known else None,
            run=instance.run,
        )


def _ended(lifetime: Lifetime, now: datetime) -> Lifetime:
    end = min(now, lifetime.expires or now)
    return lifetime if lifetime.ended else replace(lifetime, ended=max(end, lifetime.launched))


def load(aws: Aws, fleet: Fleet) -> Ledger:
    """Return the fleet's record; an empty one if there is none.

    Raises:
        FleetError: the record was not written by trialfleet.
    """
    s3 = aws.s3(fleet.home)
    name, key = _place(aws, fleet)
    with asking(f"the record of costs s3://{name}/{key}"):
        found = or_none(lambda: s3.get_object(Bucket=name, Key=key), "NoSuchKey", "NoSuchBucket")
        stored = found and found["Body"].read()
    if stored is None:
        return Ledger()
    try:
        return parse(stored)
    except ValidationError as error:
        first = error.errors()[0]
        why = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise FleetError(
            f"the record of costs s3://{name}/{key} can't be read ({why}): "
            "delete it to begin a new one; what was spent so far is then not counted"
        ) from error


def load_or_tell(aws: Aws, fleet: Fleet) -> tuple[Ledger | None, str]:
    """Return the fleet's record; where it can't be read, None and that in words."""
    try:
        return load(aws, fleet), ""
    except FleetError as error:
        return None, f"the cost is of what AWS still lists alone: {error}"


def save(aws: Aws, fleet: Fleet, ledger: Ledger) -> None:
    """Replace the fleet's record."""
    name, key = _place(aws, fleet)
    stored = _Stored(schema=1, runs=dict(ledger.runs), instances=dict(ledger.lifetimes))
    text = _STORED.dump_json(stored, indent=1) + b"\n"
    with asking(f"the record of costs s3://{name}/{key}"):
        aws.s3(fleet.home).put_object(Bucket=name, Key=key, Body=text)


def _place(aws: Aws, fleet: Fleet) -> tuple[str, str]:
    name = bucket.name_of(fleet, aws.account(fleet.home))
    return name, f"{names.prefix(fleet.called)}ledger.json"


class _Stored(TypedDict):
    schema: int
    runs: dict[str, datetime]
    instances: dict[str, Lifetime]


_STORED: TypeAdapter[_Stored] = TypeAdapter(_Stored)
_LINES: TypeAdapter[dict[str, Lifetime]] = TypeAdapter(dict[str, Lifetime])


def lines(lifetimes: Mapping[str, Lifetime]) -> dict[str, Any]:
    """Return instances as the record has them, plain data by their ids."""
    stored: dict[str, Any] = _LINES.dump_python(dict(lifetimes), mode="json")
    return stored


def parse(stored: str | bytes) -> Ledger:
    """Return the record that `save` wrote; ValueError where it is none."""
    found = _STORED.validate_json(stored)
    return Ledger(lifetimes=found["instances"], runs=found["runs"])


def parse_lines(value: Any) -> dict[str, Lifetime]:
    """Return the instances that `lines` wrote; ValueError where they are none."""
    return _LINES.validate_python(value)
