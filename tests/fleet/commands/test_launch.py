"""Launch requests: the candidates asked, their order, and the contents of each request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from tests.fleet.mock_aws.moto_account import (
    AWAY,
    HOME,
    IMAGE,
    POLICY,
    TRUST,
    Account,
    candidate,
    fleet,
    inputs,
)
from tests.fleet.mock_aws.moto_faults import Killed
from trialfleet.errors import FleetError
from trialfleet.files import read_json
from trialfleet.infra.fleet.aws import identity, images, launch_template, network, retries
from trialfleet.infra.fleet.choice.candidates import GOOD
from trialfleet.infra.fleet.instances import inventory, launch, request_names
from trialfleet.infra.fleet.instances.fleet_request import (
    HEAVIEST,
    SLOWEST,
    FleetRequest,
    Prepared,
    pool_weights,
)
from trialfleet.infra.fleet.instances.launch import Launched
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate, Instance, Lifecycle

NOON = datetime(2026, 11, 20, 12, 3, tzinfo=UTC)
A, B = candidate(HOME + "a"), candidate(HOME + "b")
LIFECYCLES: tuple[Lifecycle, ...] = ("spot", "on-demand")


def ready(cloud: Account, spec: Fleet) -> Prepared:
    places = network.places(cloud.aws, spec)
    group = network.ensure(cloud.aws, spec, HOME, places[HOME].vpc)
    image = images.find(cloud.aws, spec, HOME, "x86_64")
    profile = identity.ensure(cloud.aws, spec, POLICY, TRUST)
    wanted = launch_template.definition(spec, image, group, profile, "")
    return Prepared(
        places=places,
        templates={
            (HOME, "x86_64"): launch_template.ensure(cloud.aws, spec, HOME, "x86_64", wanted)
        },
    )


def ask(
    cloud: Account,
    candidates: Sequence[Candidate],
    count: int = 1,
    *,
    messages: list[str] | None = None,
    now: datetime = NOON,
    least: int = 1,
    unlisted: Sequence[Instance] = (),
    **changes: Any,
) -> Launched:
    spec = fleet(**changes)
    lines: list[str] = [] if messages is None else messages
    return launch.launch(
        cloud.aws,
        spec,
        ready(cloud, spec),
        candidates,
        count,
        "r1",
        lines.append,
        now=now,
        least=least,
        unlisted=unlisted,
    )


def overrides(request: dict[str, Any]) -> list[dict[str, Any]]:
    [configuration] = request["LaunchTemplateConfigs"]
    return list(configuration["Overrides"])


def zones(launched: Launched) -> list[str]:
    return [instance.zone for instance in launched.instances]


def test_the_first_candidate_gives_all_nodes(cloud: Account) -> None:
    launched = ask(cloud, [A, B], 3)
    assert zones(launched) == [HOME + "a"] * 3
    assert launched.refusals == []
    assert len(cloud.instances()) == 3


def test_a_node_knows_its_fleet_run_price_lease_and_request(cloud: Account) -> None:
    ask(cloud, [A], lease_minutes=60, tags={"team": "ads"}, spot={"ceiling": 0.5})
    [found] = inventory.instances(cloud.aws, fleet())
    assert (found.run, found.price, found.type, found.lifecycle) == ("r1", 0.4, "g5.xlarge", "spot")
    assert found.expires == datetime(2026, 11, 20, 13, 10, tzinfo=UTC)
    assert found.tags["team"] == "ads"
    assert found.tags["Name"] == "trialfleet-f"
    [raw] = cloud.instances()
    assert raw["ClientToken"] == found.launch
    assert raw["IamInstanceProfile"]["Arn"].endswith("/trialfleet-f")
    assert raw["SubnetId"] == cloud.subnet(HOME + "a")
    [disk] = cloud.client("ec2").describe_volumes(
        Filters=[{"Name": "tag:trialfleet:fleet", "Values": ["f"]}]
    )["Volumes"]
    assert (disk["Encrypted"], disk["VolumeType"], disk["Size"]) == (True, "gp3", 100)


def test_spot_is_taken_by_price_and_capacity_and_on_demand_by_price(cloud: Account) -> None:
    both = [A, candidate(HOME + "b", price=1, lifecycle="on-demand")]
    ask(cloud, both, 2, spot={"share": 0.5, "ceiling": 0.5})
    spot, on_demand = cloud.capacity.requests
    assert spot["SpotOptions"] == {
        "AllocationStrategy": "price-capacity-optimized",
        "InstanceInterruptionBehavior": "terminate",
    }
    assert on_demand["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
    assert spot["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot"
    assert on_demand["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "on-demand"
    [pool] = overrides(spot)
    assert float(pool["MaxPrice"]) == 0.5 / SLOWEST  # of a unit of capacity
    assert "MaxPrice" not in overrides(on_demand)[0]


def test_one_request_names_every_pool_of_a_region(cloud: Account) -> None:
    others = [replace(A, zone=HOME + zone, price=0.4 + n / 100) for n, zone in enumerate("abc")]
    ask(cloud, others, 3)
    [request] = cloud.capacity.requests
    assert [pool["SubnetId"] for pool in overrides(request)] == [
        cloud.subnet(one.zone) for one in others
    ]


@pytest.mark.parametrize("code", sorted({*launch.UNAVAILABLE} - {launch.TWICE}))
def test_another_pool_of_the_request_replaces_one_without_capacity(
    cloud: Account, code: str
) -> None:
    cloud.capacity.lack(HOME + "a", code=code)
    messages: list[str] = []
    launched = ask(cloud, [A, candidate(HOME + "a", "g6.xlarge"), B], 2, messages=messages)
    assert zones(launched) == [HOME + "b"] * 2
    assert len(cloud.capacity.requests) == 1
    assert [str(refusal) for refusal in launched.refusals] == messages[1:]
    assert messages[0].startswith("g5.xlarge spot in eu-west-1b (0.400 USD/h): launched i-")
    assert messages[1] == (
        f"g5.xlarge spot in eu-west-1a (0.400 USD/h): {launch.UNAVAILABLE[code]} "
        f"({code}: said the test)"
    )


def test_zones_with_the_same_refusal_are_reported_in_one_line(cloud: Account) -> None:
    cloud.capacity.lack()
    messages: list[str] = []
    ask(cloud, [A, replace(B, price=0.42)], messages=messages)
    [message] = messages
    assert message == (
        "g5.xlarge spot in eu-west-1a, eu-west-1b (0.400 to 0.420 USD/h): no capacity "
        "(InsufficientInstanceCapacity: said the test)"
    )


def test_nodes_that_one_pool_lacks_come_from_the_next_pool(cloud: Account) -> None:
    cloud.capacity.lack(HOME + "a", room=1)
    assert zones(ask(cloud, [A, B], 3)) == [HOME + "a", HOME + "b", HOME + "b"]


def test_a_region_without_room_leaves_the_rest_to_another(cloud: Account) -> None:
    away = candidate(AWAY + "a")
    cloud.capacity.lack(HOME + "a", room=1)
    spec = fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})
    made = up.prepare(cloud.aws, spec, inputs(), [A, away])
    launched = launch.launch(cloud.aws, spec, made, [A, away], 3, "r1", print, now=NOON)
    assert zones(launched) == [HOME + "a", AWAY + "a", AWAY + "a"]
    assert len(cloud.capacity.requests) == 2


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "VcpuLimitExceeded", "OptInRequired"])
def test_a_region_that_refuses_lastingly_leaves_the_nodes_to_another(
    cloud: Account, code: str
) -> None:
    cloud.faults.refuse("CreateFleet", code, aws_region=HOME)
    launched, messages = ask_two_regions(cloud)
    assert zones(launched) == [AWAY + "a"] * 3
    [refusal] = launched.refusals
    assert "g5.xlarge spot in eu-west-1a (0.400 USD/h): " in str(refusal)
    assert "said the test" in str(refusal)
    assert str(refusal) in messages


def test_a_region_whose_resources_cannot_be_made_leaves_the_nodes_to_another(
    cloud: Account,
) -> None:
    cloud.faults.refuse("CreateSecurityGroup", "UnauthorizedOperation", aws_region=HOME)
    launched, _ = ask_two_regions(cloud)
    assert zones(launched) == [AWAY + "a"] * 3
    assert "the security group trialfleet-f in eu-west-1: the perm" in str(launched.refusals[0])


def test_a_region_without_subnets_leaves_the_nodes_to_another(cloud: Account) -> None:
    for zone in "abc":
        cloud.client("ec2").delete_subnet(SubnetId=cloud.subnet(HOME + zone))
    launched, _ = ask_two_regions(cloud)
    assert zones(launched) == [AWAY + "a"] * 3
    assert launched.refusals[0].reason.startswith("eu-west-1 has no default VPC with subnets: ")
    spec = two_regions()
    got = up.up(cloud.aws, spec, inputs(), [A, candidate(AWAY + "a")], 4)
    assert len(got.instances) == 4


def test_a_region_that_lists_no_subnets_is_not_taken_for_one_without(cloud: Account) -> None:
    cloud.faults.refuse("DescribeSubnets", "UnauthorizedOperation", aws_region=HOME)
    launched, _ = ask_two_regions(cloud)
    assert zones(launched) == [AWAY + "a"] * 3
    assert "the permission to call DescribeSubnets is denied" in launched.refusals[0].reason


def test_no_second_region_is_asked_while_the_first_may_have_started_nodes(cloud: Account) -> None:
    cloud.faults.refuse("CreateFleet", "InternalError", aws_region=HOME)
    with pytest.raises(FleetError, match="InternalError"):
        ask_two_regions(cloud)
    assert cloud.instances() == []
    assert inventory.instances(cloud.aws, two_regions()) == []


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "VcpuLimitExceeded"])
def test_a_lasting_refusal_of_spot_leaves_on_demand_its_share(cloud: Account, code: str) -> None:
    both = [A, candidate(HOME + "b", price=1, lifecycle="on-demand")]
    cloud.faults.refuse(
        "CreateFleet",
        code,
        when=lambda body: body["TargetCapacitySpecification.DefaultTargetCapacityType"] == "spot",
    )
    launched = ask(cloud, both, 2, spot={"share": 0.5})
    assert zones(launched) == [HOME + "b"]
    assert "said the test" in str(launched.refusals[0])


def two_regions() -> Fleet:
    return fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})


def ask_two_regions(cloud: Account) -> tuple[Launched, list[str]]:
    """Ask for three nodes, best in `HOME`, as the autoscaler does."""
    spec, pools, messages = two_regions(), [A, candidate(AWAY + "a")], list[str]()
    made = up.prepare(cloud.aws, spec, inputs(), pools, everywhere=False)
    launched = launch.launch(cloud.aws, spec, made, pools, 3, "r1", messages.append, now=NOON)
    return launched, messages


def test_a_zone_without_a_subnet_is_skipped(cloud: Account) -> None:
    subnet = cloud.subnet(HOME + "b")
    assert zones(ask(cloud, [A, B], subnets=[subnet])) == [HOME + "b"]
    launched = ask(cloud, [A], subnets=[subnet])
    assert launched.refusals[0].reason == "no subnet in this zone"


# --- Weights --------------------------------------------------------------------------------------


def test_a_pools_weight_is_the_expected_work_of_its_nodes() -> None:
    fast, shaky = replace(A, speed=600), replace(B, speed=600, efficiency=0.5)
    assert pool_weights([fast, shaky]) == {fast: 2 * SLOWEST, shaky: SLOWEST}
    assert (
        pool_weights([replace(A, speed=1), replace(B, speed=1e6)])[replace(B, speed=1e6)]
        == HEAVIEST
    )


@pytest.mark.parametrize(("speed", "requests"), [(1.0, 1), (1.5, 2), (2.0, 3)])
def test_a_request_for_faster_nodes_gives_exactly_the_wanted_number(
    cloud: Account, speed: float, requests: int
) -> None:
    fast = replace(A, speed=speed, price=0.4 * speed)
    launched = ask(cloud, [fast, replace(B, zone=HOME + "c")], 4)
    assert zones(launched) == [HOME + "a"] * 4
    assert len(cloud.capacity.requests) == requests


def test_expensive_pools_are_requested_only_if_the_others_lack_capacity(
    cloud: Account,
) -> None:
    dear = replace(B, price=GOOD * 0.4 + 0.01)
    assert zones(ask(cloud, [A, dear], 2)) == [HOME + "a"] * 2
    cloud.capacity.lack(HOME + "a")
    assert zones(ask(cloud, [A, dear], 2)) == [HOME + "b"] * 2
    assert [len(overrides(one)) for one in cloud.capacity.requests] == [1, 1, 1]


def test_a_node_is_tagged_with_the_price_of_its_own_pool(cloud: Account) -> None:
    dear = replace(B, price=0.45)
    cloud.capacity.lack(HOME + "a", room=1)
    ask(cloud, [A, dear], 2)
    found = inventory.instances(cloud.aws, fleet())
    assert {one.zone: one.price for one in found} == {HOME + "a": 0.4, HOME + "b": 0.45}


def test_a_node_whose_price_cannot_be_tagged_has_the_highest_pool_price(cloud: Account) -> None:
    cloud.faults.refuse("CreateTags", "UnauthorizedOperation", status=403)
    messages: list[str] = []
    launched = ask(cloud, [A, replace(B, price=0.45)], messages=messages)
    assert len(launched.instances) == 1
    assert "CreateTags" in messages[1]
    assert [one.price for one in inventory.instances(cloud.aws, fleet())] == [0.45]


# --- When AWS does not answer as it should --------------------------------------------------------


def test_throttling_is_survived(cloud: Account) -> None:
    cloud.faults.throttle("CreateFleet", 3)
    assert len(ask(cloud, [A]).instances) == 1
    assert len(cloud.instances()) == 1
    assert len(cloud.pauses) == 3


def test_a_request_is_retried_after_an_internal_error_of_aws(cloud: Account) -> None:
    cloud.faults.answer("CreateFleet", ("InternalError", 500), ("Unavailable", 503))
    assert zones(ask(cloud, [A, B])) == [HOME + "a"]
    assert len(cloud.pauses) == 2


@pytest.mark.parametrize("code", sorted(launch.JUST_MADE))
def test_a_resource_that_was_just_made_is_waited_for(cloud: Account, code: str) -> None:
    cloud.faults.refuse("CreateFleet", code, times=2)
    assert zones(ask(cloud, [A, B])) == [HOME + "a"]
    assert cloud.pauses == [2, 4]


def test_endless_throttling_is_reported(cloud: Account) -> None:
    cloud.faults.throttle("CreateFleet", 1_000)
    with pytest.raises(FleetError, match="RequestLimitExceeded"):
        ask(cloud, [A])


def test_a_denied_permission_ends_the_launch_and_is_named(cloud: Account) -> None:
    reason = "You are not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:…"
    cloud.faults.refuse("CreateFleet", "UnauthorizedOperation", reason, status=403)
    with pytest.raises(FleetError, match=r"1 x g5.xlarge spot .*permission ec2:RunInstances is"):
        ask(cloud, [A, B])
    assert cloud.faults.calls.count("ec2:CreateFleet") == 1


def test_a_fresh_instance_profile_is_waited_for(cloud: Account) -> None:
    reason = "Value (trialfleet-f) for parameter iamInstanceProfile.name is invalid. "
    reason += "Invalid IAM Instance Profile name"
    cloud.faults.refuse("CreateFleet", "InvalidParameterValue", reason, times=9)
    assert len(ask(cloud, [A]).instances) == 1
    assert sum(cloud.pauses) > 60  # IAM may take a minute to inform EC2


def test_all_requests_of_a_launch_wait_together_for_what_was_just_made(cloud: Account) -> None:
    cloud.faults.refuse("CreateFleet", "InvalidLaunchTemplateId.NotFound")
    with pytest.raises(FleetError, match="InvalidLaunchTemplateId"):
        ask_two_regions(cloud)
    assert cloud.pauses == [*retries.LATER], "for the first region"


def test_a_new_instance_profile_is_awaited_although_a_pool_lacks_capacity(cloud: Account) -> None:
    reason = "Invalid IAM Instance Profile name"
    cloud.capacity.lack(HOME + "a", code="InvalidParameterValue", message=reason, times=1)
    cloud.capacity.lack(HOME + "b")
    assert zones(ask(cloud, [A, B])) == [HOME + "a"]


def test_another_invalid_value_is_not_waited_for(cloud: Account) -> None:
    cloud.faults.refuse("CreateFleet", "InvalidParameterValue", "Invalid disk size")
    with pytest.raises(FleetError, match="Invalid disk size"):
        ask(cloud, [A])
    assert cloud.pauses == []


@pytest.mark.parametrize(
    ("share", "count", "spot"), [(1, 3, 3), (0, 3, 0), (0.5, 3, 2), (0.34, 3, 2), (0.33, 3, 1)]
)
def test_the_share_of_spot_is_kept(cloud: Account, share: float, count: int, spot: int) -> None:
    on_demand = candidate(HOME + "b", price=1, lifecycle="on-demand")
    launched = ask(cloud, [A, on_demand], count, spot={"share": share})
    assert sum(i.lifecycle == "spot" for i in launched.instances) == spot
    assert len(launched.instances) == count


def test_the_share_of_spot_counts_the_nodes_that_live_already(cloud: Account) -> None:
    both = [A, candidate(HOME + "b", price=1, lifecycle="on-demand")]
    assert zones(ask(cloud, both, 1, spot={"share": 0.5})) == [HOME + "a"]
    assert zones(ask(cloud, both, 1, spot={"share": 0.5})) == [HOME + "b"]


def test_on_demand_does_not_replace_missing_spot_capacity(cloud: Account) -> None:
    cloud.capacity.lack(lifecycle="spot")
    launched = ask(cloud, [A, candidate(HOME + "b", price=1, lifecycle="on-demand")])
    assert launched.instances == []


def test_the_cap_per_hour_is_kept(cloud: Account) -> None:
    slow = replace(B, price=0.1, speed=0.25)
    launched = ask(cloud, [A, slow], 9, price_cap={"hour": 1.0})
    assert zones(launched) == [HOME + "a"] * 2 + [HOME + "b"] * 2
    assert [refusal.reason for refusal in launched.refusals] == [
        "would exceed the cap of 1.0 USD per hour"
    ]
    assert ask(cloud, [A], 1, price_cap={"hour": 1.0}).instances == []
    assert len(cloud.instances()) == 4


def ask_without_answer(cloud: Account, candidates: Sequence[Candidate], **changes: Any) -> None:
    """Ask while nobody can tell whether AWS made something: as after a crash."""
    cloud.faults.refuse("CreateFleet", "InternalError", times=1)
    with pytest.raises(FleetError, match="InternalError"):
        ask(cloud, candidates, **changes)


def test_only_a_repeated_request_in_the_same_window_has_the_same_name(cloud: Account) -> None:
    ask_without_answer(cloud, [A])
    ask_without_answer(cloud, [A], now=NOON + timedelta(minutes=6))
    ask_without_answer(cloud, [B])
    ask_without_answer(cloud, [A], now=NOON + timedelta(minutes=8))
    names = [body["ClientToken"] for body in cloud.faults.asked("CreateFleet")]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {64}  # EC2's limit


def test_a_request_whose_parts_have_changed_meanwhile_has_another_name(cloud: Account) -> None:
    ask_without_answer(cloud, [A])
    ask_without_answer(cloud, [candidate(HOME + "a", price=0.41)])
    cloud.faults.refuse("CreateFleet", "InsufficientInstanceCapacity")
    spec, (region, at) = fleet(), (HOME, NOON)
    made = ready(cloud, spec)
    other = launch_template.definition(
        spec, images.find(cloud.aws, spec, region, "x86_64"), "sg", "trialfleet-f", "IyE="
    )
    changed = {(HOME, "x86_64"): launch_template.ensure(cloud.aws, spec, region, "x86_64", other)}
    for run, prepared in (("r1", replace(made, templates=changed)), ("r2", made)):
        launch.launch(cloud.aws, spec, prepared, [A], 1, run, print, now=at)
    names = [body["ClientToken"] for body in cloud.faults.asked("CreateFleet")]
    assert len(set(names)) == 4


def test_a_request_asked_again_is_the_same_in_all_its_parts(cloud: Account) -> None:
    ask_without_answer(cloud, [A])
    ask_without_answer(cloud, [A], now=NOON + timedelta(minutes=6))
    first, second = cloud.faults.asked("CreateFleet")
    assert first == second


def test_the_request_after_the_end_of_a_node_is_a_new_request(cloud: Account) -> None:
    first = ask(cloud, [A]).instances[0]
    cloud.client("ec2").terminate_instances(InstanceIds=[first.id])
    second = ask(cloud, [A]).instances[0]
    assert second.launch != first.launch


def test_an_earlier_request_that_aws_lists_late_is_found_and_not_made_twice(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(cloud, [A]).instances[0]
    late = 2  # looks that AWS answers without it: one before the request, one after
    listed = inventory.instances

    def instances(*args: Any, **more: Any) -> list[Instance]:
        nonlocal late
        late -= 1
        return [] if late >= 0 else listed(*args, **more)

    monkeypatch.setattr(inventory, "instances", instances)
    cloud.faults.refuse("CreateFleet", launch.TWICE)
    assert [i.id for i in ask(cloud, [A]).instances] == [first.id]


def test_an_earlier_request_that_aws_lists_gradually_gets_no_more_nodes(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(cloud, [A], 3).instances
    listed, looks = (
        inventory.instances,
        iter([0, 1, 1]),
    )  # nodes listed before the request, and after

    def instances(*args: Any, **more: Any) -> list[Instance]:
        return listed(*args, **more)[: next(looks, 3)]

    monkeypatch.setattr(inventory, "instances", instances)
    cloud.faults.refuse("CreateFleet", launch.TWICE, times=1)
    assert {i.id for i in ask(cloud, [A], 3).instances} == {i.id for i in first}
    assert len(cloud.instances()) == 3


def test_an_earlier_request_that_made_nothing_is_a_refusal(cloud: Account) -> None:
    cloud.faults.refuse("CreateFleet", launch.TWICE, times=1)
    launched = ask(cloud, [A, B])
    assert launched.instances == []
    assert launched.refusals[0].is_temporary


def test_the_request_after_a_lack_of_capacity_is_a_new_request(
    cloud: Account,
) -> None:
    cloud.capacity.lack(times=2)
    assert ask(cloud, [A]).instances == []
    assert ask(cloud, [A]).instances == []
    assert zones(ask(cloud, [A])) == [HOME + "a"]
    assert len(cloud.capacity.requests) == 3


def test_a_request_is_repeated_unchanged_if_its_refusal_was_not_recorded(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.capacity.lack(times=1)
    with monkeypatch.context() as killing:
        killing.setattr(request_names, "note_refused", mock.Mock(side_effect=Killed))
        with pytest.raises(Killed):
            ask(cloud, [A])
    assert ask(cloud, [A]).instances == []  # AWS answers the same to the same request
    assert len(cloud.capacity.requests) == 1
    assert zones(ask(cloud, [A])) == [HOME + "a"]


def test_requests_of_previous_windows_are_forgotten(cloud: Account) -> None:
    cloud.capacity.lack()
    for minutes in range(0, 40, 10):
        ask(cloud, [A, B], now=NOON + timedelta(minutes=minutes))
    assert len(read_json(request_names.refused_file("f"))["names"]) == 1


def test_nodes_are_requested_even_if_refusals_cannot_be_recorded(cloud: Account) -> None:
    folder = request_names.refused_file("f").parent
    folder.parent.mkdir(parents=True)
    folder.write_text("which is a file")
    cloud.capacity.lack(times=1)
    assert ask(cloud, [A]).instances == []
    assert zones(ask(cloud, [B])) == [HOME + "b"]


def test_a_repeated_request_returns_the_nodes_of_the_first_one(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = inventory.instances
    monkeypatch.setattr(inventory, "instances", lambda *_, **__: [])  # AWS lists them later
    first = ask(cloud, [A, B], 2)
    assert [one.id for one in ask(cloud, [A, B], 2).instances] == [
        one.id for one in first.instances
    ]
    assert len(listed(cloud.aws, fleet())) == 2


# --- Gangs ----------------------------------------------------------------------------------------


def test_a_gang_is_launched_completely_in_one_zone(cloud: Account) -> None:
    cloud.capacity.lack(HOME + "a", room=1)
    assert zones(ask(cloud, [A, B], 3, least=3, gangs={"placement_group": False})) == (
        [HOME + "b"] * 3
    )
    [request] = cloud.capacity.requests
    assert request["SpotOptions"]["MinTargetCapacity"] == 3
    assert request["SpotOptions"]["SingleAvailabilityZone"] is True


def test_a_gang_for_which_no_zone_has_room_gets_no_node(cloud: Account) -> None:
    cloud.capacity.lack(room=2)
    launched = ask(cloud, [A, B], 3, least=3, gangs={"placement_group": False})
    assert (launched.instances, cloud.instances()) == ([], [])
    assert all(one.is_temporary for one in launched.refusals)


@pytest.mark.parametrize(
    ("share", "base", "gangs", "spot", "on_demand"),
    [(0.5, 0, 1, 4, 0), (0.2, 0, 1, 0, 4), (0.5, 0, 2, 4, 4), (1, 2, 2, 8, 0), (1, 3, 2, 4, 4)],
)
def test_a_gang_of_a_mixed_fleet_is_either_spot_or_on_demand(
    cloud: Account, share: float, base: int, gangs: int, spot: int, on_demand: int
) -> None:
    both = [A, replace(A, lifecycle="on-demand", price=1)]
    mixed: dict[str, Any] = {"gangs": {"placement_group": False}}
    mixed["spot"] = {"share": share, "base": base}
    launched = ask(cloud, both, 4 * gangs, least=4, **mixed)
    kinds = [one.lifecycle for one in launched.instances]
    assert (kinds.count("spot"), kinds.count("on-demand")) == (spot, on_demand)
    for request in cloud.capacity.requests:
        options = request["SpotOptions"] or request["OnDemandOptions"]
        assert int(options["MinTargetCapacity"]) == 4


def test_on_demand_does_not_complete_a_gang_that_spot_has_only_in_part(
    cloud: Account,
) -> None:
    both = [A, replace(A, lifecycle="on-demand", price=1)]
    cloud.capacity.lack(lifecycle="spot", room=3)
    gangs = {"placement_group": False}
    assert ask(cloud, both, 4, least=4, spot={"share": 0.5}, gangs=gangs).instances == []
    launched = ask(cloud, both, 8, least=4, spot={"share": 0.5}, gangs=gangs)
    assert [one.lifecycle for one in launched.instances] == ["on-demand"] * 4


def test_a_gang_is_of_one_type(cloud: Account) -> None:
    other = candidate(HOME + "a", "g6.xlarge", price=0.41)
    cloud.capacity.lack(kind="g5.xlarge", room=1)
    launched = ask(cloud, [A, other], 2, least=2, gangs={"placement_group": False})
    assert [one.type for one in launched.instances] == ["g6.xlarge"] * 2


def test_no_nodes_are_requested_if_none_are_wanted(cloud: Account) -> None:
    assert ask(cloud, [A], 0) == Launched()
    assert "ec2:CreateFleet" not in cloud.faults.calls


def test_a_gang_with_fewer_nodes_than_wanted_is_also_in_one_zone(cloud: Account) -> None:
    other = candidate(HOME + "b", "g6.xlarge", price=0.41)
    cloud.capacity.lack(HOME + "a", room=2)
    cloud.capacity.lack(HOME + "b", kind="g5.xlarge")
    launched = ask(cloud, [A, B, other], 4, least=2, gangs={"placement_group": False})
    assert zones(launched) == [HOME + "a"] * 2


def test_a_share_without_a_pool_is_reported(cloud: Account) -> None:
    on_demand = candidate(HOME + "b", price=1, lifecycle="on-demand")
    launched = ask(cloud, [on_demand], 2, spot={"base": 1, "ceiling": 0.1})
    assert zones(launched) == [HOME + "b"]
    [refusal] = launched.refusals
    assert str(refusal) == "spot: no instance type is left for 1 node: see `trialfleet fleet plan`"


def test_nodes_that_came_are_reported_although_a_later_request_fails(cloud: Account) -> None:
    both = [A, candidate(HOME + "b", price=1, lifecycle="on-demand")]
    cloud.capacity.lack(lifecycle="on-demand", code="InvalidParameterCombination")
    launched = ask(cloud, both, 2, spot={"share": 0.5})
    assert zones(launched) == [HOME + "a"]
    [refusal] = launched.refusals
    assert "InvalidParameterCombination" in str(refusal)


def test_an_impossible_pool_does_not_prevent_requests_for_others(cloud: Account) -> None:
    cloud.capacity.lack(HOME + "a", code="InvalidParameterCombination")
    cloud.capacity.lack(HOME + "b")
    launched = ask(cloud, [A, B, replace(A, zone=HOME + "c", price=9)])
    assert zones(launched) == [HOME + "c"]


def test_throttling_in_an_answer_is_a_temporary_refusal(cloud: Account) -> None:
    cloud.capacity.lack(code="RequestLimitExceeded")
    launched = ask(cloud, [A, B])
    assert launched.instances == []
    assert all(one.is_temporary for one in launched.refusals)


def test_an_answer_without_nodes_and_reasons_is_reported_as_such(cloud: Account) -> None:
    cloud.capacity.lack(silent=True)
    [refusal] = ask(cloud, [A, B]).refusals
    assert refusal.reason == "AWS launched no node, and gave no reason"
    assert refusal.is_temporary


def test_missing_nodes_are_requested_again_without_the_pools_that_refused(
    cloud: Account,
) -> None:
    dear = candidate(HOME + "c", price=9.0)
    fast = replace(B, speed=4.0, price=1.7)
    cloud.capacity.lack(HOME + "a")
    assert zones(ask(cloud, [A, fast, dear], 4)) == [HOME + "b"] * 4


def test_the_price_ceiling_of_a_unit_is_above_awss_minimum(cloud: Account) -> None:
    slow, fast = replace(A, price=0.003), replace(B, price=0.018, speed=8.0)
    ask(cloud, [slow, fast], 2, spot={"ceiling": 0.02})
    pools = [one for request in cloud.capacity.requests for one in overrides(request)]
    for one in pools:
        assert float(one["MaxPrice"]) > 0.001
        assert float(one["MaxPrice"]) * int(one["WeightedCapacity"]) <= 0.0201


def test_a_refusal_names_every_type_that_the_cap_is_too_low_for(cloud: Account) -> None:
    other = candidate(HOME + "b", "g6.xlarge", price=0.5)
    refusals = ask(cloud, [A, other], price_cap={"hour": 0.3}).refusals
    assert [one.pools.split()[0] for one in refusals] == ["g5.xlarge", "g6.xlarge"]


def test_nodes_that_aws_does_not_list_yet_count(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = ask(cloud, [A]).instances
    monkeypatch.setattr(inventory, "instances", lambda *_, **__: [])
    capped = ask(cloud, [A], unlisted=fresh, price_cap={"hour": 0.7})
    assert capped.instances == []
    gangs = {"placement_group": False}
    assert ask(cloud, [B], unlisted=fresh, gangs=gangs).instances == []


def test_an_answer_that_names_no_pool_is_understood() -> None:
    request = FleetRequest(name="n", pools=[A, B], count=1, least=1, expires="", run="")
    made = {"InstanceIds": ["i-1"], "InstanceType": "g5.xlarge", "AvailabilityZone": HOME + "b"}
    failed = {"ErrorCode": "UnfulfillableCapacity", "ErrorMessage": "none"}
    subnets = {HOME + "a": "subnet-a", HOME + "b": "subnet-b"}
    prepared = Prepared(places={HOME: network.RegionNetwork(vpc="", subnets=subnets)}, templates={})
    answer = request.parse_answer({"Instances": [made], "Errors": [failed]}, prepared)
    assert answer.made == {"i-1": B}
    assert answer.failures[0].pool is None


# --- What is given, whatever the pools ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_no_more_nodes_come_than_are_wanted_and_paid_for(cloud: Account, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    gangs: dict[str, Any] = {"gangs": {"placement_group": False}} if chance.random() < 0.5 else {}
    kinds = {"g4dn.xlarge": 1.0, "g5.xlarge": 2.0, "g6.xlarge": 1.5, "p5.48xlarge": 130.0}
    pools = [
        replace(
            candidate(HOME + zone, kind, lifecycle=lifecycle),
            speed=speed * 300,
            price=round(speed * chance.uniform(0.2, 1.2), 4),
            efficiency=chance.uniform(0.2, 1.0),
        )
        for kind, speed in kinds.items()
        for zone in "abc"
        for lifecycle in LIFECYCLES
        if chance.random() < 0.7
    ]
    pools.sort(key=lambda one: one.cost)
    for one in chance.sample(pools, len(pools) // 2):
        cloud.capacity.lack(one.zone, one.type.name, one.lifecycle, room=chance.randrange(4))
    cap = chance.choice([None, chance.uniform(0.5, 5), chance.uniform(5, 200)])
    count, share, base = chance.randint(1, 12), chance.choice([0, 0.5, 1]), chance.randrange(3)
    least = chance.randint(1, count) if gangs else 1
    messages: list[str] = []
    launched = ask(
        cloud,
        pools,
        count,
        messages=messages,
        least=least,
        price_cap={"hour": cap},
        spot={"share": share, "base": base},
        **gangs,
    )
    listed = inventory.instances(cloud.aws, fleet())
    assert {one.id for one in listed} == {one.id for one in launched.instances}
    assert len(listed) <= count
    assert cap is None or sum(one.price or 0.0 for one in listed) <= cap + 1e-6
    prices = {one.pool: one.price for one in pools}
    assert all(one.price == pytest.approx(prices[one.pool], abs=1e-6) for one in listed)
    if gangs:
        assert len({one.zone for one in listed}) <= 1
    assert len(listed) == count or launched.refusals, "nobody says why there are fewer"
    assert all("None" not in one.reason for one in launched.refusals)
