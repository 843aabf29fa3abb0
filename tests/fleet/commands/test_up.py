"""Resources that `up` makes, once each, and its errors."""

from __future__ import annotations

import ast
import base64
import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import (
    ARM_IMAGE,
    AWAY,
    HOME,
    IMAGE,
    SECRET,
    Account,
    candidate,
    fleet,
    inputs,
    manager_instance,
)
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import images, launch_template
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances import inventory, node_lease
from trialfleet.infra.fleet.instances.launch import Launched
from trialfleet.infra.fleet.lifecycle.up import up
from trialfleet.infra.fleet.nodes.bundle import Bundle

A, B = candidate(HOME + "a"), candidate(HOME + "b")
CAPPED = "would exceed the cap of 1.0 USD per hour"


def raise_fleet(
    cloud: Account, count: int | None = None, run: str = "", **changes: Any
) -> Launched:
    candidates = changes.pop("candidates", [A, B])
    messages = changes.pop("messages", [])
    given = changes.pop("given", {})
    spec = fleet(**changes)
    return up(cloud.aws, spec, inputs(**given), candidates, count, run, messages.append)


def latest(cloud: Account, name: str = "trialfleet-f-x86_64", aws_region: str = HOME) -> Any:
    found = cloud.client("ec2", aws_region).describe_launch_template_versions(
        LaunchTemplateName=name, Versions=["$Latest"]
    )
    return found["LaunchTemplateVersions"][0]


def user_data(cloud: Account, **where: Any) -> str:
    packed = latest(cloud, **where)["LaunchTemplateData"]["UserData"]
    return gzip.decompress(base64.b64decode(packed)).decode()


def settings(cloud: Account) -> Any:
    (text,) = re.findall(r"^SETTINGS = json\.loads\((.*)\)$", user_data(cloud), re.MULTILINE)
    return json.loads(ast.literal_eval(text))


def test_a_node_gets_all_settings_that_it_needs_to_join(cloud: Account) -> None:
    given = {"endpoint_url": "https://aws.example"}
    raise_fleet(cloud, run="2026-11-20T10-00-00", given=given)
    assert settings(cloud) == {
        "fleet": "f",
        "run": "2026-11-20T10-00-00",
        "home": HOME,
        "bucket": "trialfleet-f-123456789012",
        "bundle": "fleet/f/bundle-ab12.tar.gz",
        "bundle_sha256": "ab12",
        "log_prefix": "fleet/f/log/",
        "token_parameter": "/trialfleet/f/node-token",
        "manager": "manager.example:9618",
        "condor_version": "25.14.1",
        "idle_minutes": 10.0,
        "boot_minutes": 20,
        "endpoint_url": "https://aws.example",
    }


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", ""), ("https://aws.example:4566", "https://aws.example:4566")],
)
def test_the_endpoint_for_nodes_is_the_users_endpoint(
    named: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", named)
    assert Aws().endpoint(HOME) == expected
    assert Aws().endpoint("cn-north-1") == expected
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    assert Aws().endpoint(HOME) == expected


def test_the_bundle_and_the_token_are_where_the_nodes_settings_say(cloud: Account) -> None:
    raise_fleet(cloud)
    node_values = settings(cloud)
    held = cloud.client("s3").get_object(Bucket=node_values["bucket"], Key=node_values["bundle"])
    assert held["Body"].read() == b"a bundle"
    token = cloud.client("ssm").get_parameter(
        Name=node_values["token_parameter"], WithDecryption=True
    )
    assert token["Parameter"]["Value"] == SECRET


def test_the_launch_template_has_secure_settings(cloud: Account) -> None:
    raise_fleet(cloud)
    data = latest(cloud)["LaunchTemplateData"]
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpProtocolIpv6": "disabled",
        "HttpPutResponseHopLimit": 1,
        "InstanceMetadataTags": "enabled",
    }
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    [disk] = data["BlockDeviceMappings"]
    assert disk["DeviceName"] == "/dev/sda1"
    assert disk["Ebs"] == {
        "Encrypted": True,
        "VolumeType": "gp3",
        "VolumeSize": 100,
        "DeleteOnTermination": True,
    }
    assert "KeyName" not in data
    assert data["ImageId"] == IMAGE


def test_the_token_is_in_no_request_user_data_or_message(cloud: Account) -> None:
    messages: list[str] = []
    raise_fleet(cloud, messages=messages)
    asked = [
        json.dumps(body, default=repr) for body in cloud.faults.asked("CreateLaunchTemplate")
    ] + [json.dumps(body, default=repr) for body in cloud.faults.asked("CreateFleet")]
    for text in [*asked, user_data(cloud), *messages, repr(inputs())]:
        assert SECRET not in text


def test_up_again_makes_nothing_and_changes_nothing_but_the_lease(cloud: Account) -> None:
    raise_fleet(cloud, 2)
    before = cloud.holdings()
    cloud.faults.calls.clear()
    raise_fleet(cloud, 2)
    changing = [
        call
        for call in cloud.faults.calls
        if not call.partition(":")[2].startswith(("Get", "Head", "List", "Describe"))
    ]
    assert changing == ["ec2:CreateTags"]
    assert cloud.holdings() == before


def test_up_adds_only_the_nodes_that_are_missing(cloud: Account) -> None:
    first = {i.id for i in raise_fleet(cloud, 1).instances}
    raised = raise_fleet(cloud, 3)
    assert len(cloud.instances()) == len(raised.instances) == 3
    assert first < {i.id for i in raised.instances}
    assert len(raise_fleet(cloud, 1).instances) == 3


def test_nodes_in_regions_that_the_file_no_longer_names_count(cloud: Account) -> None:
    both: dict[str, Any] = {"aws_regions": [HOME, AWAY], "ami": {HOME: IMAGE, AWAY: IMAGE}}
    [away] = raise_fleet(cloud, 1, candidates=[candidate(AWAY + "a")], **both).instances
    messages: list[str] = []
    found = raise_fleet(cloud, 2, messages=messages, price_cap={"hour": 1}, nodes={"max": 2})
    assert [one.aws_region for one in found.instances] == [AWAY, HOME]
    assert (
        f"{away.id} in {AWAY}, which `aws_regions` no longer names: these nodes count as nodes of "
        "the fleet until their leases end"
    ) in messages
    [same] = inventory.instances(cloud.aws, fleet(aws_regions=[AWAY]))
    assert same.expires == away.expires, "the lease is not renewed"
    (refusal,) = raise_fleet(cloud, 3, price_cap={"hour": 1}).refusals
    assert refusal.reason == CAPPED, "all nodes together cost too much"


def test_an_earlier_region_that_refuses_prevents_no_launch(cloud: Account) -> None:
    both: dict[str, Any] = {"aws_regions": [HOME, AWAY], "ami": {HOME: IMAGE, AWAY: IMAGE}}
    raise_fleet(cloud, 1, candidates=[candidate(AWAY + "a")], **both)
    cloud.faults.refuse("DescribeInstances", "AuthFailure", "disabled", aws_region=AWAY)
    messages: list[str] = []
    assert len(raise_fleet(cloud, 2, messages=messages).instances) == 2
    assert (
        f"the instances in {AWAY}: AWS refused: AuthFailure: disabled; nodes there are not counted"
    ) in messages
    with pytest.raises(FleetError, match=f"the instances in {AWAY}"):
        raise_fleet(cloud, 2, candidates=[candidate(AWAY + "a")], **both)


def test_by_default_there_are_as_many_nodes_as_the_fleets_minimum_and_one_at_least(
    cloud: Account,
) -> None:
    raise_fleet(cloud)
    assert len(cloud.instances()) == 1
    raise_fleet(cloud, nodes={"min": 2})
    assert len(cloud.instances()) == 2


def test_up_with_zero_nodes_still_makes_the_launch_template(cloud: Account) -> None:
    assert raise_fleet(cloud, 0).instances == []
    assert latest(cloud)["VersionNumber"] == 1


def test_more_nodes_than_the_fleet_may_have_are_refused_before_anything_is_made(
    cloud: Account,
) -> None:
    with pytest.raises(InputError, match=r"the fleet may have 0 to 4 nodes .*, not 5"):
        raise_fleet(cloud, 5)
    assert cloud.faults.calls == []


def test_another_first_region_is_refused_while_the_bucket_is_in_the_old_one(
    cloud: Account,
) -> None:
    raise_fleet(cloud)
    before = cloud.holdings()
    images = {HOME: IMAGE, AWAY: IMAGE}
    expected = (
        rf"trialfleet-f-\d+ is in {HOME}, but must be in {AWAY}.* list {HOME} first.*fleet down"
    )
    with pytest.raises(InputError, match=expected):
        raise_fleet(cloud, 2, aws_regions=[AWAY, HOME], ami=images)
    assert cloud.holdings() == before


def test_a_node_that_died_is_replaced(cloud: Account) -> None:
    dead = raise_fleet(cloud).instances[0]
    cloud.client("ec2").terminate_instances(InstanceIds=[dead.id])
    [alive] = raise_fleet(cloud).instances
    assert alive.id != dead.id


def test_up_renews_the_lease_of_nodes_that_live_already(cloud: Account) -> None:
    [node] = raise_fleet(cloud).instances
    past = datetime(2026, 1, 1, tzinfo=UTC)
    node_lease.renew(cloud.aws, fleet(), [node], now=past)
    raise_fleet(cloud)
    [found] = inventory.instances(cloud.aws, fleet())
    assert found.expires
    assert found.expires > datetime.now(UTC) + timedelta(minutes=59)


def test_a_full_pool_is_asked_again_after_a_while(cloud: Account) -> None:
    cloud.capacity.lack(times=2)  # both zones, once
    messages: list[str] = []
    assert len(raise_fleet(cloud, 1, messages=messages).instances) == 1
    assert cloud.pauses == [15]
    assert "0 of 1 nodes; asking again in 15 s" in messages


def test_a_pool_that_stays_full_is_reported_with_each_reason(cloud: Account) -> None:
    cloud.capacity.lack()
    with pytest.raises(FleetError) as raised:
        raise_fleet(cloud)
    refused = "no capacity (InsufficientInstanceCapacity: said the test)"
    assert str(raised.value).splitlines() == [
        "AWS gave no node:",
        f"  g5.xlarge spot in eu-west-1a, eu-west-1b (0.400 USD/h): {refused}",
    ]
    assert cloud.pauses == [15, 30, 60]


def test_a_permanent_limit_is_reported_at_once(cloud: Account) -> None:
    cloud.capacity.lack(code="VcpuLimitExceeded")
    with pytest.raises(FleetError, match="vCPU limit"):
        raise_fleet(cloud)
    assert cloud.pauses == []


def test_up_succeeds_with_fewer_nodes_than_requested(cloud: Account) -> None:
    raised = raise_fleet(cloud, 4, price_cap={"hour": 1.0})
    assert len(raised.instances) == 2
    assert [refusal.reason for refusal in raised.refusals] == [CAPPED]


def test_up_succeeds_although_calls_are_throttled(cloud: Account) -> None:
    for operation in ("DescribeSubnets", "CreateSecurityGroup", "CreateRole", "PutParameter"):
        cloud.faults.throttle(operation, 2)
    assert len(raise_fleet(cloud).instances) == 1


def test_a_new_run_or_bundle_is_a_new_version_of_the_template(cloud: Account) -> None:
    raise_fleet(cloud, run="r1")
    raise_fleet(cloud, 2, run="r2")
    assert latest(cloud)["VersionNumber"] == 2
    raise_fleet(cloud, 2, run="r2", given={"bundle": Bundle(b"new", "cd34")})
    assert latest(cloud)["VersionNumber"] == 3
    versions = sorted(
        tag["Value"]
        for instance in cloud.instances()
        for tag in instance["Tags"]
        if tag["Key"] == "aws:ec2launchtemplate:version"
    )
    assert versions == ["1", "2"]


def test_regions_and_architectures_have_templates_of_their_own(cloud: Account) -> None:
    arm = candidate(AWAY + "a", "g5g.xlarge", architecture="arm64")
    raise_fleet(
        cloud,
        aws_regions=[HOME, AWAY],
        ami={HOME: IMAGE, AWAY: ARM_IMAGE},
        candidates=[arm, A],
    )
    assert latest(cloud)["LaunchTemplateData"]["ImageId"] == IMAGE
    there = latest(cloud, "trialfleet-f-arm64", AWAY)["LaunchTemplateData"]
    assert there["ImageId"] == ARM_IMAGE
    [node] = cloud.instances(AWAY)
    assert node["ImageId"] == ARM_IMAGE


def test_the_key_pair_and_the_disk_are_the_fleets(cloud: Account) -> None:
    raise_fleet(cloud, key_pair="mine", disk="0.5TB")
    data = latest(cloud)["LaunchTemplateData"]
    assert data["KeyName"] == "mine"
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 512


def test_a_disk_is_never_smaller_than_the_images(cloud: Account) -> None:
    image = images.Image(id=IMAGE, root="/dev/xvda", root_gib=60, architecture="x86_64")
    wanted = launch_template.definition(fleet(disk="10GB"), image, "sg-1", "trialfleet-f", "")
    assert wanted["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 60


def test_no_volume_of_the_image_outlives_the_node(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2 = cloud.aws.ec2(HOME)  # moto's images have a root volume alone
    [image] = ec2.describe_images(ImageIds=[IMAGE])["Images"]
    image["BlockDeviceMappings"] += [
        {"DeviceName": "/dev/sdb", "Ebs": {"DeleteOnTermination": False, "VolumeSize": 500}},
        {"DeviceName": "/dev/sdc", "Ebs": {"DeleteOnTermination": True, "VolumeSize": 500}},
        {"DeviceName": "/dev/sdd", "VirtualName": "ephemeral0"},
    ]
    monkeypatch.setattr(ec2, "describe_images", lambda **_: {"Images": [image]})
    raise_fleet(cloud)
    [_, kept] = latest(cloud)["LaunchTemplateData"]["BlockDeviceMappings"]
    assert kept["DeviceName"] == "/dev/sdb"
    assert kept["Ebs"] == {"VolumeSize": 500, "DeleteOnTermination": True}


def test_the_image_in_a_parameter_is_used(cloud: Account) -> None:
    cloud.client("ssm").put_parameter(Name="/our/x86_64/image", Value=IMAGE, Type="String")
    raise_fleet(cloud, ami="ssm:/our/{architecture}/image")
    assert latest(cloud)["LaunchTemplateData"]["ImageId"] == IMAGE


@pytest.mark.parametrize(
    ("ami", "expected"),
    [
        ("ami-0123456789abcdef9", r"eu-west-1 has no image ami-0123456789abcdef9"),
        ("ssm:/nowhere", r"the SSM parameter /nowhere does not exist in eu-west-1"),
        ("ssm:/old", r"no image ami-0123456789abcdef8, to which ssm:/old points,"),
        (ARM_IMAGE, r"is for arm64, but the instance types are x86_64"),
    ],
)
def test_an_image_that_cannot_be_used_is_reported(cloud: Account, ami: str, expected: str) -> None:
    cloud.client("ssm").put_parameter(Name="/old", Value="ami-0123456789abcdef8", Type="String")
    with pytest.raises(InputError, match=expected):
        raise_fleet(cloud, ami=ami)


def test_the_manager_joins_the_security_group_only_in_its_own_region(cloud: Account) -> None:
    own = manager_instance(cloud, AWAY)
    raise_fleet(cloud, given={"own": own})
    assert f"instance {AWAY} t3.small ['default']" in cloud.holdings()
    raise_fleet(
        cloud,
        aws_regions=[HOME, AWAY],
        ami={HOME: IMAGE, AWAY: IMAGE},
        candidates=[A, candidate(AWAY + "a")],
        given={"own": own},
    )
    assert f"instance {AWAY} t3.small ['default', 'trialfleet-f']" in cloud.holdings()


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ("CreateSecurityGroup", "ec2:CreateSecurityGroup"),
        ("CreateLaunchTemplate", "ec2:CreateLaunchTemplate"),
        ("DescribeInstances", "ec2:DescribeInstances"),
        ("PutParameter", "ssm:PutParameter"),
        ("CreateInstanceProfile", "iam:CreateInstanceProfile"),
        ("CreateBucket", "s3:CreateBucket"),
    ],
)
def test_a_denied_permission_is_reported_with_its_name(
    cloud: Account, operation: str, named: str
) -> None:
    message = f"User: arn:aws:iam::1:user/x is not authorized to perform: {named}"
    cloud.faults.refuse(operation, "AccessDenied", message, status=403)
    with pytest.raises(FleetError, match=f"permission {named} is denied"):
        raise_fleet(cloud)


def test_two_fleets_have_separate_nodes(cloud: Account) -> None:
    raise_fleet(cloud, name="f")
    raise_fleet(cloud, 2, name="g")
    assert len(inventory.instances(cloud.aws, fleet(name="f"))) == 1
    assert len(inventory.instances(cloud.aws, fleet(name="g"))) == 2


def test_up_within_minutes_of_a_lack_of_capacity_asks_aws_again(cloud: Account) -> None:
    cloud.capacity.lack()
    with pytest.raises(FleetError, match="AWS gave no node"):
        raise_fleet(cloud, 1)
    asked = len(cloud.capacity.requests)
    cloud.capacity.restore()
    assert len(raise_fleet(cloud, 1).instances) == 1
    assert len(cloud.capacity.requests) == asked + 1
    assert len(cloud.pauses) == 3, "the second time AWS has room at once"
