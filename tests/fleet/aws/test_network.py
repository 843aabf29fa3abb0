"""Subnets by zone, the security group, and the manager's membership in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import AWAY, HOME, Account, fleet, manager_instance
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import network
from trialfleet.infra.fleet.aws.own_instance import OwnInstance


def rules(cloud: Account, group: str) -> list[Any]:
    found = cloud.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    return [
        (
            rule["IpProtocol"],
            rule["FromPort"],
            rule["ToPort"],
            [pair["GroupId"] for pair in rule["UserIdGroupPairs"]],
            rule["IpRanges"],
        )
        for rule in found["IpPermissions"]
    ]


def listed(cloud: Account, group: str) -> list[Any]:
    found = cloud.client("ec2").describe_security_group_rules(
        Filters=[{"Name": "group-id", "Values": [group]}]
    )
    return list(found["SecurityGroupRules"])


def allowed(cloud: Account, group: str) -> set[tuple[str, int, int]]:
    """Return the traffic that members accept from each other."""
    return {
        (rule["IpProtocol"], rule.get("FromPort", -1), rule.get("ToPort", -1))
        for rule in listed(cloud, group)
        if not rule["IsEgress"] and rule["ReferencedGroupInfo"]["GroupId"] == group
    }


def sent_by(cloud: Account, group: str) -> set[tuple[str, str]]:
    """Return the traffic that members may send, with the group; no group: to anybody."""
    return {
        (rule["IpProtocol"], rule.get("ReferencedGroupInfo", {}).get("GroupId", ""))
        for rule in listed(cloud, group)
        if rule["IsEgress"]
    }


def made(cloud: Account, **changes: Any) -> str:
    spec = fleet(**changes)
    return network.ensure(cloud.aws, spec, HOME, network.places(cloud.aws, spec)[HOME].vpc)


def groups_of(cloud: Account, own: OwnInstance) -> list[str]:
    cards = cloud.client("ec2").describe_network_interfaces(
        Filters=[{"Name": "attachment.instance-id", "Values": [own.id]}]
    )["NetworkInterfaces"]
    return [group["GroupName"] for group in cards[0]["Groups"]]


def other_vpc(cloud: Account, zone: str = HOME + "a") -> tuple[str, str]:
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24", AvailabilityZone=zone)
    return vpc, subnet["Subnet"]["SubnetId"]


def test_the_default_subnet_of_each_zone_is_used_unless_subnets_are_set(cloud: Account) -> None:
    place = network.places(cloud.aws, fleet())[HOME]
    assert place.subnets == {
        zone: cloud.subnet(zone) for zone in (HOME + "a", HOME + "b", HOME + "c")
    }


def test_only_the_configured_subnets_are_used(cloud: Account) -> None:
    vpc, subnet = other_vpc(cloud, HOME + "b")
    place = network.places(cloud.aws, fleet(subnets=[subnet]))[HOME]
    assert place == network.RegionNetwork(vpc=vpc, subnets={HOME + "b": subnet})


def test_the_largest_subnet_of_a_zone_is_used(cloud: Account) -> None:
    vpc, small = other_vpc(cloud)
    large, tiny = (
        cloud.client("ec2").create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=HOME + "a")[
            "Subnet"
        ]["SubnetId"]
        for block in ("10.1.16.0/20", "10.1.1.0/28")
    )
    place = network.places(cloud.aws, fleet(subnets=[small, large, tiny]))[HOME]
    assert place.subnets == {HOME + "a": large}


def test_an_unknown_subnet_is_reported(cloud: Account) -> None:
    words = r"AWS regions \(eu-west-1\) have no subnet-0123456789abcdef0; correct `subnets:`"
    with pytest.raises(InputError, match=words):
        network.places(cloud.aws, fleet(subnets=["subnet-0123456789abcdef0"]))


def test_subnets_of_two_networks_are_refused(cloud: Account) -> None:
    _, subnet = other_vpc(cloud)
    with pytest.raises(InputError, match="are in several VPCs"):
        network.places(cloud.aws, fleet(subnets=[subnet, cloud.subnet(HOME + "a")]))


def test_a_missing_default_vpc_is_reported_with_the_command_to_create_it(cloud: Account) -> None:
    for zone in "abc":
        cloud.client("ec2").delete_subnet(SubnetId=cloud.subnet(HOME + zone))
    with pytest.raises(FleetError, match="create-default-vpc"):
        network.places(cloud.aws, fleet())


def test_the_security_group_opens_one_port_only_to_its_members(cloud: Account) -> None:
    group = made(cloud)
    assert rules(cloud, group) == [("tcp", 9618, 9618, [group], [])]


def test_a_key_pair_opens_ssh_only_to_members_of_the_group(cloud: Account) -> None:
    group = made(cloud, key_pair="k")
    assert sorted(rules(cloud, group)) == [
        ("tcp", 22, 22, [group], []),
        ("tcp", 9618, 9618, [group], []),
    ]
    assert made(cloud) == group
    assert rules(cloud, group) == [("tcp", 9618, 9618, [group], [])]


@pytest.mark.parametrize(
    ("gangs", "more"),
    [({"efa": False}, [("tcp", 0, 65_535)]), ({}, [("-1", -1, -1)])],
)
def test_ports_between_gang_nodes_are_open_only_while_the_fleet_has_gangs(
    cloud: Account, gangs: dict[str, bool], more: list[tuple[str, int, int]]
) -> None:
    group = made(cloud)
    assert made(cloud, gangs=gangs) == group
    opened = sorted(allowed(cloud, group) - {("tcp", 9618, 9618)})
    assert opened == more
    cloud.faults.calls.clear()
    made(cloud, gangs=gangs)
    assert all(call.startswith("ec2:Describe") for call in cloud.faults.calls)
    assert made(cloud) == group
    assert allowed(cloud, group) == {("tcp", 9618, 9618)}
    assert rules(cloud, group) == [("tcp", 9618, 9618, [group], [])]


def test_an_efa_adds_a_rule_to_send_to_the_group_and_keeps_other_rules(
    cloud: Account,
) -> None:
    group = made(cloud)
    before = sent_by(cloud, group)
    made(cloud, gangs={})
    assert sent_by(cloud, group) == {*before, ("-1", group)}
    made(cloud, gangs={"efa": False})
    assert sent_by(cloud, group) == before
    assert before == {("-1", "")}


def test_the_group_is_set_up_without_permission_to_revoke_a_gang_rule(
    cloud: Account,
) -> None:
    group = made(cloud, gangs={})
    cloud.faults.refuse("RevokeSecurityGroupEgress", "UnauthorizedOperation")
    assert made(cloud) == group
    assert allowed(cloud, group) == {("tcp", 9618, 9618)}


@pytest.mark.parametrize(
    ("protocol", "last", "world"),
    [("tcp", 9618, True), ("udp", 9618, False), ("tcp", 9700, False), ("tcp", 9618, False)],
)
def test_a_rule_that_somebody_added_is_removed(
    cloud: Account, protocol: str, last: int, world: bool
) -> None:
    group = made(cloud)
    other = made(cloud, name="g")
    rule: dict[str, Any] = {"IpProtocol": protocol, "FromPort": 9618, "ToPort": last}
    if world:
        rule["IpRanges"] = [{"CidrIp": "0.0.0.0/0"}]
    else:
        same = (protocol, last) == ("tcp", 9618)
        rule["UserIdGroupPairs"] = [{"GroupId": other if same else group}]
    cloud.client("ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    assert made(cloud) == group
    assert rules(cloud, group) == [("tcp", 9618, 9618, [group], [])]


def test_a_correct_group_is_not_changed(cloud: Account) -> None:
    made(cloud)
    cloud.faults.calls.clear()
    made(cloud)
    assert all(call.startswith("ec2:Describe") for call in cloud.faults.calls)


def test_the_manager_joins_the_group_once_and_keeps_its_own(cloud: Account) -> None:
    own = manager_instance(cloud)
    vpc = network.places(cloud.aws, fleet())[HOME].vpc
    group = made(cloud)
    for _ in range(2):
        network.admit(cloud.aws, own, vpc, group)
        assert groups_of(cloud, own) == ["default", "trialfleet-f"]


def test_a_manager_in_another_network_is_left_alone(cloud: Account) -> None:
    vpc, subnet = other_vpc(cloud)
    own = manager_instance(cloud)
    network.admit(cloud.aws, own, vpc, made(cloud, subnets=[subnet]))
    assert groups_of(cloud, own) == ["default"]


def test_the_manager_leaves_the_group_before_it_is_removed(cloud: Account) -> None:
    own = manager_instance(cloud)
    group = made(cloud)
    network.admit(cloud.aws, own, network.places(cloud.aws, fleet())[HOME].vpc, group)
    network.remove(cloud.aws, fleet(), HOME)
    assert groups_of(cloud, own) == ["default"]
    assert network.groups(cloud.aws, fleet(), HOME) == []


def test_deletion_of_a_group_in_use_is_retried_and_then_reported(cloud: Account) -> None:
    made(cloud)
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", "in use", times=3)
    network.remove(cloud.aws, fleet(), HOME)
    assert cloud.pauses == [2, 4, 8]
    made(cloud)
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", "in use")
    with pytest.raises(FleetError, match=r"security group trialfleet-f in eu-west-1.*in use"):
        network.remove(cloud.aws, fleet(), HOME)


def test_another_fleets_group_is_neither_used_nor_removed(cloud: Account) -> None:
    theirs, ours = made(cloud, name="g"), made(cloud)
    assert theirs != ours
    network.remove(cloud.aws, fleet(), HOME)
    assert network.groups(cloud.aws, fleet(name="g"), HOME) == [theirs]


def test_a_group_that_was_just_made_and_is_not_known_everywhere_is_waited_for(
    cloud: Account,
) -> None:
    cloud.faults.refuse("AuthorizeSecurityGroupIngress", "InvalidGroup.NotFound", times=2)
    group = made(cloud)
    assert rules(cloud, group) == [("tcp", 9618, 9618, [group], [])]
    assert cloud.pauses == [0.5, 1]


def test_each_region_has_a_group_of_its_own(cloud: Account) -> None:
    spec = fleet(aws_regions=[HOME, AWAY], ami="ssm:/an/image")
    places = network.places(cloud.aws, spec)
    made_there = [network.ensure(cloud.aws, spec, region, places[region].vpc) for region in places]
    assert len(set(made_there)) == 2
