"""What AWS says a fleet has: its instances, and everything else that carries its tag."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trialfleet.infra.fleet.aws import (
    bucket,
    identity,
    launch_template,
    network,
    placement,
    tags,
    token_store,
)
from trialfleet.infra.fleet.aws.clients import Aws, asking
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import InstanceTypeDef


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Something that a fleet has in AWS.

    Attributes:
        kind: such as `security group`.
        id: AWS's id, or the name where it goes by that.
        aws_region: where it is; empty for IAM, which has no regions.
    """

    kind: str
    id: str
    aws_region: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" in {self.aws_region}" if self.aws_region else "")


def instances(aws: Aws, fleet: Fleet, *, gone: bool = False) -> list[Instance]:
    """List the fleet's instances in all its AWS regions, oldest first.

    Args:
        aws: the account.
        fleet: whose instances.
        gone: those shutting down and terminated too; AWS forgets them after about an hour.

    Raises:
        FleetError: AWS refuses.
    """
    found = tagged(aws, fleet.aws_regions, [tags.of(fleet)])
    return [instance for instance in found if gone or instance.alive]


def tagged(aws: Aws, aws_regions: Iterable[str], filters: Sequence[Any]) -> list[Instance]:
    """List the instances that filters let through, oldest first, in whatever state they are.

    Raises:
        FleetError: AWS refuses.
    """
    found = [
        described(instance, aws_region)
        for aws_region in aws_regions
        for instance in _listed(aws, aws_region, filters)
    ]
    return sorted(found, key=lambda instance: (instance.launched, instance.id))


def described(instance: InstanceTypeDef, aws_region: str) -> Instance:
    """Return an instance as AWS's description has it."""
    tagged_with = names.tag_table(instance.get("Tags"))  # type: ignore[arg-type]
    return Instance(
        id=instance["InstanceId"],
        aws_region=aws_region,
        zone=instance["Placement"]["AvailabilityZone"],
        type=instance["InstanceType"],
        lifecycle="spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand",
        state=instance["State"]["Name"],
        address=instance.get("PrivateIpAddress", ""),
        launched=instance["LaunchTime"],
        expires=_moment(tagged_with.get(names.EXPIRES_TAG)),
        price=_price(tagged_with.get(names.PRICE_TAG)),
        run=tagged_with.get(names.RUN_TAG, ""),
        launch=tagged_with.get(names.LAUNCH_TAG, ""),
        tags=tagged_with,
        ended=_why_ended(instance),
    )


def _why_ended(instance: InstanceTypeDef) -> str:
    """AWS's code, such as Server.SpotInstanceTermination, and its words."""
    reason = instance.get("StateReason", {})
    code, words = reason.get("Code", ""), reason.get("Message", "")
    return words if words.startswith(code) else f"{code}: {words}"


def everything(aws: Aws, fleet: Fleet) -> list[Resource]:
    """List all that the fleet has in AWS, living instances first.

    Raises:
        FleetError: AWS refuses.
    """
    found = [
        Resource(kind="instance", id=instance.id, aws_region=instance.aws_region)
        for instance in instances(aws, fleet, gone=True)
        if instance.state != "terminated"
    ]
    for aws_region in fleet.aws_regions:
        found += _regional(aws, fleet, aws_region)
    return found + _global(aws, fleet)


def _listed(aws: Aws, aws_region: str, filters: Sequence[Any]) -> list[InstanceTypeDef]:
    with asking(f"the instances in {aws_region}"):
        pages = aws.ec2(aws_region).get_paginator("describe_instances").paginate(Filters=filters)
        return [
            instance
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]


def _regional(aws: Aws, fleet: Fleet, aws_region: str) -> list[Resource]:
    with asking(f"what the fleet has in {aws_region}"):
        kinds = {
            "launch template": [
                found["LaunchTemplateId"]
                for found in launch_template.templates(aws, fleet, aws_region)
            ],
            "security group": network.groups(aws, fleet, aws_region),
            "placement group": placement.groups(aws, fleet, aws_region),
        }
    return [
        Resource(kind=kind, id=id_, aws_region=aws_region)
        for kind, ids in kinds.items()
        for id_ in ids
    ]


def _global(aws: Aws, fleet: Fleet) -> list[Resource]:
    account = aws.account(fleet.home)
    with asking("what the fleet has in IAM, SSM and S3"):
        profile, role = identity.profile(aws, fleet), identity.role(aws, fleet)
        token = names.token_parameter(fleet.called) if token_store.exists(aws, fleet) else None
        kept = bucket.left(aws, fleet, account)
    found = [("instance profile", profile), ("role", role), ("SSM parameter", token)]
    resources = [Resource(kind=kind, id=name) for kind, name in found if name]
    return resources + [Resource(kind="in S3:", id=url, aws_region=fleet.home) for url in kept]


def _moment(text: str | None) -> Any:
    try:
        return names.moment(text or "")
    except ValueError:
        return None


def _price(text: str | None) -> float | None:
    """Return a price; None where the tag, which anybody may change, holds none."""
    try:
        price = float(text or "")
    except ValueError:
        return None
    return price if math.isfinite(price) and price >= 0 else None
