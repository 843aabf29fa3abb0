"""Which candidates are asked, in what order, with what request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import (
    HOME,
    POLICY,
    TRUST,
    Account,
    candidate,
    fleet,
)
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import identity, images, launch_template, network
from trialfleet.infra.fleet.instances import inventory, launch
from trialfleet.infra.fleet.instances.launch import Launched, Prepared
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate, Instance

NOON = datetime(2026, 11, 20, 12, 3, tzinfo=UTC)
A, B = candidate(HOME + "a"), candidate(HOME + "b")


def ready(cloud: Account, spec: Fleet) -> Prepared:
    places = network.places(cloud.aws, spec)
    group = network.ensure(cloud.aws, spec, HOME, places[HOME].vpc)
    image = images.find(cloud.aws, spec, HOME, "x86_64")
    wanted = launch_template.definition(spec, image, group, "#!/bin/true")
    return Prepared(
        profile=identity.ensure(cloud.aws, spec, POLICY, TRUST),
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
    **changes: Any,
) -> Launched:
    spec = fleet(**changes)
    lines: list[str] = [] if messages is None else messages
    return launch.launch(
        cloud.aws, spec, ready(cloud, spec), candidates, count, "r1", lines.append, now=now
    )


def no_capacity(cloud: Account, zone: str, code: str = "InsufficientInstanceCapacity") -> None:
    subnet = cloud.subnet(zone)
    cloud.faults.refuse("RunInstances", code, when=lambda body: body["SubnetId"] == subnet)


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


@pytest.mark.parametrize(
    ("lifecycle", "options"),
    [
        (
            "spot",
            {
                "InstanceMarketOptions.MarketType": "spot",
                "InstanceMarketOptions.SpotOptions.MaxPrice": "0.500000",
                "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
                "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
            },
        ),
        ("on-demand", {}),
    ],
)
def test_the_market_is_asked_for_explicitly(
    cloud: Account, lifecycle: Any, options: dict[str, str]
) -> None:
    share = 1 if lifecycle == "spot" else 0
    ask(cloud, [candidate(lifecycle=lifecycle)], spot={"share": share, "ceiling": 0.5})
    [body] = cloud.faults.asked("RunInstances")
    assert {key: body[key] for key in body if "Market" in key} == options


@pytest.mark.parametrize("code", sorted({*launch.UNAVAILABLE} - {launch.TWICE}))
def test_where_one_candidate_has_none_the_next_is_asked(cloud: Account, code: str) -> None:
    no_capacity(cloud, HOME + "a", code)
    messages: list[str] = []
    launched = ask(cloud, [A, candidate(HOME + "a", "g6.xlarge"), B], 2, messages=messages)
    assert zones(launched) == [HOME + "b"] * 2
    assert [str(refusal) for refusal in launched.refusals] == messages[:2]
    assert messages[0] == (
        f"g5.xlarge spot in eu-west-1a (0.400 USD/h): {launch.UNAVAILABLE[code]} "
        f"({code}: said the test)"
    )
    assert messages[2].startswith("g5.xlarge spot in eu-west-1b (0.400 USD/h): launched i-")


def test_a_candidate_that_runs_dry_is_left_for_the_next(cloud: Account) -> None:
    given: list[str] = []
    subnet = cloud.subnet(HOME + "a")

    def dry(body: dict[str, str]) -> bool:
        given.append(body["SubnetId"])
        return given.count(subnet) > 1 and body["SubnetId"] == subnet

    cloud.faults.refuse("RunInstances", "InsufficientInstanceCapacity", when=dry)
    assert zones(ask(cloud, [A, B], 3)) == [HOME + "a", HOME + "b", HOME + "b"]


def test_a_zone_without_a_subnet_is_passed_over(cloud: Account) -> None:
    launched = ask(cloud, [A, B], subnets=[cloud.subnet(HOME + "b")])
    assert zones(launched) == [HOME + "b"]
    assert launched.refusals[0].reason == "no subnet in this zone"


def test_throttling_is_survived(cloud: Account) -> None:
    cloud.faults.throttle("RunInstances", 3)
    assert len(ask(cloud, [A]).instances) == 1
    assert len(cloud.instances()) == 1
    assert len(cloud.pauses) == 3


def test_a_lack_of_capacity_is_told_at_once_though_aws_calls_it_a_fault_of_its_own(
    cloud: Account,
) -> None:
    cloud.faults.answer("RunInstances", ("InsufficientInstanceCapacity", 500))
    assert zones(ask(cloud, [A, B])) == [HOME + "b"]
    assert cloud.pauses == []


def test_a_fault_of_awss_own_is_asked_about_again(cloud: Account) -> None:
    cloud.faults.answer("RunInstances", ("InternalError", 500), ("Unavailable", 503))
    assert zones(ask(cloud, [A, B])) == [HOME + "a"]
    assert len(cloud.pauses) == 2


@pytest.mark.parametrize("code", sorted(launch.JUST_MADE))
def test_what_was_just_made_is_waited_for(cloud: Account, code: str) -> None:
    cloud.faults.refuse("RunInstances", code, times=2)
    assert zones(ask(cloud, [A, B])) == [HOME + "a"]
    assert cloud.pauses == [2, 4]


def test_throttling_without_end_is_told(cloud: Account) -> None:
    cloud.faults.throttle("RunInstances", 1_000)
    with pytest.raises(FleetError, match="RequestLimitExceeded"):
        ask(cloud, [A])


def test_a_denied_permission_ends_it_and_is_named(cloud: Account) -> None:
    reason = "You are not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:…"
    cloud.faults.refuse("RunInstances", "UnauthorizedOperation", reason, status=403)
    with pytest.raises(FleetError, match=r"1 x g5.xlarge spot .*permission ec2:RunInstances is"):
        ask(cloud, [A, B])
    assert cloud.faults.calls.count("ec2:RunInstances") == 1


def test_a_fresh_instance_profile_is_waited_for(cloud: Account) -> None:
    reason = "Value (trialfleet-f) for parameter iamInstanceProfile.name is invalid. "
    reason += "Invalid IAM Instance Profile name"
    cloud.faults.refuse("RunInstances", "InvalidParameterValue", reason, times=9)
    assert len(ask(cloud, [A]).instances) == 1
    assert sum(cloud.pauses) > 60  # IAM may take a minute to tell EC2


def test_another_invalid_value_is_not_waited_for(cloud: Account) -> None:
    cloud.faults.refuse("RunInstances", "InvalidParameterValue", "Invalid disk size")
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


def test_where_spot_has_none_on_demand_does_not_step_in(cloud: Account) -> None:
    no_capacity(cloud, HOME + "a")
    launched = ask(cloud, [A, candidate(HOME + "b", price=1, lifecycle="on-demand")])
    assert launched.instances == []


def test_the_cap_per_hour_is_kept(cloud: Account) -> None:
    launched = ask(cloud, [A, candidate(HOME + "b", price=0.1)], 9, price_cap={"hour": 1.0})
    assert zones(launched) == [HOME + "a"] * 2 + [HOME + "b"] * 2
    assert [refusal.reason for refusal in launched.refusals] == [
        "would exceed the cap of 1.0 USD per hour"
    ] * 2
    assert ask(cloud, [A], 1, price_cap={"hour": 1.0}).instances == []
    assert len(cloud.instances()) == 4


def test_a_request_asked_again_has_the_same_name_and_another_has_another(cloud: Account) -> None:
    cloud.faults.refuse("RunInstances", "InsufficientInstanceCapacity")
    ask(cloud, [A])
    ask(cloud, [A], now=NOON + timedelta(minutes=6))
    ask(cloud, [B])
    ask(cloud, [A], now=NOON + timedelta(minutes=8))
    names = [body["ClientToken"] for body in cloud.faults.asked("RunInstances")]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {64}  # EC2's limit


def test_a_request_whose_parts_have_changed_meanwhile_has_another_name(cloud: Account) -> None:
    cloud.faults.refuse("RunInstances", "InsufficientInstanceCapacity")
    ask(cloud, [A])
    ask(cloud, [candidate(HOME + "a", price=0.41)])
    spec, (region, at) = fleet(), (HOME, NOON)
    made = ready(cloud, spec)
    other = launch_template.definition(
        spec, images.find(cloud.aws, spec, region, "x86_64"), "sg", "#!"
    )
    changed = {(HOME, "x86_64"): launch_template.ensure(cloud.aws, spec, region, "x86_64", other)}
    for run, prepared in (("r1", replace(made, templates=changed)), ("r2", made)):
        launch.launch(cloud.aws, spec, prepared, [A], 1, run, print, now=at)
    names = [body["ClientToken"] for body in cloud.faults.asked("RunInstances")]
    assert len(set(names)) == 4


def test_a_request_asked_again_is_the_same_in_all_its_parts(cloud: Account) -> None:
    cloud.faults.refuse("RunInstances", "InsufficientInstanceCapacity")
    ask(cloud, [A])
    ask(cloud, [A], now=NOON + timedelta(minutes=6))
    first, second = cloud.faults.asked("RunInstances")
    assert first == second


def test_a_node_that_died_does_not_make_the_next_request_the_old_one(cloud: Account) -> None:
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
    cloud.faults.refuse("RunInstances", launch.TWICE)
    assert [i.id for i in ask(cloud, [A]).instances] == [first.id]


def test_an_earlier_request_that_made_nothing_is_a_refusal(cloud: Account) -> None:
    cloud.faults.refuse("RunInstances", launch.TWICE, times=1)
    launched = ask(cloud, [A, B])
    assert zones(launched) == [HOME + "b"]
    assert launched.refusals[0].passes


def test_none_are_asked_for_where_none_are_wanted(cloud: Account) -> None:
    assert ask(cloud, [A], 0) == Launched()
    assert "ec2:RunInstances" not in cloud.faults.calls
