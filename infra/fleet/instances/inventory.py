"""The instances and other resources that a fleet has in AWS."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trialfleet.errors import FleetError, join_names
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

_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
MOST_NAMED = 8  # nodes in a notice
PAGE = 1_000  # instances in an answer of AWS, its maximum


def instances(aws: Aws, fleet: Fleet, *, gone: bool = False) -> list[Instance]:
    """List the fleet's living instances in all its AWS regions, oldest first.

    With `gone`, instances that are shutting down or terminated are included. AWS lists terminated
    instances for about an hour.
    """
    listing = list_by_region(aws, fleet)
    if listing.silent:
        raise next(iter(listing.silent.values()))
    return [instance for instance in listing.instances if gone or instance.is_alive]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A fleet's instances, including ended ones, oldest first.

    `silent` has the error of each AWS region that did not list its instances.
    """

    instances: list[Instance]
    silent: Mapping[str, FleetError]


def list_by_region(aws: Aws, fleet: Fleet) -> Listing:
    """List the fleet's instances in those of its AWS regions that answer."""
    return list_regions(aws, fleet.aws_regions, [tags.fleet_filter(fleet)])


def list_regions(aws: Aws, aws_regions: Iterable[str], filters: Sequence[Any]) -> Listing:
    """List the instances that match EC2's `filters` in each of the AWS regions that answer."""
    found, silent = [], {}
    for aws_region in aws_regions:
        try:
            found += list_instances(aws, aws_region, filters)
        except FleetError as error:
            silent[aws_region] = error
    return Listing(instances=sorted(found, key=_age), silent=silent)


def with_earlier_regions(aws: Aws, fleet: Fleet) -> tuple[Fleet, str]:
    """Return `fleet` with all AWS regions that it has ever used, and an error or an empty text.

    The first region of the returned fleet has the bucket and the pool's token. After an error,
    `fleet` is returned unchanged.
    """
    try:
        noted = bucket.noted_regions(aws, fleet)
    except FleetError as error:
        unknown = "the AWS regions that the fleet used before are unknown, and may still have nodes"
        return fleet, f"{unknown}: {error}"
    regions = dict.fromkeys([*noted[:1], *fleet.aws_regions, *noted])
    return fleet.model_copy(update={"aws_regions": list(regions)}), ""


def living_in_all_regions(aws: Aws, fleet: Fleet) -> tuple[list[Instance], list[str]]:
    """Return the living instances in all AWS regions that the fleet has used. Also return notices.

    The oldest instance comes first. The notices tell of nodes in AWS regions that the fleet's file
    no longer names, and of errors in listing these regions. FleetError if a region that the file
    names does not list its instances.
    """
    everywhere, unknown = with_earlier_regions(aws, fleet)
    listing = list_by_region(aws, everywhere)
    notices = [unknown] if unknown else []
    for aws_region, refusal in listing.silent.items():
        if aws_region in fleet.aws_regions:
            raise refusal
        notices.append(f"{refusal}; nodes there are not counted")
    living = [instance for instance in listing.instances if instance.is_alive]
    earlier = [one for one in living if one.aws_region not in fleet.aws_regions]
    if earlier:
        ids = join_names([one.id for one in earlier], MOST_NAMED)
        where = ", ".join(dict.fromkeys(one.aws_region for one in earlier))
        notices.append(
            f"{ids} in {where}, which `aws_regions` no longer names: these nodes count as nodes of "
            "the fleet until their leases end"
        )
    return living, notices


def list_instances(aws: Aws, aws_region: str, filters: Sequence[Any]) -> list[Instance]:
    """List the instances in an AWS region that match EC2's `filters`, oldest first."""
    with asking(f"the instances in {aws_region}"):
        pages = aws.ec2(aws_region).get_paginator("describe_instances")
        found = pages.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE})
        listed = found.search("Reservations[].Instances[]")
        return sorted((parse_instance(one, aws_region) for one in listed), key=_age)


def parse_instance(instance: InstanceTypeDef, aws_region: str) -> Instance:
    """Parse AWS's description of an instance."""
    tagged_with = tags.table(instance.get("Tags"))
    reason = instance.get("StateReason", {})
    code, words = reason.get("Code", ""), reason.get("Message", "")
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
        # Such as Server.SpotInstanceTermination; the message may begin with the code.
        ended=words if words.startswith(code) else f"{code}: {words}",
        ended_at=_end(instance),
    )


def list_resources(aws: Aws, fleet: Fleet, aws_regions: Sequence[str]) -> list[str]:
    """Return a line for each AWS resource that the fleet still has, first its instances.

    Resources of EC2 are listed only if they are in `aws_regions`.
    """
    found = [
        f"instance {instance.id} in {instance.aws_region}"
        for aws_region in aws_regions
        for instance in list_instances(aws, aws_region, [tags.fleet_filter(fleet)])
        if instance.state != "terminated"
    ]
    for aws_region in aws_regions:
        with asking(f"the fleet's resources in {aws_region}"):
            for template in launch_template.templates(aws, fleet, aws_region):
                found.append(f"launch template {template['LaunchTemplateId']} in {aws_region}")
            for group in network.groups(aws, fleet, aws_region):
                found.append(f"security group {group} in {aws_region}")
            for group in placement.groups(aws, fleet, aws_region):
                found.append(f"placement group {group} in {aws_region}")
    account, name = aws.account(fleet.home), names.resource_name(fleet.full_name)
    with asking("the fleet's resources in IAM, SSM and S3"):
        if identity.profile(aws, fleet):
            found.append(f"instance profile {name}")
        if identity.role(aws, fleet):
            found.append(f"role {name}")
        if token_store.exists(aws, fleet):
            found.append(f"SSM parameter {names.token_parameter(fleet.full_name)}")
        found += [
            f"in S3: {url} in {fleet.home}" for url in bucket.remaining_objects(aws, fleet, account)
        ]
    return found


def _age(instance: Instance) -> tuple[datetime, str]:
    return instance.launched, instance.id


def _end(instance: InstanceTypeDef) -> datetime | None:
    """Return when an instance ended. AWS's text is like `User initiated (2026-11-27 …)`."""
    found = _WHEN.search(instance.get("StateTransitionReason", ""))
    if found is None or instance["State"]["Name"] not in {"shutting-down", "terminated"}:
        return None
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)


def _moment(text: str | None) -> datetime | None:
    try:
        return names.moment(text or "")
    except ValueError:
        return None


def _price(text: str | None) -> float | None:
    """Return the price in a tag's text, or None if it is invalid. Users can change tags."""
    try:
        price = float(text or "")
    except ValueError:
        return None
    return price if math.isfinite(price) and price >= 0 else None
