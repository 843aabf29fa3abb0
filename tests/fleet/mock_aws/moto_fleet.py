"""EC2 Fleet of type `instant` for moto, whose own version always uses the first pool.

What is here and not in moto: instances get their template's profile, network interface, metadata
options and placement group; client tokens; pools without room, with reasons; weights, minimum, a
single zone and a single type; the permission to launch; and a dry run. Pools are taken in their
order, each as far as it has room: AWS goes by its own view of prices and room, which nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response

Pool = dict[str, Any]  # an override, with its launch template and its zone
NO_ROOM = "InsufficientInstanceCapacity"


@dataclass
class _Shortage:
    """Pools that give no more than some nodes, and the reason that AWS gives."""

    zone: str
    kind: str
    lifecycle: str
    room: int
    code: str
    message: str
    times: int
    silent: bool

    def meets(self, pool: Pool) -> bool:
        wanted = {"Zone": self.zone, "InstanceType": self.kind, "Lifecycle": self.lifecycle}
        return all(pool[key] == one for key, one in wanted.items() if one)


@dataclass
class Capacity:
    """The capacity of pools; pools without an entry have room for all requests."""

    _shortages: list[_Shortage] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def lack(
        self,
        zone: str = "",
        kind: str = "",
        lifecycle: str = "",
        *,
        room: int = 0,
        code: str = NO_ROOM,
        message: str = "said the test",
        times: int = -1,
        silent: bool = False,
    ) -> None:
        """Limit pools to `room` living nodes, for a number of requests (or always).

        With `silent` the answer has no reason.
        """
        lacking = _Shortage(zone, kind, lifecycle, room, code, message, times, silent)
        self._shortages.append(lacking)

    def restore(self) -> None:
        """Let every pool have room again."""
        self._shortages.clear()

    def of(self, pool: Pool) -> _Shortage | None:
        """Return what a pool lacks; it counts as asked."""
        for one in self._shortages:
            if one.times and one.meets(pool):
                one.times -= 1
                return one
        return None


CAPACITY = Capacity()  # of the account: moto has one in a process


@contextmanager
def instant_fleets() -> Iterator[Capacity]:
    """Let moto's EC2 have such fleets."""
    CAPACITY.restore()
    CAPACITY.requests.clear()
    with mock.patch.object(EC2Response, "create_fleet", create_fleet, create=True):
        yield CAPACITY


def create_fleet(self: Any) -> ActionResult:
    """Answer CreateFleet."""
    self.error_on_dryrun()
    asked = {
        name: self._get_param(name)
        for name in (
            *("Type", "ClientToken", "LaunchTemplateConfigs", "TargetCapacitySpecification"),
            *("SpotOptions", "OnDemandOptions", "TagSpecifications"),
        )
    }
    assert asked["Type"] == "instant", asked
    earlier = self.ec2_backend.__dict__.setdefault("instant_fleets", {})
    if asked["ClientToken"] in earlier:
        first, answer = earlier[asked["ClientToken"]]
        if first != asked:
            raise EC2ClientError("IdempotentParameterMismatch", "the token is another request's")
        return ActionResult(answer)
    CAPACITY.requests.append(deepcopy(asked))
    fleet = _Fleet(self, asked)
    answer = fleet.answer() if _may_launch(self) else fleet.denied()
    earlier[asked["ClientToken"]] = deepcopy(asked), answer
    return ActionResult(answer)


def _may_launch(self: Any) -> bool:
    """Ask IAM for the permission that EC2 Fleet uses for its caller."""
    with mock.patch.object(self, "_get_action", return_value="RunInstances"):
        try:
            self._authenticate_and_authorize_normal_action()
        except ServiceException:
            return False
    return True


class _Fleet:
    """One request."""

    def __init__(self, response: Any, asked: dict[str, Any]) -> None:
        self._response, self._backend = response, response.ec2_backend
        target = asked["TargetCapacitySpecification"]
        self._wanted = int(target["TotalTargetCapacity"])
        self._lifecycle = target["DefaultTargetCapacityType"]
        spot = self._lifecycle == "spot"
        self._options = (asked["SpotOptions"] if spot else asked["OnDemandOptions"]) or {}
        assert bool(asked["SpotOptions"]) == spot
        self._pools = [
            {
                **override,
                "Template": configuration["LaunchTemplateSpecification"],
                "Zone": self._backend.get_subnet(override["SubnetId"]).availability_zone,
                "Lifecycle": self._lifecycle,
            }
            for configuration in asked["LaunchTemplateConfigs"]
            for override in configuration["Overrides"]
        ]
        self._least = int(self._options.get("MinTargetCapacity", 0))
        assert self._least <= 1_000
        single = ("SingleAvailabilityZone", "SingleInstanceType")
        assert not self._least or any(_is_true(self._options.get(key)) for key in single)

    def answer(self) -> dict[str, Any]:
        errors: list[dict[str, Any]] = []
        plans = [self._plan(pools, errors) for pools in self._choices()]
        plan = max(plans, key=lambda one: sum(units for *_, units in one), default=[])
        if sum(units for *_, units in plan) < self._least:
            plan = []
        made = [self._run(pool, count) for pool, count, _ in plan if count]
        return {"FleetId": f"fleet-{len(CAPACITY.requests)}", "Errors": errors, "Instances": made}

    def denied(self) -> dict[str, Any]:
        """Return the answer to a caller who may not launch."""
        denied = {
            "Lifecycle": self._lifecycle,
            "ErrorCode": "UnauthorizedOperation",
            "ErrorMessage": "You are not authorized to perform: ec2:RunInstances",
        }
        return {"FleetId": "fleet-0", "Errors": [{**denied, **_described(p)} for p in self._pools]}

    def _choices(self) -> list[list[Pool]]:
        """Return the pools that nodes may be of together, each alternative."""
        keys = [
            key
            for key, option in (
                ("Zone", "SingleAvailabilityZone"),
                ("InstanceType", "SingleInstanceType"),
            )
            if _is_true(self._options.get(option))
        ]
        alike: dict[tuple[str, ...], list[Pool]] = {}
        for pool in self._pools:
            alike.setdefault(tuple(pool[key] for key in keys), []).append(pool)
        return list(alike.values())

    def _plan(
        self, pools: list[Pool], errors: list[dict[str, Any]]
    ) -> list[tuple[Pool, int, float]]:
        """Return the number of nodes per pool, with their units."""
        left, plan = float(self._wanted), []
        for pool in pools:
            weight = float(pool.get("WeightedCapacity", 1))
            count = -(-left // weight) if left > 0 else 0
            if not count:
                break
            shortage = CAPACITY.of(pool)
            taken = int(count)
            if shortage is not None:
                taken = min(taken, max(0, shortage.room - self._living(shortage)))
            if shortage is not None and taken < count and not shortage.silent:
                code, message = shortage.code, shortage.message
                refusal = {"ErrorCode": code, "ErrorMessage": message, **_described(pool)}
                errors.append({"Lifecycle": self._lifecycle, **refusal})
            plan.append((pool, taken, taken * weight))
            left -= taken * weight
        return plan

    def _living(self, shortage: _Shortage) -> int:
        """Count the nodes that live in pools of such a shortage."""
        return sum(
            shortage.meets(
                {
                    "Zone": one.placement.zone,
                    "InstanceType": one.instance_type,
                    "Lifecycle": one.lifecycle or "on-demand",
                }
            )
            for reservation in self._backend.reservations.values()
            for one in reservation.instances
            if one.state in {"pending", "running"}
        )

    def _run(self, pool: Pool, count: int) -> dict[str, Any]:
        template = self._backend.get_launch_template(
            template_id=pool["Template"]["LaunchTemplateId"]
        ).get_version(int(pool["Template"]["Version"]))
        data = template.data
        cards = [
            {**card, "SubnetId": pool["SubnetId"]} for card in data.get("NetworkInterfaces", [])
        ]
        group = pool.get("Placement", {}).get("GroupName")
        if group is not None and group not in self._backend.__dict__.get("placement_groups", {}):
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"there is no {group}")
        made = self._backend.run_instances(
            None,
            count,
            None,
            [],
            instance_type=pool["InstanceType"],
            is_instance_type_default=False,
            region_name=self._response.region,
            subnet_id=None if cards else pool["SubnetId"],
            nics=cards,
            key_name=None,
            security_group_ids=[],
            tags=self._response._parse_tag_specification(),
            instance_market_options=self._lifecycle == "spot" and {"MarketType": "spot"},
            instance_initiated_shutdown_behavior=data.get("InstanceInitiatedShutdownBehavior"),
            metadata_options=data.get("MetadataOptions"),
            launch_template=pool["Template"],
            client_token=self._response._get_param("ClientToken"),
        )
        profile = data.get("IamInstanceProfile", {}).get("Name")
        for instance in made.instances:
            if profile and instance.id not in self._backend.iam_instance_profile_associations:
                self._backend.associate_iam_instance_profile(
                    instance_id=instance.id, iam_instance_profile_name=profile
                )
            instance.placement.group_name = group
        return {
            "InstanceIds": [instance.id for instance in made.instances],
            "InstanceType": pool["InstanceType"],
            "Lifecycle": self._lifecycle,
            **_described(pool),
        }


def _described(pool: Pool) -> dict[str, Any]:
    own = {"Template", "Zone", "Lifecycle"}
    override = {key: value for key, value in pool.items() if key not in own}
    spec = pool["Template"]
    return {
        "LaunchTemplateAndOverrides": {"LaunchTemplateSpecification": spec, "Overrides": override}
    }


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"
