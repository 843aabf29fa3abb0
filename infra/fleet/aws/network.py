"""The EC2 nodes' network: a subnet for each zone, and a security group for the pool's ports.

The group's members are the nodes, and the manager if it is in the same VPC. They may connect to
each other's HTCondor port, and by SSH if the fleet has a key pair. If the fleet serves gangs
(trainings over several nodes), all TCP ports are open to members, because the operating system
chooses a gang's ports; with Elastic Fabric Adapters, all protocols. A manager in another VPC
reaches the nodes over connections that the nodes open to it (HTCondor's CCB).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import retries, tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.joining import PORT

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import (
        IpPermissionTypeDef,
        NetworkInterfaceTypeDef,
        SecurityGroupRuleTypeDef,
        SubnetTypeDef,
    )

SSH = 22  # open among the group's members if the fleet has a key pair


class Rule(NamedTuple):
    """Traffic that is allowed among a group's members. -1 means all protocols or all ports."""

    protocol: str
    first: int
    last: int
    is_egress: bool = False


ALL_TCP = Rule("tcp", 0, 65_535)  # torch's gloo and NCCL over sockets
# An EFA's traffic needs rules, in and out, that name the group; rules for addresses don't count.
ALL_IN, ALL_OUT = Rule("-1", -1, -1), Rule("-1", -1, -1, is_egress=True)


@dataclass(frozen=True, kw_only=True)
class RegionNetwork:
    """The VPC of the nodes in one AWS region, and a subnet for each zone.

    If a zone has several subnets, the one with the most free addresses is taken. Zones without a
    subnet are missing. `why` says why the region has no subnets at all.
    """

    vpc: str
    subnets: dict[str, str]
    why: str = ""


def places(aws: Aws, fleet: Fleet, *, each: bool = True) -> dict[str, RegionNetwork]:
    """Return the network for nodes in each of the fleet's AWS regions.

    Without `each`, the network of a region that has or lists no subnets is empty, with the reason,
    if another one has some.

    Raises:
        InputError: a subnet that the fleet names is in none of these regions, or a region's named
            subnets are in several VPCs.
        FleetError: an AWS region has neither a named subnet nor a default VPC, or lists none.
    """
    named = fleet.subnets
    listed = {
        region: _find_subnets(aws, region, "subnet-id", named) if named else []
        for region in fleet.aws_regions
    }
    known = {subnet["SubnetId"] for subnets in listed.values() for subnet in subnets}
    if missing := [subnet for subnet in named if subnet not in known]:
        where = ", ".join(fleet.aws_regions)
        raise InputError(
            f"subnets: the fleet's AWS regions ({where}) have no {', '.join(missing)}; correct "
            "`subnets:`, or add the right region to `aws_regions`"
        )
    found: dict[str, RegionNetwork] = {}
    refusals: dict[str, FleetError] = {}
    for region, subnets in listed.items():
        try:
            found[region] = _place(subnets or _default_subnets(aws, region), region)
        except FleetError as error:
            refusals[region] = error
    if refusals and (each or not found):
        raise next(iter(refusals.values()))
    empty = {at: RegionNetwork(vpc="", subnets={}, why=str(why)) for at, why in refusals.items()}
    return found | empty


def ensure(aws: Aws, fleet: Fleet, aws_region: str, vpc: str) -> str:
    """Create or correct the fleet's security group in the VPC `vpc`. Return the group's id."""
    name = names.resource_name(fleet.full_name)
    with asking(f"the security group {name} in {aws_region}"):
        ec2 = aws.ec2(aws_region)
        in_vpc: Any = {"Name": "vpc-id", "Values": [vpc]}
        found = ec2.describe_security_groups(Filters=[tags.fleet_filter(fleet), in_vpc])[
            "SecurityGroups"
        ]
        rules: list[SecurityGroupRuleTypeDef] = []  # a new group admits nothing
        if found:
            group = found[0]["GroupId"]
            of_group: Any = [{"Name": "group-id", "Values": [group]}]
            rules = ec2.describe_security_group_rules(Filters=of_group)["SecurityGroupRules"]
        else:
            group = ec2.create_security_group(
                GroupName=name,
                Description=f"trialfleet {fleet.full_name}: HTCondor inside the fleet",
                VpcId=vpc,
                TagSpecifications=[tags.specification(fleet, "security-group")],
            )["GroupId"]
        _open(ec2, group, rules, _wanted_rules(fleet))
    return group


def admit(aws: Aws, own: OwnInstance, vpc: str, group: str) -> None:
    """Add the manager `own` to the security group `group`, if it is in the VPC `vpc`."""
    with asking(f"the manager {own.id} as a member of {group}"):
        ec2 = aws.ec2(own.aws_region)
        found = ec2.describe_network_interfaces(
            Filters=[{"Name": "attachment.instance-id", "Values": [own.id]}]
        )
        for card in found["NetworkInterfaces"]:
            first = card.get("Attachment", {}).get("DeviceIndex") == 0
            if first and card["VpcId"] == vpc and group not in _groups(card):
                _set_groups(ec2, card, [*_groups(card), group])


def groups(aws: Aws, fleet: Fleet, aws_region: str) -> list[str]:
    """List the fleet's security groups in an AWS region."""
    ec2 = aws.ec2(aws_region)
    pages = ec2.get_paginator("describe_security_groups").paginate(
        Filters=[tags.fleet_filter(fleet)]
    )
    return [group["GroupId"] for page in pages for group in page["SecurityGroups"]]


def remove(aws: Aws, fleet: Fleet, aws_region: str) -> None:
    """Delete the fleet's security groups in an AWS region.

    FleetError if nodes are still in a group after two minutes.
    """
    with asking(f"the security group {names.resource_name(fleet.full_name)} in {aws_region}"):
        ec2 = aws.ec2(aws_region)
        for group in groups(aws, fleet, aws_region):
            _dismiss(ec2, group)
            retries.delete(
                partial(ec2.delete_security_group, GroupId=group),
                in_use="DependencyViolation",
                gone="InvalidGroup.NotFound",
            )


def _find_subnets(aws: Aws, aws_region: str, key: str, values: list[str]) -> list[SubnetTypeDef]:
    with asking(f"the subnets in {aws_region} ({key})"):
        wanted: Any = [{"Name": key, "Values": values}]
        return aws.ec2(aws_region).describe_subnets(Filters=wanted)["Subnets"]


def _default_subnets(aws: Aws, aws_region: str) -> list[SubnetTypeDef]:
    found = _find_subnets(aws, aws_region, "default-for-az", ["true"])
    if not found:
        raise FleetError(
            f"{aws_region} has no default VPC with subnets: name subnets in `subnets:`, "
            "or create the default VPC: aws ec2 create-default-vpc"
        )
    return found


def _place(subnets: Iterable[SubnetTypeDef], aws_region: str) -> RegionNetwork:
    by_room = sorted(subnets, key=lambda subnet: subnet.get("AvailableIpAddressCount", 0))
    vpcs = {subnet["VpcId"] for subnet in by_room}
    if len(vpcs) > 1:
        raise InputError(
            f"subnets: those in {aws_region} are in several VPCs ({', '.join(sorted(vpcs))}), "
            "but a security group belongs to one: name subnets of one VPC"
        )
    roomiest = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in by_room}
    return RegionNetwork(vpc=vpcs.pop(), subnets=dict(sorted(roomiest.items())))


def _wanted_rules(fleet: Fleet) -> set[Rule]:
    rules = {Rule("tcp", port, port) for port in ((PORT, SSH) if fleet.key_pair else (PORT,))}
    if fleet.efa:
        return rules | {ALL_IN, ALL_OUT}
    return rules | {ALL_TCP} if fleet.gangs else rules


def _open(
    ec2: EC2Client, group: str, rules: Sequence[SecurityGroupRuleTypeDef], wanted: set[Rule]
) -> None:
    """Set the group's rules to `wanted`, but keep rules for outgoing traffic to non-members.

    `rules` are the rules that the group has now.
    """
    there = {_parse_rule(rule) for rule in rules if _is_within_group(rule, group)}
    strange = [rule for rule in rules if _is_strange(rule, group, wanted)]
    for rule in sorted(wanted - there):
        _let_pass(ec2, group, rule)
    if ids := [rule["SecurityGroupRuleId"] for rule in strange if not rule["IsEgress"]]:
        ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=ids)
    if ids := [rule["SecurityGroupRuleId"] for rule in strange if rule["IsEgress"]]:
        # The printed policy of a fleet without gangs lacks this permission. Without it, the EFA's
        # outgoing rule stays: this is harmless, as other outgoing traffic is unrestricted.
        or_none(
            lambda: ec2.revoke_security_group_egress(GroupId=group, SecurityGroupRuleIds=ids),
            "UnauthorizedOperation",
        )


def _is_strange(rule: SecurityGroupRuleTypeDef, group: str, wanted: set[Rule]) -> bool:
    if _is_within_group(rule, group):
        return _parse_rule(rule) not in wanted
    return not rule["IsEgress"]  # other outgoing rules are AWS's default, or the user's choice


def _is_within_group(rule: SecurityGroupRuleTypeDef, group: str) -> bool:
    return rule.get("ReferencedGroupInfo", {}).get("GroupId") == group


def _parse_rule(rule: SecurityGroupRuleTypeDef) -> Rule:
    first, last = rule.get("FromPort", -1), rule.get("ToPort", -1)
    return Rule(rule["IpProtocol"], first, last, rule["IsEgress"])


def _let_pass(ec2: EC2Client, group: str, rule: Rule) -> None:
    members: IpPermissionTypeDef = {
        "IpProtocol": rule.protocol,
        "FromPort": rule.first,
        "ToPort": rule.last,
        "UserIdGroupPairs": [{"GroupId": group}],
    }

    def allow() -> object:
        if rule.is_egress:
            return ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[members])
        return ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[members])

    or_none(lambda: retries.retry(allow, "InvalidGroup.NotFound"), "InvalidPermission.Duplicate")


def _groups(card: NetworkInterfaceTypeDef) -> list[str]:
    return [group["GroupId"] for group in card["Groups"]]


def _set_groups(ec2: EC2Client, card: NetworkInterfaceTypeDef, members_of: list[str]) -> None:
    ec2.modify_network_interface_attribute(
        NetworkInterfaceId=card["NetworkInterfaceId"], Groups=members_of
    )


def _dismiss(ec2: EC2Client, group: str) -> None:
    """Take the manager's network interface out of the security group `group`."""
    pages = ec2.get_paginator("describe_network_interfaces").paginate(
        Filters=[{"Name": "group-id", "Values": [group]}]
    )
    for card in pages.search("NetworkInterfaces[]"):
        # Only the manager's interface has another group. The nodes' disappear with the nodes.
        if others := [other for other in _groups(card) if other != group]:
            _set_groups(ec2, card, others)
