"""`down` ends the nodes, then deletes all that was made for them, and reports what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import (
    AWAY,
    HOME,
    IMAGE,
    Account,
    candidate,
    fleet,
    inputs,
)
from trialfleet.errors import FleetError, PoolError
from trialfleet.infra.fleet.commands.scale import scale
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.inventory import Listing
from trialfleet.infra.fleet.lifecycle.down import down, terminate
from trialfleet.infra.fleet.lifecycle.up import up
from trialfleet.infra.fleet.scaling import cost_record
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

SPEC = fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})
HERE, THERE = candidate(HOME + "a"), candidate(AWAY + "a", lifecycle="on-demand", price=1)


@pytest.fixture
def bare(cloud: Account) -> list[str]:
    """The account's contents before there is a fleet of two nodes in two regions."""
    held = cloud.holdings()
    spec = SPEC.model_copy(update={"spot": SPEC.spot.model_copy(update={"share": 0.5})})
    assert len(up(cloud.aws, spec, inputs(), [HERE, THERE], 2).instances) == 2
    return held


def no_drain(_: list[Instance]) -> None:
    pass


def left_besides(cloud: Account, bare: list[str]) -> list[str]:
    """Return what the account has in addition to `bare`, without the objects in its bucket."""
    new = {*cloud.holdings()} - {*bare}
    return sorted(held for held in new if not held.startswith("object "))


def test_down_leaves_nothing_and_says_so(cloud: Account, bare: list[str]) -> None:
    assert down(cloud.aws, SPEC, no_drain) == []
    assert cloud.holdings() == bare
    assert down(cloud.aws, SPEC, no_drain) == []


def test_nodes_are_drained_while_they_live(cloud: Account, bare: list[str]) -> None:
    drained: list[str] = []

    def drain(nodes: list[Instance]) -> None:
        assert len(cloud.instances()) + len(cloud.instances(AWAY)) == 2
        drained.extend(node.zone for node in nodes)

    down(cloud.aws, SPEC, drain)
    assert sorted(drained) == [HOME + "a", AWAY + "a"]


def test_a_pool_that_cannot_drain_keeps_no_node_alive(cloud: Account, bare: list[str]) -> None:
    def drain(_: list[Instance]) -> None:
        raise PoolError("no collector answers")

    messages: list[str] = []
    assert down(cloud.aws, SPEC, drain, messages.append) == []
    assert "draining failed: no collector answers" in messages


def test_down_does_not_drain_a_fleet_without_nodes(cloud: Account) -> None:
    def drain(_: list[Instance]) -> None:
        raise AssertionError

    assert down(cloud.aws, SPEC, drain) == []


def test_instances_that_are_slow_to_go_are_waited_for(
    cloud: Account, bare: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, slow = inventory.list_instances, 10  # two regions a time

    def tagged(*args: Any) -> list[Instance]:
        nonlocal slow
        found = listed(*args)
        if any(instance.is_alive for instance in found) or (slow := slow - 1) < 0:
            return found
        return [Instance(**{**vars(i), "state": "shutting-down"}) for i in found]

    monkeypatch.setattr(inventory, "list_instances", tagged)
    assert down(cloud.aws, SPEC, no_drain) == []
    assert cloud.pauses == [2, 5, 5, 5, 5]


def test_deletion_of_a_security_group_in_use_is_retried(cloud: Account, bare: list[str]) -> None:
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", times=2)
    assert down(cloud.aws, SPEC, no_drain) == []
    assert cloud.pauses == [2, 4]


def test_undeletable_resources_are_reported_with_the_reason_and_the_rest_is_deleted(
    cloud: Account, bare: list[str]
) -> None:
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", "has a dependent object")
    message = "User: x is not authorized to perform: iam:DeleteRole on resource: y"
    cloud.faults.refuse("DeleteRole", "AccessDenied", message, status=403)
    left = down(cloud.aws, SPEC, no_drain)
    assert left[0].startswith("the security group trialfleet-f in eu-west-1: AWS refused: ")
    assert "has a dependent object" in left[0]
    assert "permission iam:DeleteRole is denied" in left[2]
    assert [line.partition(" sg-")[0] for line in left[3:]] == [
        "left: security group",
        "left: security group",
        "left: role trialfleet-f",
        "left: in S3: s3://trialfleet-f-123456789012 in eu-west-1",
    ]
    assert left_besides(cloud, bare) == [
        "bucket trialfleet-f-123456789012",
        f"group {HOME} trialfleet-f",
        f"group {AWAY} trialfleet-f",
        "role trialfleet-f",
    ]


def test_another_fleet_and_other_instances_stay(cloud: Account, bare: list[str]) -> None:
    up(cloud.aws, fleet(name="g"), inputs(), [HERE], 1)
    cloud.client("ec2").run_instances(
        ImageId=IMAGE, InstanceType="t3.small", MinCount=1, MaxCount=1
    )
    before = cloud.holdings()
    down(cloud.aws, SPEC, no_drain)
    assert sorted({*before} - {*cloud.holdings()}) == sorted(
        held for held in before if "fleet-f" in held or "/f/" in held
    )
    assert len(cloud.instances()) == 2


def test_down_deletes_the_logs_of_nodes(cloud: Account, bare: list[str]) -> None:
    cloud.client("s3").put_object(
        Bucket="trialfleet-f-123456789012", Key="fleet/f/log/i-1.log", Body=b"it failed"
    )
    assert down(cloud.aws, SPEC, no_drain) == []
    assert cloud.holdings() == bare


def test_the_termination_of_single_nodes_ignores_those_already_gone(
    cloud: Account, bare: list[str]
) -> None:
    here, there = sorted(inventory.instances(cloud.aws, SPEC), key=lambda i: i.aws_region)
    gone = Instance(**{**vars(here), "id": "i-0123456789abcdef0"})
    terminate(cloud.aws, [gone, here])
    assert [i.id for i in inventory.instances(cloud.aws, SPEC)] == [there.id]
    terminate(cloud.aws, [gone])


@pytest.mark.parametrize("code", ["RequestExpired", "AuthFailure", "OptInRequired"])
def test_a_refusal_of_the_entire_call_is_not_retried_for_each_instance(
    cloud: Account, bare: list[str], code: str
) -> None:
    up(cloud.aws, SPEC, inputs(), [HERE], 4)
    cloud.faults.refuse("TerminateInstances", code, aws_region=HOME)
    with pytest.raises(FleetError, match=code):
        terminate(cloud.aws, inventory.instances(cloud.aws, SPEC))
    assert len(cloud.faults.asked("TerminateInstances")) == 2, "one for each AWS region"


def test_deletion_errors_are_reported_even_if_the_rest_cannot_be_listed(
    cloud: Account, bare: list[str]
) -> None:
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", "has a dependent object")
    cloud.faults.refuse("DescribeParameters", "AccessDeniedException", "no")
    left = down(cloud.aws, SPEC, no_drain)
    assert "has a dependent object" in left[0]
    assert "to call DescribeParameters is denied" in left[-1]


@pytest.mark.parametrize("spec", [SPEC, fleet()], ids=["named", "earlier"])
def test_an_aws_region_that_refuses_keeps_only_what_a_repetition_needs(
    cloud: Account, bare: list[str], spec: Fleet
) -> None:
    cloud.faults.refuse("DescribeInstances", "AuthFailure", "it is disabled", aws_region=AWAY)
    left = down(cloud.aws, spec, no_drain)
    assert left[0] == (
        f"nodes in {AWAY} can't be listed; they may still run, and cost money until their leases "
        f"end: the instances in {AWAY}: AWS refused: AuthFailure: it is disabled"
    )
    forget = f"aws s3 rm s3://trialfleet-f-123456789012/fleet/f/aws-regions/{AWAY}"
    assert (forget in "".join(left)) == (spec != SPEC)
    assert left[-1] == "left: in S3: s3://trialfleet-f-123456789012 in eu-west-1"
    assert left_besides(cloud, bare) == [
        "bucket trialfleet-f-123456789012",
        f"group {AWAY} trialfleet-f",
        f"instance {AWAY} g5.xlarge ['trialfleet-f']",
        f"template {AWAY} trialfleet-f-x86_64",
    ]
    cloud.faults.reset()
    assert down(cloud.aws, spec, no_drain) == []
    assert cloud.holdings() == bare


def test_nodes_of_a_region_that_misses_only_the_first_listing_are_terminated_too(
    cloud: Account, bare: list[str]
) -> None:
    cloud.faults.refuse("DescribeInstances", "InternalError", aws_region=AWAY, times=1)
    assert down(cloud.aws, SPEC, no_drain) == []
    assert cloud.holdings() == bare


def test_the_record_of_earlier_regions_stays_until_it_was_read(
    cloud: Account, bare: list[str]
) -> None:
    cloud.faults.refuse("ListObjectsV2", "InternalError", times=1)
    left = down(cloud.aws, fleet(), no_drain)
    assert left[0].startswith("the AWS regions that the fleet used before are unknown, and may ")
    assert (len(cloud.instances()), len(cloud.instances(AWAY))) == (0, 1)
    assert down(cloud.aws, fleet(), no_drain) == []
    assert cloud.holdings() == bare


def test_a_refused_termination_keeps_nothing_else(cloud: Account, bare: list[str]) -> None:
    cloud.faults.refuse("TerminateInstances", "AuthFailure", aws_region=AWAY)
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", aws_region=AWAY)
    left = down(cloud.aws, fleet(), no_drain)
    assert left[0].startswith("terminating i-")
    assert f"left: instance {cloud.instances(AWAY)[0]['InstanceId']} in {AWAY}" in left
    assert "parameter" not in " ".join(cloud.holdings())
    cloud.faults.reset()
    assert down(cloud.aws, fleet(), no_drain) == []
    assert cloud.holdings() == bare


def test_leftovers_in_an_earlier_region_are_found_again(cloud: Account, bare: list[str]) -> None:
    cloud.faults.refuse("DeleteSecurityGroup", "DependencyViolation", aws_region=AWAY)
    assert any("security group" in line for line in down(cloud.aws, fleet(), no_drain))
    cloud.faults.reset()
    assert down(cloud.aws, fleet(), no_drain) == []
    assert cloud.holdings() == bare


def test_an_aws_region_that_the_file_no_longer_lists_is_emptied_too(
    cloud: Account, bare: list[str]
) -> None:
    assert down(cloud.aws, fleet(), no_drain) == []
    assert cloud.holdings() == bare


def test_a_smaller_scale_ends_nodes_in_regions_that_the_file_no_longer_names(
    cloud: Account, bare: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_demand, "fleet_machines", lambda _: ())
    messages: list[str] = []
    assert scale(cloud.aws, fleet(), 0, messages.append) == []
    assert (cloud.instances(), cloud.instances(AWAY)) == ([], [])
    assert f"in {AWAY}, which `aws_regions` no longer names" in messages[0]
    record = cost_record.load(cloud.aws, fleet())
    assert {one.why for one in record.lifetimes.values()} == {"the fleet is scaled to 0 node(s)"}
    assert len(record.lifetimes) == 2


@pytest.mark.parametrize("operation", ["PutObject", "ListObjectsV2"])
def test_a_smaller_scale_says_that_the_nodes_costs_are_not_recorded(
    cloud: Account, bare: list[str], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(pool_demand, "fleet_machines", lambda _: ())
    cloud.faults.refuse(operation, "SlowDown")
    messages: list[str] = []
    assert scale(cloud.aws, SPEC, 0, messages.append) == []
    assert (cloud.instances(), cloud.instances(AWAY)) == ([], [])
    assert messages[-1].startswith("the ended nodes' costs are not recorded; AWS forgets these ")
    assert "AWS refused: SlowDown: said the test" in messages[-1]
    cloud.faults.reset()
    assert cost_record.load(cloud.aws, SPEC).lifetimes == {}


def test_regions_noted_before_the_file_named_a_bucket_are_emptied_too(
    cloud: Account, bare: list[str]
) -> None:
    where: Any = {"LocationConstraint": HOME}
    cloud.client("s3").create_bucket(Bucket="users", CreateBucketConfiguration=where)
    assert down(cloud.aws, fleet(bucket="users"), no_drain) == []
    assert left_besides(cloud, bare) == ["bucket users"]


def test_the_token_is_deleted_where_it_is_even_if_the_file_begins_with_another_region(
    cloud: Account, bare: list[str]
) -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    assert down(cloud.aws, fleet(aws_regions=[AWAY, HOME], ami=images), no_drain) == []
    assert cloud.holdings() == bare


def test_the_bucket_is_deleted_only_after_the_costs_are_saved(
    cloud: Account, bare: list[str]
) -> None:
    def fails(_: Listing) -> None:
        raise FleetError("no space left on the disk")

    left = down(cloud.aws, SPEC, no_drain, keep=fails)
    assert left[0] == "no space left on the disk"
    assert left[1:] == ["left: in S3: s3://trialfleet-f-123456789012 in eu-west-1"]
    kept: list[str] = []
    assert (
        down(
            cloud.aws,
            SPEC,
            no_drain,
            keep=lambda found: kept.extend(i.state for i in found.instances),
        )
        == []
    )
    assert kept == ["terminated", "terminated"]
    assert cloud.holdings() == bare
