"""Queries of HTCondor's collector, the daemon that knows all slots of a pool.

All functions but `machine_named` raise PoolError if no pool is found, or if the collector does not
answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trialfleet.classads import plain_attributes
from trialfleet.ctrl_c import delay_ctrl_c
from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, use
from trialfleet.infra.pool.machines import ATTRIBUTES, Machine, parse_machines
from trialfleet.render import classad_string

if TYPE_CHECKING:
    from classad2 import ClassAd


def slot_ads(constraint: str = "true", attributes: Collection[str] = ()) -> list[ClassAd]:
    """Return the ClassAds of the slots that satisfy a ClassAd constraint.

    If `attributes` are given, the ads have only these.
    """
    return _query("Startd", f"SlotID isnt undefined && ({constraint})", attributes)


def has_negotiator() -> bool:
    """Return whether the pool has a negotiator, the daemon that assigns waiting jobs to slots."""
    return bool(_query("Negotiator", "true", ["Name"]))


def _query(kind: str, constraint: str, attributes: Collection[str]) -> list[ClassAd]:
    use(connect())
    import htcondor2

    try:
        with delay_ctrl_c():
            collector, of_kind = htcondor2.Collector(), getattr(htcondor2.AdTypes, kind)
            return list(collector.query(of_kind, constraint, list(attributes)))
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor's collector does not answer: {error}") from error


def read_machines(
    constraint: str = "true", jobs: Iterable[Mapping[str, Any]] = ()
) -> tuple[Machine, ...]:
    """Return the machines whose slots satisfy a ClassAd constraint.

    The machines list a running trial only if its job's ClassAd is in `jobs`.
    """
    return parse_machines((plain_attributes(ad) for ad in slot_ads(constraint, ATTRIBUTES)), jobs)


def machine_named(name: str) -> Machine | None:
    """Return the pool's machine `name`, or None if it is missing or the pool doesn't answer."""
    try:
        return next(iter(read_machines(f"Machine == {classad_string(name)}")), None)
    except PoolError:
        return None
