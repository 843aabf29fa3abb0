"""A request for nodes to EC2 Fleet, in which AWS chooses among several capacity pools.

A capacity pool is an instance type in a zone. For spot, AWS chooses with its strategy
`price-capacity-optimized`, for on-demand with `lowest-price`. It compares prices per unit of
weighted capacity. A pool's weight is the expected finished work of one of its nodes, relative to
the slowest pool. For `count` nodes, the target capacity is `count` times the slowest pool's weight.
So AWS starts at most `count` nodes, and fewer if it chooses faster pools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from trialfleet.infra.fleet.aws import launch_template, tags
from trialfleet.infra.fleet.aws.clients import Aws, error_code, error_message
from trialfleet.infra.fleet.aws.launch_template import Template
from trialfleet.infra.fleet.aws.network import RegionNetwork
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate, Lifecycle

SLOWEST = 10  # the weight of a request's slowest pool; weights are whole numbers up to 999
HEAVIEST = 999
LEAST_MAX_PRICE = 0.001  # USD per hour and unit of weighted capacity; EC2 accepts only more
STRATEGY = {"spot": "price-capacity-optimized", "on-demand": "lowest-price"}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The AWS resources that launches need.

    `places` has the network of each AWS region, perhaps without a subnet. `make` creates the launch
    templates of another region, and the resources to which they refer. `templates` has the
    templates made so far, by AWS region and name suffix.
    """

    places: dict[str, RegionNetwork]
    templates: dict[tuple[str, str], Template] = field(default_factory=dict)
    make: Callable[[str], Mapping[tuple[str, str], Template]] = lambda _: {}

    def template(self, fleet: Fleet, pool: Candidate) -> Template:
        """Return the launch template for nodes of `pool`. A missing template is created first."""
        kind = launch_template.name_suffix(fleet, pool.type.architecture, efa=pool.type.efa)
        if (pool.aws_region, kind) not in self.templates:
            self.templates.update(self.make(pool.aws_region))
        return self.templates[pool.aws_region, kind]

    def subnet(self, pool: Candidate) -> str | None:
        """Return the subnet for nodes of `pool`, or None if the pool's zone has no subnet."""
        place = self.places.get(pool.aws_region)
        return place.subnets.get(pool.zone) if place else None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """AWS's reason for launching no node. `pool` is None if AWS does not name a capacity pool."""

    pool: Candidate | None
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a request. `made` has the capacity pools of new instances, by instance id."""

    made: Mapping[str, Candidate]
    failures: Sequence[Failure]


@dataclass(frozen=True, kw_only=True)
class FleetRequest:
    """A request for nodes of one AWS region, either spot or on-demand.

    Attributes:
        name: its client token, and a tag of its instances. A repeated request has the same name.
        pools: the capacity pools among which AWS chooses, each with a subnet.
        count: AWS starts at most this number of nodes.
        least: AWS starts at least this number of nodes, or none. This only counts if the fleet
            serves gangs (trainings over several nodes).
        expires: the end of the nodes' first lease.
        run: the run to which the nodes' costs belong. May be empty.
    """

    name: str
    pools: Sequence[Candidate]
    count: int
    least: int
    expires: str
    run: str

    @property
    def most_expensive(self) -> Candidate:
        """The most expensive capacity pool.

        The request tags all new nodes with this pool's price, because AWS has not chosen the pools
        yet. The tags are corrected after the launch.
        """
        return max(self.pools, key=lambda one: one.price)

    def send(self, aws: Aws, fleet: Fleet, prepared: Prepared) -> Answer:
        """Send the request to AWS. If AWS refuses all of it, the answer has one failure."""
        ec2 = aws.ec2(self.pools[0].aws_region)
        try:
            answer = ec2.create_fleet(**self.body(fleet, prepared))
        except ClientError as error:
            refused = Failure(pool=None, code=error_code(error), message=error_message(error))
            return Answer(made={}, failures=[refused])
        return self.parse_answer(answer, prepared)

    def parse_answer(self, answer: Mapping[str, Any], prepared: Prepared) -> Answer:
        """Parse AWS's answer. For nodes without a known pool, assume the most expensive pool."""

        def pool(found: Mapping[str, Any]) -> Candidate | None:
            override = found.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
            place = {**found, **override}
            here = (
                one
                for one in self.pools
                if one.type.name == place.get("InstanceType")
                and (
                    one.zone == place.get("AvailabilityZone")
                    or prepared.subnet(one) == place.get("SubnetId")
                )
            )
            return next(here, None)

        made = {
            id_: pool(one) or self.most_expensive
            for one in answer.get("Instances", ())
            for id_ in one["InstanceIds"]
        }
        failures = [
            Failure(pool=pool(one), code=one["ErrorCode"], message=one.get("ErrorMessage", ""))
            for one in answer.get("Errors", ())
        ]
        return Answer(made=made, failures=failures)

    def body(self, fleet: Fleet, prepared: Prepared) -> dict[str, Any]:
        """Return the arguments of CreateFleet."""
        lifecycle, gang = self.pools[0].lifecycle, fleet.gangs is not None
        heaviest = 1 if gang else _largest_weight(fleet, lifecycle)
        weights = pool_weights(self.pools, heaviest)
        options: dict[str, Any] = {"AllocationStrategy": STRATEGY[lifecycle]}
        if lifecycle == "spot":
            options["InstanceInterruptionBehavior"] = "terminate"
        if gang:
            options["SingleAvailabilityZone"] = True
            options["MinTargetCapacity"] = self.least
        return {
            "Type": "instant",
            "ClientToken": self.name,
            "LaunchTemplateConfigs": list(self._configurations(fleet, prepared, weights)),
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": self.count * min(SLOWEST, heaviest),
                "DefaultTargetCapacityType": lifecycle,
            },
            "SpotOptions" if lifecycle == "spot" else "OnDemandOptions": options,
            "TagSpecifications": [
                tags.specification(fleet, "fleet"),
                *(
                    tags.specification(fleet, kind, self._tags(fleet))
                    for kind in ("instance", "volume")
                ),
            ],
        }

    def _configurations(
        self, fleet: Fleet, prepared: Prepared, weights: Mapping[Candidate, int]
    ) -> Iterator[dict[str, Any]]:
        of: dict[Template, list[Candidate]] = {}
        for one in self.pools:
            of.setdefault(prepared.template(fleet, one), []).append(one)
        for template, pools in of.items():
            yield {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": template.id,
                    "Version": template.version,
                },
                "Overrides": [
                    _override(fleet, one, prepared.subnet(one), weights[one]) for one in pools
                ],
            }

    def _tags(self, fleet: Fleet) -> dict[str, str]:
        return {
            "Name": names.resource_name(fleet.full_name),
            names.EXPIRES_TAG: self.expires,
            names.PRICE_TAG: names.price(self.most_expensive.price),
            names.LAUNCH_TAG: self.name,
            **({names.RUN_TAG: self.run} if self.run else {}),
        }


def pool_weights(pools: Sequence[Candidate], heaviest: int = HEAVIEST) -> dict[Candidate, int]:
    """Return each pool's weight, in proportion to the finished work of a node per hour.

    The slowest pool has the weight `SLOWEST`, but no weight exceeds `heaviest`.
    """
    slowest = min(one.throughput for one in pools)
    return {one: min(heaviest, round(SLOWEST * one.throughput / slowest)) for one in pools}


def _largest_weight(fleet: Fleet, lifecycle: Lifecycle) -> int:
    """Return the largest weight that a capacity pool may have.

    For spot, EC2 gets the fleet's maximum price divided by the weight. EC2 refuses a quotient of
    `LEAST_MAX_PRICE` or less.
    """
    if lifecycle != "spot" or fleet.spot.ceiling is None:
        return HEAVIEST
    return min(HEAVIEST, max(1, math.ceil(fleet.spot.ceiling / LEAST_MAX_PRICE) - 1))


def _override(fleet: Fleet, pool: Candidate, subnet: str | None, weight: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "InstanceType": pool.type.name,
        "SubnetId": subnet,
        "WeightedCapacity": weight,
    }
    if pool.lifecycle == "spot" and fleet.spot.ceiling is not None:
        found["MaxPrice"] = f"{fleet.spot.ceiling / weight:f}"  # of a unit of weighted capacity
    if fleet.clusters and pool.type.clusters:
        found["Placement"] = {"GroupName": names.resource_name(fleet.full_name)}
    return found
