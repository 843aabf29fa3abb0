"""Many nodes in several AWS regions: the number of calls, and behaviour at faults of AWS."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import ACCOUNT, AWAY, HOME, IMAGE, candidate
from tests.fleet.mock_aws.small_world import World, world
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import bucket
from trialfleet.infra.fleet.instances import batches, inventory, regions
from trialfleet.infra.fleet.lifecycle import down
from trialfleet.infra.fleet.scaling import draining
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler
from trialfleet.infra.fleet.spec import names

THIRD = "us-west-2"
REGIONS = (HOME, AWAY, THIRD)
OPERATIONS = ("DescribeInstances", "CreateTags", "TerminateInstances", "CreateFleet")


@contextmanager
def three_regions(each: int, **changes: Any) -> Iterator[World]:
    """A world with joined, busy nodes in each of three AWS regions."""
    images = dict.fromkeys(REGIONS, IMAGE)
    nodes = {"max": 3 * each}
    usual: dict[str, Any] = {"aws_regions": [*REGIONS], "zones": [], "ami": images, "nodes": nodes}
    with world(**{**usual, **changes}) as here:
        here.candidates = [candidate(f"{region}a") for region in REGIONS]
        bucket.ensure(here.account.aws, here.fleet, ACCOUNT)
        for aws_region in REGIONS:
            launch(here, aws_region, each)
        here.join(idle=None)
        yield here


def launch(here: World, aws_region: str, count: int) -> None:
    """Start nodes of the fleet in one call, as they are after a launch."""
    end = here.now + timedelta(minutes=here.fleet.lease_minutes)
    tagged = {names.FLEET_TAG: "f", names.PRICE_TAG: "0.4", names.EXPIRES_TAG: names.time_text(end)}
    here.account.client("ec2", aws_region).run_instances(
        ImageId=IMAGE,
        InstanceType="g5.xlarge",
        MinCount=count,
        MaxCount=count,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in tagged.items()],
            }
        ],
    )


def calls_of(here: World, scaler: Autoscaler) -> Counter[str]:
    here.account.faults.calls.clear()
    scaler.step()
    return Counter(here.account.faults.calls)


def leases(here: World) -> list[timedelta]:
    return [one.expires - here.now for one in here.living() if one.expires]


@pytest.mark.parametrize(
    ("each", "page"), [(25, 10), pytest.param(333, 1_000, marks=pytest.mark.thorough)]
)
def test_a_step_makes_few_calls_and_without_changes_only_lists_nodes(
    monkeypatch: pytest.MonkeyPatch, each: int, page: int
) -> None:
    monkeypatch.setattr(inventory, "PAGE", page)
    monkeypatch.setattr(batches, "AT_ONCE", page)
    pages = -(-each // page)
    with three_regions(each) as here:
        scaler = here.autoscaler("r1")
        here.waiting = 20_000
        assert calls_of(here, scaler).total() <= 40
        scaler.step()  # notes in the record which nodes have joined
        for _ in range(3):
            here.later(minutes=5 / 60)
            assert calls_of(here, scaler) == {"ec2:DescribeInstances": 3}  # moto has one page
        asked = here.account.faults.asked("DescribeInstances")
        assert {body["MaxResults"] for body in asked} == {page}
        here.later(minutes=40)
        renewing = calls_of(here, scaler)
        assert renewing["ec2:CreateTags"] == 3 * pages
        assert renewing.total() <= 40
        assert min(leases(here)) > timedelta(minutes=59)
        tagged = here.account.faults.asked("CreateTags")
        assert max(sum(key.startswith("ResourceId.") for key in body) for body in tagged) <= page


@contextmanager
def empty_account(**changes: Any) -> Iterator[World]:
    """A world of three empty AWS regions; the trials' demand is given."""
    images = dict.fromkeys(REGIONS, IMAGE)
    usual: dict[str, Any] = {"aws_regions": [*REGIONS], "zones": [], "ami": images}
    with world(**{**usual, "nodes": {"max": 999}, **changes}) as here:
        here.candidates = [candidate(f"{region}a") for region in REGIONS]
        here.waiting = 9
        yield here


def test_the_first_launch_into_an_empty_account_makes_few_calls() -> None:
    with empty_account() as here:
        scaler = here.autoscaler("r1")
        calls = calls_of(here, scaler)
        assert len(here.account.instances(HOME)) == 9
        assert calls.total() <= 40, calls
        assert calls["ec2:CreateSecurityGroup"] == calls["ec2:CreateLaunchTemplate"] == 1
        here.waiting = 10
        assert calls_of(here, scaler).total() <= 10


def test_a_regions_resources_are_made_only_if_earlier_regions_lack_capacity() -> None:
    with empty_account() as here:
        here.account.capacity.lack(HOME + "a", room=2)
        calls = calls_of(here, here.autoscaler("r1"))
        assert [len(here.account.instances(region)) for region in REGIONS] == [2, 7, 0]
        assert calls["ec2:CreateSecurityGroup"] == calls["ec2:CreateLaunchTemplate"] == 2


def test_nodes_are_launched_although_resources_of_another_region_fail() -> None:
    with empty_account() as here:
        here.account.capacity.lack(HOME + "a", room=2)
        here.account.faults.refuse("DescribeImages", "InvalidAMIID.NotFound", aws_region=AWAY)
        scaler = here.autoscaler("r1")
        step = scaler.step()
        assert len(step.launched) == 9
        assert [len(here.account.instances(region)) for region in REGIONS] == [2, 0, 7]
        here.later(minutes=1)
        assert scaler.step().nodes == {"coming": 9}


def test_launch_settings_are_looked_up_once_until_a_launch_fails() -> None:
    with three_regions(1, nodes={"max": 40}) as here:
        scaler = here.autoscaler("r1")
        for waiting, is_prepared in ((1, True), (2, False)):
            here.waiting = waiting
            calls = calls_of(here, scaler)
            assert calls["ec2:CreateFleet"] >= 1
            assert ("iam:GetRole" in calls) == is_prepared
        assert calls.total() <= 10
        here.account.faults.refuse("CreateFleet", "UnauthorizedOperation", status=403, times=1)
        here.waiting = 3
        assert "CreateFleet" in scaler.step().notes[0]
        here.waiting = 4
        assert "iam:GetRole" in calls_of(here, scaler)


def test_leases_of_a_region_that_end_at_various_times_are_renewed_together() -> None:
    with three_regions(2) as here:
        scaler = here.autoscaler("r1")
        scaler.step()
        here.later(minutes=10)
        launch(here, HOME, 2)
        here.join(idle=None)
        here.later(minutes=11)
        assert calls_of(here, scaler)["ec2:CreateTags"] == 3
        here.later(minutes=10)  # those that were launched later would be due on their own
        assert calls_of(here, scaler)["ec2:CreateTags"] == 0


def test_one_missing_node_of_many_adds_only_a_few_calls() -> None:
    with three_regions(30) as here:
        gone = here.living()[7].id
        refused = here.account.faults.refuse
        refused("CreateTags", "InvalidInstanceID.NotFound", when=lambda b: gone in b.values())
        scaler = here.autoscaler("r1")
        here.later(minutes=40)
        assert calls_of(here, scaler)["ec2:CreateTags"] <= 3 + 2 * 5
        assert sorted(leases(here))[1] > timedelta(minutes=59)


def test_ten_minutes_in_which_aws_throttles_all_calls_change_nothing() -> None:
    """Leases are 13 minutes long here: just long enough."""
    with three_regions(5, lease_minutes=13, idle_minutes=5, nodes={"max": 16}) as here:
        scaler = here.autoscaler("r1")
        here.waiting = 3
        assert len(scaler.step().launched) == 1  # which AWS does not list yet
        here.later(minutes=2)  # the last moment at which leases were renewed without need
        scaler.step()
        before = {one.id for one in here.living()}
        here.later(minutes=0.9)
        for operation in OPERATIONS:
            here.account.faults.refuse(operation, "RequestLimitExceeded", status=503)
        for _ in range(30):
            here.waiting = 9
            step = scaler.step()
            assert sum(step.nodes.values()) == len(before)
            assert (step.launched, step.drained, step.terminated) == ((), (), ())
            assert "RequestLimitExceeded" in " ".join(step.notes)
            here.later(minutes=1 / 3)
        here.account.faults.reset()
        assert min(leases(here)) > timedelta(minutes=1)
        scaler.step()
        assert {one.id for one in here.living()} == before
        assert min(leases(here)) > timedelta(minutes=12)


def test_a_step_drains_a_limited_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "IN_A_STEP", 2)
    with three_regions(1, price_cap={"run": 1e-9}) as here:
        scaler = here.autoscaler("r1")
        here.later(minutes=1)
        assert [len(scaler.step().drained) for _ in range(3)] == [2, 1, 0]


def test_throttled_calls_are_not_made_again_node_by_node() -> None:
    with three_regions(5) as here:
        for operation in OPERATIONS:
            here.account.faults.refuse(operation, "RequestLimitExceeded", status=503)
        notes = here.autoscaler("r1").step().notes
        assert len([note for note in notes if "RequestLimitExceeded" in note]) == 3, notes
        here.account.faults.reset()
        nodes = here.living()
        here.account.faults.refuse("TerminateInstances", "RequestLimitExceeded", status=503)
        with pytest.raises(FleetError, match="RequestLimitExceeded"):
            down.terminate(here.account.aws, nodes)
        assert len(here.account.faults.asked("TerminateInstances")) == 3


def test_new_instances_in_a_region_that_becomes_unreachable_are_not_forgotten() -> None:
    with three_regions(1, nodes={"max": 9}, zones=[]) as here:
        scaler = here.autoscaler("r1")
        scaler.step()
        here.waiting = 1
        here.account.faults.refuse("DescribeInstances", "RequestLimitExceeded", when=launched(here))
        assert len(scaler.step().launched) == 1
        here.later(minutes=5)
        step = scaler.step()
        assert (step.nodes, step.launched) == ({"busy": 3, "coming": 1}, ())


def launched(here: World) -> Any:
    """Tell whether a node was launched beside those that were there."""
    return lambda _body: len(here.account.instances(HOME)) > 1


def test_a_region_that_hangs_delays_no_lease_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "PATIENCE", 2)
    answer = threading.Event()
    with three_regions(2, lease_minutes=5) as here:
        scaler = here.autoscaler("r1")
        scaler.step()
        tagged = inventory.list_instances

        def hanging(aws: Any, aws_region: str, filters: Any) -> Any:
            if aws_region == AWAY:
                answer.wait(60)
            return tagged(aws, aws_region, filters)

        monkeypatch.setattr(inventory, "list_instances", hanging)
        for _ in range(4):
            here.later(minutes=2)
            step = scaler.step()
            assert step.nodes == {"busy": 6}
            note = f"the instances in {AWAY}: AWS has not answered within 2 s"
            assert step.notes == (note,)
            monkeypatch.setattr(inventory, "list_instances", tagged)
            others = [i.expires for i in here.living() if i.aws_region != AWAY and i.expires]
            assert min(others) - here.now > timedelta(minutes=4)
            monkeypatch.setattr(inventory, "list_instances", hanging)
        answer.set()
        assert scaler.step().notes == ()
