"""A fleet that serves gangs: one zone, a placement group in it, and Elastic Fabric Adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import (
    AWAY,
    HOME,
    IMAGE,
    Account,
    account,
    candidate,
    fleet,
    inputs,
)
from tests.fleet.mock_aws.moto_faults import kills
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import placement
from trialfleet.infra.fleet.commands import permissions
from trialfleet.infra.fleet.instances.launch import Launched
from trialfleet.infra.fleet.lifecycle import down, up
from trialfleet.infra.fleet.spec.fleet import Fleet

A = candidate(HOME + "a", "p4d.24xlarge", clusters=True, efa=True)
B = candidate(HOME + "b", "p4d.24xlarge", clusters=True, efa=True)
SMALL = candidate(HOME + "a", "t3.small")
GROUP = "trialfleet-f"
REGIONS: dict[str, Any] = {"aws_regions": [HOME, AWAY], "ami": {HOME: IMAGE, AWAY: IMAGE}}


def spec(**changes: Any) -> Fleet:
    return fleet(**{"gangs": {}, **changes})


def raised(cloud: Account, nodes: int = 2, candidates: Any = (A, B), **changes: Any) -> Launched:
    return up.up(cloud.aws, spec(**changes), inputs(), candidates, nodes)


def removed(cloud: Account, **changes: Any) -> list[str]:
    return down.down(cloud.aws, spec(**changes), lambda _: None)


def limit_room(cloud: Account, zone: str, over: int = 0) -> None:
    """Limit a zone's room to this number of nodes at once."""
    cloud.capacity.lack(zone, room=over)


def pools(cloud: Account) -> list[dict[str, Any]]:
    """Return the pools of all requests."""
    return [
        override
        for request in cloud.capacity.requests
        for configuration in request["LaunchTemplateConfigs"]
        for override in configuration["Overrides"]
    ]


def zones(launched: Launched) -> list[str]:
    return [instance.zone for instance in launched.instances]


def placed(cloud: Account, aws_region: str = HOME) -> list[str]:
    return [one for one in cloud.holdings() if one == f"placement group {aws_region} {GROUP}"]


def test_gang_nodes_are_in_a_placement_group_that_down_removes(cloud: Account) -> None:
    bare = cloud.holdings()
    raised(cloud)
    assert [pool["Placement"] for pool in pools(cloud)] == [{"GroupName": GROUP}] * 2
    [made] = cloud.client("ec2").describe_placement_groups()["PlacementGroups"]
    assert made["Strategy"] == "cluster"
    assert {"Key": "trialfleet:fleet", "Value": "f"} in made["Tags"]
    raised(cloud, 3)
    assert len(cloud.faults.asked("CreatePlacementGroup")) == 1
    assert removed(cloud) == []
    assert cloud.holdings() == bare


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [({"gangs": None}, A), ({"gangs": {"placement_group": False}}, A), ({}, SMALL)],
)
def test_a_placement_group_is_not_made_if_it_is_unwanted_or_not_possible(
    cloud: Account, changes: dict[str, Any], chosen: Any
) -> None:
    raised(cloud, candidates=[chosen], **changes)
    assert pools(cloud)
    assert not [pool for pool in pools(cloud) if "Placement" in pool]
    assert placed(cloud) == []


def test_a_foreign_placement_group_of_the_name_is_neither_used_nor_removed(cloud: Account) -> None:
    cloud.client("ec2").create_placement_group(GroupName=GROUP, Strategy="cluster")
    with pytest.raises(
        FleetError, match=r"trialfleet-f in eu-west-1 exists already, but does not belong"
    ):
        raised(cloud)
    removed(cloud)
    assert placed(cloud)


def test_deletion_of_a_placement_group_in_use_is_retried(cloud: Account) -> None:
    raised(cloud)
    cloud.faults.refuse("DeletePlacementGroup", "InvalidPlacementGroup.InUse", times=2)
    assert removed(cloud) == []
    assert placed(cloud) == []


def test_a_group_that_is_not_known_everywhere_yet_is_waited_for(cloud: Account) -> None:
    cloud.capacity.lack(code="InvalidPlacementGroup.Unknown", times=4)  # two zones, twice
    assert len(raised(cloud).instances) == 2


def test_a_placement_group_that_cannot_be_removed_is_reported(cloud: Account) -> None:
    raised(cloud)
    cloud.faults.refuse("DeletePlacementGroup", "InvalidPlacementGroup.InUse")
    left = removed(cloud)
    assert f"left: placement group {GROUP} in {HOME}" in left


def test_down_removes_the_placement_group_of_a_fleet_that_had_gangs(cloud: Account) -> None:
    bare = cloud.holdings()
    raised(cloud)
    assert removed(cloud, gangs=None) == []
    assert cloud.holdings() == bare


@pytest.mark.parametrize(
    ("gangs", "tried"),
    [({}, ["permission to make a placement group in eu-west-1"]), (None, [])],
)
def test_the_doctor_checks_that_it_may_make_a_placement_group(
    cloud: Account, gangs: Any, tried: list[str]
) -> None:
    found = permissions.examine(cloud.aws, spec(gangs=gangs, instance_types=["g5.xlarge"]))
    about = [one for one in found if "placement" in one.check]
    assert [one.check for one in about] == tried
    assert all(one.ok for one in about)
    assert placed(cloud) == []


def test_the_doctor_tries_a_launch_from_a_template_with_an_adapter(cloud: Account) -> None:
    gangs = spec(instance_types=["p4d.24xlarge"])
    up.up(cloud.aws, gangs, inputs(), [A], 1)
    [launch] = [one for one in permissions.examine(cloud.aws, gangs) if "launch in" in one.check]
    assert (launch.ok, launch.found) == (True, "granted")


# --- One zone -------------------------------------------------------------------------------------


def test_all_nodes_come_from_the_next_zone_if_the_first_lacks_capacity(cloud: Account) -> None:
    limit_room(cloud, HOME + "a", over=2)
    assert zones(raised(cloud, 3)) == [HOME + "b"] * 3


def test_new_gang_nodes_are_launched_only_in_the_zone_of_living_ones(cloud: Account) -> None:
    limit_room(cloud, HOME + "a", over=1)
    assert zones(raised(cloud, 2)) == [HOME + "b"] * 2
    cloud.capacity.restore()
    launched = raised(cloud, 3, candidates=[A, B])
    assert zones(launched) == [HOME + "b"] * 3


def test_no_node_is_launched_elsewhere_if_the_gangs_zone_lacks_capacity(
    cloud: Account,
) -> None:
    raised(cloud, 2, candidates=[A])
    limit_room(cloud, HOME + "a")
    assert zones(raised(cloud, 3)) == [HOME + "a"] * 2
    launched = raised(cloud, 3, candidates=[B])
    assert zones(launched) == [HOME + "a"] * 2
    (why,) = launched.refusals
    assert str(why) == (
        "p4d.24xlarge spot in eu-west-1b (0.400 USD/h): a gang's nodes must be in one zone, and "
        "the existing ones are in eu-west-1a"
    )


def test_nodes_without_gangs_take_what_each_zone_has(cloud: Account) -> None:
    raised(cloud, 1, candidates=[A], gangs=None)
    limit_room(cloud, HOME + "a")
    assert zones(raised(cloud, 2, gangs=None)) == [HOME + "a", HOME + "b"]


def test_a_gang_that_the_cap_does_not_pay_for_is_not_begun(cloud: Account) -> None:
    with pytest.raises(FleetError, match=r"would exceed the cap of 1.0 USD per hour"):
        raised(cloud, 3, price_cap={"hour": 1})
    assert cloud.instances() == []


# --- EFA ------------------------------------------------------------------------------------------


def test_a_type_with_an_adapter_gets_it_as_its_first_network_interface(cloud: Account) -> None:
    raised(cloud, candidates=[A, SMALL])
    ec2 = cloud.client("ec2")
    templates = {
        one["LaunchTemplateName"]: ec2.describe_launch_template_versions(
            LaunchTemplateId=one["LaunchTemplateId"], Versions=["$Latest"]
        )["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        for one in ec2.describe_launch_templates()["LaunchTemplates"]
    }
    [group] = ec2.describe_security_groups(GroupNames=[GROUP])["SecurityGroups"]
    interface = templates["trialfleet-f-x86_64-efa"]["NetworkInterfaces"]
    assert interface == [
        {
            "DeviceIndex": 0,
            "InterfaceType": "efa",
            "Groups": [group["GroupId"]],
            "DeleteOnTermination": True,
        }
    ]
    assert "SecurityGroupIds" not in templates["trialfleet-f-x86_64-efa"]
    assert "NetworkInterfaces" not in templates["trialfleet-f-x86_64"]
    assert pools(cloud)[0]["SubnetId"] == cloud.subnet(HOME + "a")
    for node in cloud.instances():
        assert node["SubnetId"] == cloud.subnet(HOME + "a")
        assert [one["GroupName"] for one in node["NetworkInterfaces"][0]["Groups"]] == [GROUP]


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [({"gangs": None}, A), ({"gangs": {"efa": False}}, A), ({}, SMALL)],
)
def test_types_without_an_adapter_have_the_usual_template(
    cloud: Account, changes: dict[str, Any], chosen: Any
) -> None:
    raised(cloud, candidates=[chosen], **changes)
    made = cloud.client("ec2").describe_launch_templates()["LaunchTemplates"]
    assert [one["LaunchTemplateName"] for one in made] == ["trialfleet-f-x86_64"]
    assert {pool["SubnetId"] for pool in pools(cloud)} == {cloud.subnet(HOME + "a")}


# --- Killed at any call ---------------------------------------------------------------------------


@contextmanager
def new_scene() -> Iterator[Account]:
    with account() as cloud:
        limit_room(cloud, HOME + "a")
        yield cloud


def raise_both(cloud: Account) -> object:
    there = candidate(AWAY + "b", "p4d.24xlarge", clusters=True, efa=True)
    return raised(cloud, 3, candidates=[A, there, B], **REGIONS)


def remove_both(cloud: Account) -> list[str]:
    return removed(cloud, **REGIONS)


each_call = pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.thorough)])


@each_call
def test_up_killed_after_any_call_and_run_again_makes_each_thing_once(every: int) -> None:
    with new_scene() as cloud:
        bare = cloud.holdings()
        raise_both(cloud)
        whole = cloud.holdings()
    assert sum(one.startswith("placement group") for one in whole) == 2
    for cloud, when in kills(every, new_scene, raise_both):
        raise_both(cloud)
        assert cloud.holdings() == whole, when
        assert remove_both(cloud) == [], when
        assert cloud.holdings() == bare, when


@each_call
def test_down_killed_after_any_call_and_run_again_leaves_nothing(every: int) -> None:
    with new_scene() as cloud:
        bare = cloud.holdings()
    for cloud, when in kills(every, new_scene, remove_both, raise_both):
        assert remove_both(cloud) == [], when
        assert cloud.holdings() == bare, when


def test_the_placement_groups_of_other_fleets_are_not_ours(cloud: Account) -> None:
    raised(cloud, name="g")
    assert placement.groups(cloud.aws, spec(), HOME) == []
    assert placement.groups(cloud.aws, spec(name="g"), HOME) == ["trialfleet-g"]
