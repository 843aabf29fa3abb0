"""The number and price of the nodes that a gang needs, and whether the fleet allows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trialfleet.errors import InputError
from trialfleet.infra.fleet.scaling.packing import never_begins
from trialfleet.infra.fleet.scaling.suitable_types import can_begin, node_room
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate
from trialfleet.infra.pool.machines import Resources


@dataclass(frozen=True, kw_only=True)
class GangNeed:
    """The number of jobs of a gang (a training over several jobs), and what each job requests."""

    min: int
    max: int
    need: Resources


@dataclass(frozen=True, kw_only=True)
class GangPrice:
    """The number and price of the nodes that a gang needs.

    A gang begins with `min` jobs on `min_nodes` nodes, and may grow to `max` jobs on `max_nodes`
    nodes, at most the fleet's `nodes.max`. `type` is like `g5.xlarge spot`. Prices are in USD.
    """

    min: int
    max: int
    min_nodes: int
    max_nodes: int
    min_per_hour: float
    max_per_hour: float
    type: str

    def __str__(self) -> str:
        return (
            f"a gang of {self.min} to {self.max} jobs takes {self.min_nodes} to {self.max_nodes} "
            f"nodes of {self.type}: {self.min_per_hour:.2f} to {self.max_per_hour:.2f} USD per hour"
        )


def gang_price(fleet: Fleet, gang: GangNeed, candidates: Sequence[Candidate]) -> GangPrice:
    """Return the number and price of the nodes for a gang, all of the first suitable candidate.

    InputError if the fleet's limits allow too few nodes for the gang to begin.
    """
    chosen = next((one for one in candidates if can_begin(fleet, one, gang.need, gang.min)), None)
    if chosen is None:
        raise InputError(_why_none(fleet, gang, candidates))
    held = node_room(chosen.type, fleet.shares).count_fitting(gang.need)
    nodes = [-(-jobs // held) for jobs in (gang.min, gang.max)]
    most = min(nodes[1], fleet.nodes.max)
    return GangPrice(
        min=gang.min,
        max=gang.max,
        min_nodes=nodes[0],
        max_nodes=most,
        min_per_hour=nodes[0] * chosen.price,
        max_per_hour=most * chosen.price,
        type=f"{chosen.type.name} {chosen.lifecycle}",
    )


def _why_none(fleet: Fleet, gang: GangNeed, candidates: Sequence[Candidate]) -> str:
    held = {one: node_room(one.type, fleet.shares).count_fitting(gang.need) for one in candidates}
    if why := never_begins(gang.min, fleet.nodes.max, max(held.values())):
        return why
    costs = (
        -(-gang.min // slots) * one.price
        for one, slots in held.items()
        if gang.min <= slots * fleet.nodes.max
    )
    return (
        f"a gang needs {gang.min} jobs to begin (`resources.nodes.min`), and their nodes cost at "
        f"least {min(costs):.2f} USD per hour, but `price_cap.hour` is {fleet.price_cap.hour:g}: "
        "raise the cap, or lower `resources.nodes.min`"
    )
