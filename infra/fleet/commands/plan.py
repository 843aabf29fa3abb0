"""`fleet plan`: the resources, costs and permissions of a fleet, without any change in AWS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet.errors import TrialfleetError
from trialfleet.infra.fleet.aws import images, own_instance, policy
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import candidates as choice
from trialfleet.infra.fleet.choice import instance_types, prices
from trialfleet.infra.fleet.choice.interruption_history import PoolHistory
from trialfleet.infra.fleet.commands import manager_checks
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle.up import BOOT_MINUTES
from trialfleet.infra.fleet.scaling import cost_record
from trialfleet.infra.fleet.scaling.suitable_types import GangNeed, GangPrice, gang_price
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.limits import affordable_nodes
from trialfleet.infra.fleet.spec.machines import Candidate

POLICIES: Mapping[str, Callable[[Fleet, str], policy.Document]] = {
    "caller": policy.caller_policy,  # to make and remove the fleet
    "daily": policy.daily_policy,  # to use it
    "node": policy.node_policy,
    "reap": policy.reap_policy,
}


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The resources that `fleet up` and the autoscaler would create, and their cost.

    Attributes:
        candidates: the choices for a node, the best first.
        first: number of candidates (spot plus on-demand) that are requested before the others.
        seen: past node hours and interruptions of each candidate, in the order of `candidates`.
        spot_nodes: number of spot nodes if the fleet has its maximum of nodes.
        makes: resources that `fleet up` makes, besides the nodes.
        most_per_hour: USD per hour of `max_nodes` nodes at the highest price; at most `hour_cap`.
        on_demand: USD per hour on-demand, by AWS region and type, without unknown prices.
        problems: reasons why `fleet up` would fail.
        warnings: settings that can't be met in full, AWS regions whose candidates can't be listed,
            and nodes in AWS regions that the fleet's file no longer names.
    """

    fleet: str
    account: str
    min_nodes: int
    max_nodes: int
    spot_share: float
    spot_base: int
    spot_nodes: int
    hour_cap: float | None
    run_cap: float | None
    candidates: Sequence[Candidate]
    first: int
    seen: Sequence[PoolHistory]
    makes: Sequence[str]
    living: int
    most_per_hour: float
    gangs: Sequence[GangPrice]
    on_demand: Mapping[str, Mapping[str, float]]
    problems: Sequence[str]
    warnings: Sequence[str]
    spot_ceiling: float | None
    idle_minutes: float
    manager: str | None
    policies: Mapping[str, Any]
    currency: str = "USD"


def fleet_plan(aws: Aws, fleet: Fleet, gangs: Sequence[GangNeed] = ()) -> FleetPlan:
    """Return what a fleet would create and cost, and which nodes its study's `gangs` need.

    InputError if a gang can never begin. FleetError if there is no candidate for a node.
    """
    account = aws.account(fleet.home)
    troubles: list[str] = []
    history = cost_record.known_history(aws, fleet, troubles.append)
    found = choice.candidates(aws, fleet, troubles.append)
    candidates = choice.rank_candidates(found, fleet, history)
    living, notices = inventory.living_in_all_regions(aws, fleet)
    dearest = fleet.nodes.max * max(candidate.price for candidate in candidates)
    return FleetPlan(
        fleet=fleet.full_name,
        account=account,
        min_nodes=fleet.nodes.min,
        max_nodes=fleet.nodes.max,
        spot_share=fleet.spot.share,
        spot_base=fleet.spot.base,
        spot_nodes=fleet.spot.nodes(fleet.nodes.max),
        hour_cap=fleet.price_cap.hour,
        run_cap=fleet.price_cap.run,
        candidates=candidates,
        first=sum(
            len(choice.worth_most([one for one in candidates if one.lifecycle == kind]))
            for kind in ("spot", "on-demand")
        ),
        seen=[history.pools.get(one.pool, PoolHistory()) for one in candidates],
        makes=_new_resources(fleet, account, candidates),
        living=len(living),
        most_per_hour=min(dearest, fleet.price_cap.hour or dearest),
        gangs=[gang_price(fleet, gang, candidates) for gang in gangs],
        on_demand=_on_demand_prices(candidates),
        problems=_problems(aws, fleet, candidates),
        warnings=[*troubles, *notices, *_warnings(fleet, candidates)],
        spot_ceiling=fleet.spot.ceiling,
        idle_minutes=fleet.idle_minutes,
        manager=fleet.manager,
        policies=policies(fleet, account),
    )


def refresh_prices(aws: Aws, fleet: Fleet) -> Path:
    """Write AWS's on-demand prices of the fleet's types to the user's cache. Return its file."""
    types = {
        kind.name
        for kinds in instance_types.resolve_everywhere(aws, fleet).values()
        for kind in kinds
    }
    return prices.refresh(aws, fleet.aws_regions, types)


def policies(fleet: Fleet, account: str) -> dict[str, Any]:
    """Return the IAM policies of the fleet, by their names in POLICIES."""
    return {name: policy_of(fleet, account) for name, policy_of in POLICIES.items()}


def _on_demand_prices(candidates: Sequence[Candidate]) -> dict[str, dict[str, float]]:
    known, types = prices.table(), sorted({(one.aws_region, one.type.name) for one in candidates})
    found: dict[str, dict[str, float]] = {}
    for aws_region, name in types:
        if price := known.get(aws_region, {}).get(name):
            found.setdefault(aws_region, {})[name] = price
    return found


def _new_resources(fleet: Fleet, account: str, candidates: Sequence[Candidate]) -> list[str]:
    name = names.resource_name(fleet.full_name)
    bucket = fleet.bucket or names.bucket_name(fleet.full_name, account)
    placed = {one.aws_region for one in candidates if fleet.clusters and one.type.clusters}
    adapted = sorted({one.type.name for one in candidates if fleet.efa and one.type.efa})
    return [
        *(f"security group and launch templates {name} in {at}" for at in fleet.aws_regions),
        *(f"cluster placement group {name} in {at}" for at in fleet.aws_regions if at in placed),
        *([f"an Elastic Fabric Adapter for each node of {', '.join(adapted)}"] if adapted else []),
        f"IAM role and instance profile {name}",
        f"S3 bucket {bucket}, prefix {names.prefix(fleet.full_name)}",
        f"SSM parameter {names.token_parameter(fleet.full_name)} in {fleet.home}",
    ]


def _problems(aws: Aws, fleet: Fleet, candidates: Sequence[Candidate]) -> list[str]:
    """Return the errors for machine images that can't be found."""
    found = []
    for kind in sorted({(one.aws_region, one.type.architecture) for one in candidates}):
        try:
            images.find(aws, fleet, *kind)
        except TrialfleetError as error:
            found.append(str(error))
    return found


def _warnings(fleet: Fleet, candidates: Sequence[Candidate]) -> list[str]:
    """Return the settings of a fleet's file that can't be met in full, a line each."""
    own = None if fleet.manager else own_instance.find()
    cheapest = min(one.price for one in candidates)
    unreached = manager_checks.unreachable_error(fleet, own)
    found = [
        f"{unreached}; {manager_checks.REACHED}" if unreached else "",
        _hourly_cap_problem(fleet, cheapest),
        _run_cap_problem(fleet, cheapest),
        _without_gpus(fleet, candidates),
    ]
    return [one for one in found if one]


def _hourly_cap_problem(fleet: Fleet, price: float) -> str:
    paid = affordable_nodes(fleet.price_cap.hour, 0.0, price)
    if paid >= fleet.nodes.min:
        return ""
    return (
        f"`price_cap.hour` ({fleet.price_cap.hour:g}) pays for {paid} nodes at {price:g} "
        f"USD per hour, fewer than `nodes.min` ({fleet.nodes.min}): raise the cap"
    )


def _run_cap_problem(fleet: Fleet, price: float) -> str:
    cap = fleet.price_cap.run
    if cap is None or cap / price * 60 > BOOT_MINUTES:
        return ""
    return (
        f"`price_cap.run` ({cap:g}) pays for {cap / price * 60:.0f} minutes of one node at "
        f"{price:g} USD per hour, but a node may take {BOOT_MINUTES} minutes to join: raise the cap"
    )


def _without_gpus(fleet: Fleet, candidates: Sequence[Candidate]) -> str:
    plain = sorted({one.type.name for one in candidates if not one.type.gpus})
    if fleet.trials_per_gpu is None or not plain:
        return ""
    verb = "has" if len(plain) == 1 else "have"
    return f"{', '.join(plain)} {verb} no GPU, but the study's trials need one (accelerator: gpu)"
