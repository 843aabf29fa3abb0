"""Leases of nodes: their renewal, and the termination of nodes whose lease has ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.fleet.mock_aws.moto_account import AWAY, HOME, IMAGE, Account, candidate, fleet, inputs
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.instances import inventory, lease
from trialfleet.infra.fleet.lifecycle.reap import LONGEST, list_expired, reap
from trialfleet.infra.fleet.lifecycle.up import up
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SPEC = fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})


@pytest.fixture
def nodes(cloud: Account) -> list[Instance]:
    """Two nodes of one fleet at home, and one of another fleet away."""
    up(cloud.aws, SPEC, inputs(), [candidate(HOME + "a")], 2)
    other = SPEC.model_copy(update={"name": "g"})
    up(cloud.aws, other, inputs(), [candidate(AWAY + "a")], 1)
    found = [*inventory.instances(cloud.aws, SPEC), *inventory.instances(cloud.aws, other)]
    lease.renew(cloud.aws, SPEC, found, now=NOW)
    return found


def expiries(cloud: Account) -> list[datetime | None]:
    return [instance.expires for instance in inventory.instances(cloud.aws, SPEC)]


def expired_nodes(cloud: Account, *aws_regions: str, now: datetime) -> list[Instance]:
    return list_expired(cloud.aws, aws_regions, now=now).instances


def spec_with_lease(minutes: int) -> Fleet:
    return SPEC.model_copy(update={"lease_minutes": minutes})


def test_a_lease_is_renewed_in_all_regions(cloud: Account, nodes: list[Instance]) -> None:
    lease.renew(cloud.aws, spec_with_lease(30), nodes, now=NOW)
    end = NOW + timedelta(minutes=30)
    assert expiries(cloud) == [end, end]
    assert expired_nodes(cloud, HOME, AWAY, now=end) == []
    assert len(expired_nodes(cloud, HOME, AWAY, now=end + timedelta(seconds=1))) == 3


def test_by_default_a_lease_is_as_long_as_the_fleet_says(
    cloud: Account, nodes: list[Instance]
) -> None:
    assert expiries(cloud) == [NOW + timedelta(minutes=60)] * 2


def test_leases_are_renewed_although_one_of_the_nodes_is_gone(
    cloud: Account, nodes: list[Instance]
) -> None:
    gone = Instance(**{**vars(nodes[0]), "id": "i-0123456789abcdef0"})
    cloud.faults.refuse(  # AWS tags none then, and moto all
        "CreateTags", "InvalidInstanceID.NotFound", when=lambda body: gone.id in body.values()
    )
    lease.renew(cloud.aws, spec_with_lease(30), [gone, *nodes], now=NOW)
    assert expiries(cloud) == [NOW + timedelta(minutes=30)] * 2


def test_a_refusal_of_another_kind_is_reported(cloud: Account, nodes: list[Instance]) -> None:
    cloud.faults.refuse("CreateTags", "TagLimitExceeded")
    with pytest.raises(FleetError, match="TagLimitExceeded"):
        lease.renew(cloud.aws, SPEC, nodes)


def test_instances_that_outlived_their_lease_are_terminated_in_any_fleet(
    cloud: Account, nodes: list[Instance]
) -> None:
    lease.renew(cloud.aws, spec_with_lease(120), nodes[:1], now=NOW)
    messages: list[str] = []
    after = NOW + timedelta(minutes=61)
    reaped = reap(cloud.aws, [HOME, AWAY], messages.append, now=after)
    assert {i.id for i in reaped.instances} == {i.id for i in nodes[1:]}
    assert [i["InstanceId"] for i in cloud.instances()] == [nodes[0].id]
    assert cloud.instances(AWAY) == []
    ended = "its lease ended 2026-11-20T13:00:00Z"
    assert f"{nodes[2].id} (g5.xlarge in us-east-1a, fleet g): {ended}" in messages
    assert reap(cloud.aws, [HOME, AWAY], now=after).instances == []


def test_an_aws_region_that_refuses_does_not_save_the_expired_nodes_of_others(
    cloud: Account, nodes: list[Instance]
) -> None:
    cloud.faults.refuse("DescribeInstances", "AuthFailure", aws_region=HOME)
    after = NOW + timedelta(minutes=61)
    found = list_expired(cloud.aws, [HOME, AWAY], now=after)
    assert [i.id for i in found.instances] == [nodes[2].id]
    assert "AuthFailure" in str(reap(cloud.aws, [HOME, AWAY], now=after).silent[HOME])
    assert cloud.instances(AWAY) == []


def test_instances_of_others_are_left_alone(cloud: Account) -> None:
    cloud.client("ec2").run_instances(
        ImageId=IMAGE, InstanceType="t3.small", MinCount=1, MaxCount=1
    )
    assert expired_nodes(cloud, HOME, now=NOW + timedelta(days=3_650)) == []


def test_a_node_without_a_readable_lease_ends_with_the_longest_one(
    cloud: Account, nodes: list[Instance]
) -> None:
    cloud.client("ec2").create_tags(
        Resources=[nodes[0].id], Tags=[{"Key": "trialfleet:expires", "Value": "soon"}]
    )
    cloud.client("ec2").delete_tags(Resources=[nodes[1].id], Tags=[{"Key": "trialfleet:expires"}])
    assert expiries(cloud) == [None, None]
    end = max(node.launched for node in nodes) + LONGEST
    assert expired_nodes(cloud, HOME, now=end - timedelta(minutes=5)) == []
    assert len(expired_nodes(cloud, HOME, now=end + timedelta(minutes=5))) == 2
