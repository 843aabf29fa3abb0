"""Cluster placement groups, which keep the nodes of a gang close together."""

from __future__ import annotations

from functools import partial

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import retries, tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet


def ensure(aws: Aws, fleet: Fleet, aws_region: str) -> None:
    """Create the fleet's placement group in an AWS region, if it is missing.

    FleetError if a group of this name does not belong to the fleet.
    """
    name = names.resource_name(fleet.full_name)
    with asking(f"the placement group {name} in {aws_region}"):
        if groups(aws, fleet, aws_region):
            return
        made = or_none(
            lambda: aws.ec2(aws_region).create_placement_group(
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[tags.specification(fleet, "placement-group")],
            ),
            "InvalidPlacementGroup.Duplicate",
        )
        # A group that a killed `up` made a moment ago is listed within seconds.
        if made is None and not retries.wait_for(lambda: bool(groups(aws, fleet, aws_region))):
            raise FleetError(
                f"the placement group {name} in {aws_region} exists already, but does not belong "
                "to this fleet: delete it, or give the fleet another `name:`"
            )


def groups(aws: Aws, fleet: Fleet, aws_region: str) -> list[str]:
    """List the names of the fleet's placement groups in an AWS region."""
    found = aws.ec2(aws_region).describe_placement_groups(
        Filters=[tags.fleet_filter(fleet), {"Name": "state", "Values": ["pending", "available"]}]
    )
    return [group["GroupName"] for group in found["PlacementGroups"]]


def remove(aws: Aws, fleet: Fleet, aws_region: str) -> None:
    """Delete the fleet's placement groups in an AWS region.

    FleetError if a group still has nodes after two minutes.
    """
    with asking(f"the placement group {names.resource_name(fleet.full_name)} in {aws_region}"):
        for name in groups(aws, fleet, aws_region):
            retries.delete(
                partial(aws.ec2(aws_region).delete_placement_group, GroupName=name),
                in_use="InvalidPlacementGroup.InUse",
                gone="InvalidPlacementGroup.Unknown",
            )
