"""The caller's and the nodes' policies: they allow what trialfleet does, and nothing else."""

from __future__ import annotations

import fnmatch
import json
import re
from datetime import timedelta
from itertools import chain
from typing import Any
from unittest import mock

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.fleet.mock_aws import moto_account, moto_iam
from tests.fleet.mock_aws.moto_account import ACCOUNT, Account
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import bucket, network, policy
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.choice import candidates as choice
from trialfleet.infra.fleet.commands import boot_log as boot_words
from trialfleet.infra.fleet.commands import doctor
from trialfleet.infra.fleet.commands.plan import policies
from trialfleet.infra.fleet.instances import inventory, node_lease
from trialfleet.infra.fleet.lifecycle import reap, up
from trialfleet.infra.fleet.lifecycle.down import down
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet, Gangs

MOST_CHARACTERS = 6_144  # of a managed policy, without white space
MINE = moto_account.fleet(instance_types=["g5.xlarge"], spot={"share": 0.5}, nodes={"max": 2})


MEANT = {  # the patterns among the actions, and all that they must allow
    pattern: [pattern.replace("*", word) for word in words]
    for pattern, words in {
        "ec2:DescribeInstanceType*": ("Offerings", "s"),
        "ec2:DescribeLaunchTemplate*": ("s", "Versions"),
        policy.EFA_RULES: ("Authorize", "Revoke"),
        policy.RULES: ("Authorize", "Revoke"),
        "s3:*BucketPublicAccessBlock": ("Get", "Put"),
        "s3:*BucketTagging": ("Get", "Put"),
        "s3:*LifecycleConfiguration": ("Get", "Put"),
        "ssm:*Parameter": ("Delete", "Get", "Put"),
        "ssm:*Session": ("Resume", "Start", "Terminate"),
    }.items()
}


def policy_of(fleet: Fleet = MINE) -> dict[str, Any]:
    return policy.caller_policy(fleet, ACCOUNT)


def exact(actions: list[str]) -> list[str]:
    return list(chain.from_iterable(MEANT.get(action, [action]) for action in actions))


def allowed_actions(document: dict[str, Any]) -> set[str]:
    return {action for one in document["Statement"] for action in exact(one["Action"])}


def statement(called: str, fleet: Fleet = MINE) -> dict[str, Any]:
    return next(one for one in policy_of(fleet)["Statement"] if one["Sid"] == called)


def without(action: str) -> dict[str, Any]:
    document = policy_of()
    for one in document["Statement"]:
        one["Action"] = [known for known in exact(one["Action"]) if known != action] or [
            "none:Such"
        ]
    return document


def grants(document: dict[str, Any], action: str, arn: str) -> list[dict[str, Any]]:
    """Return the statements that an action on a resource falls under, conditions aside."""
    return [
        one
        for one in document["Statement"]
        if action in exact(one["Action"])
        and any(fnmatch.fnmatchcase(arn, r) for r in one["Resource"])
    ]


def supplies_of(own: OwnInstance, **changes: Any) -> up.NodeInputs:
    return moto_account.inputs(own=own, **changes)


def raised_watched_and_removed(aws: Aws, own: OwnInstance, fleet: Fleet = MINE) -> list[str]:
    """Do all that the command line does to a fleet; return what is left of it."""
    candidates = choice.candidates(aws, fleet)
    nodes = up.up(aws, fleet, supplies_of(own), candidates, 2).instances
    others = [{**moto_account.TRUST["Statement"][0], "Sid": "Changed"}]
    trust = {"Version": "2012-10-17", "Statement": others}
    larger, another = fleet.model_copy(update={"disk": "200GB"}), supplies_of(own, token="another")
    with mock.patch.object(policy, "node_trust", return_value=trust):
        up.up(aws, larger, another, candidates)
    node_lease.renew(aws, fleet, nodes)
    doctor.examine(aws, fleet)
    boot_words.last_messages(aws, fleet, inventory.instances(aws, fleet))
    aws.ec2(fleet.home).get_console_output(InstanceId=nodes[0].id)  # a refusal is not reported
    reap.reap(aws, fleet.aws_regions, now=max(node.launched for node in nodes))
    return down(aws, fleet, drain=lambda _: None)


def test_the_callers_policy_allows_all_actions_from_up_to_down(cloud: Account) -> None:
    own = moto_account.manager_instance(cloud)
    with moto_iam.allowed(policy_of()) as aws:
        assert raised_watched_and_removed(aws, own) == []


def test_the_daily_policy_allows_the_use_of_a_fleet_without_changes_to_iam(cloud: Account) -> None:
    own, candidates = moto_account.manager_instance(cloud), choice.candidates(cloud.aws, MINE)
    up.up(cloud.aws, MINE, supplies_of(own), candidates, 1)
    with moto_iam.allowed(policy.daily_policy(MINE, ACCOUNT)) as aws:
        nodes = up.up(aws, MINE, supplies_of(own, token="renewed"), candidates, 2).instances
        node_lease.renew(aws, MINE, nodes)
        changed = mock.patch.object(policy, "node_policy", return_value={})
        with changed, pytest.raises(FleetError, match="iam"):
            up.up(aws, MINE, supplies_of(own), candidates, 2)
        left = down(aws, MINE, drain=lambda _: None)
    assert len(nodes) == 2
    assert any("role" in line for line in left)
    assert cloud.client("iam").list_roles()["Roles"]


@pytest.mark.parametrize("document", [policy.caller_policy, policy.daily_policy])
def test_only_the_reap_policy_allows_the_end_of_other_fleets_nodes(document: Any) -> None:
    arn = f"arn:aws:ec2:eu-west-1:{ACCOUNT}:instance/i-1"
    (own,) = grants(document(MINE, ACCOUNT), "ec2:TerminateInstances", arn)
    assert own["Condition"] == {"StringEquals": {"aws:ResourceTag/trialfleet:fleet": "f"}}
    (any_fleets,) = grants(policy.reap_policy(MINE, ACCOUNT), "ec2:TerminateInstances", arn)
    assert any_fleets["Condition"] == {"StringLike": {"aws:ResourceTag/trialfleet:fleet": "*"}}


def test_the_policy_of_reap_is_enough_to_reap_and_for_nothing_else(cloud: Account) -> None:
    candidates = choice.candidates(cloud.aws, MINE)
    (node,) = up.up(cloud.aws, MINE, moto_account.inputs(), candidates, 1).instances
    with moto_iam.allowed(policy.reap_policy(MINE, ACCOUNT)) as aws:
        over = reap.reap(aws, MINE.aws_regions, now=node.launched + timedelta(days=30))
        for refused in (
            lambda: aws.iam(MINE.home).get_role(RoleName="trialfleet-f"),
            lambda: aws.s3(MINE.home).list_objects_v2(Bucket=names.bucket_name("f", ACCOUNT)),
            lambda: aws.ec2(MINE.home).describe_subnets(),
            lambda: aws.ec2(MINE.home).stop_instances(InstanceIds=[node.id]),
        ):
            with pytest.raises(ClientError, match=r"denied|not authorized|AccessDenied"):
                refused()
    assert [one.id for one in over.instances] == [node.id]
    assert cloud.instances() == []


def test_the_daily_policy_does_not_allow_deletion_of_the_bucket(cloud: Account) -> None:
    candidates = choice.candidates(cloud.aws, MINE)
    up.up(cloud.aws, MINE, moto_account.inputs(), candidates, 0)
    with moto_iam.allowed(policy.daily_policy(MINE, ACCOUNT)) as aws:
        left = down(aws, MINE, drain=lambda _: None)
        with pytest.raises(FleetError, match="to call DeleteBucket is denied"):
            bucket.remove(aws, MINE, ACCOUNT)
    assert any(line.startswith("left: in S3: s3://trialfleet-f-") for line in left)
    assert [one["Name"] for one in cloud.client("s3").list_buckets()["Buckets"]]


@pytest.mark.parametrize("kind", ["instance", "network-interface", "volume", "security-group"])
def test_the_daily_policy_allows_changes_only_to_the_fleets_resources(kind: str) -> None:
    document = policy.daily_policy(MINE, ACCOUNT)
    arn = f"arn:aws:ec2:eu-west-1:{ACCOUNT}:{kind}/x-1"
    changing = "ec2:(?!Describe|Get|RunInstances|CreateFleet)"
    changes = {one for one in allowed_actions(document) if re.match(changing, one)}
    for action in changes:  # launched resources have their own statement, and no tag yet
        for one in grants(document, action, arn):
            conditions = json.dumps(one.get("Condition", {}))
            assert names.FLEET_TAG in conditions or "ec2:CreateAction" in conditions, action


def test_the_policy_is_enough_for_a_fleet_in_a_bucket_of_the_users(cloud: Account) -> None:
    place = {"LocationConstraint": moto_account.HOME}
    cloud.client("s3").create_bucket(Bucket="theirs", CreateBucketConfiguration=place)
    fleet, own = MINE.model_copy(update={"bucket": "theirs"}), moto_account.manager_instance(cloud)
    with moto_iam.allowed(policy_of(fleet)) as aws:
        assert raised_watched_and_removed(aws, own, fleet) == []
    assert cloud.client("s3").list_buckets()["Buckets"][0]["Name"] == "theirs"


@pytest.mark.parametrize(
    "action",
    [
        "ec2:CreateFleet",
        "ec2:RunInstances",
        "ec2:DescribeSpotPriceHistory",
        "ec2:ModifyNetworkInterfaceAttribute",
        "iam:PutRolePolicy",
        "ssm:PutParameter",
        "s3:PutObject",
    ],
)
def test_a_missing_permission_is_reported(cloud: Account, action: str) -> None:
    own = moto_account.manager_instance(cloud)
    with moto_iam.allowed(without(action)) as aws, pytest.raises(FleetError) as error:
        raised_watched_and_removed(aws, own)
    assert re.search(rf"{action}|{action.partition(':')[2]} is denied", str(error.value))


def test_the_callers_policy_names_what_is_called_and_nothing_else(cloud: Account) -> None:
    own, home = moto_account.manager_instance(cloud), cloud.client("ec2")
    cloud.faults.calls.clear()
    with mock.patch.object(network, "SSH", 23):  # a rule of yesterday's, to be revoked
        up.prepare(cloud.aws, KEYED, supplies_of(own), choice.candidates(cloud.aws, KEYED))
    assert raised_watched_and_removed(cloud.aws, own) == []
    assert home.describe_security_groups()["SecurityGroups"]
    called = {action for call in cloud.faults.calls for action in IAM_NAMES.get(call, [call])}
    assert called | UNCALLED == allowed_actions(policy_of())


GANGS = moto_account.fleet(instance_types=["g5.8xlarge"], gangs={}, nodes={"max": 2})
GANGS_CALL = {
    *("ec2:AuthorizeSecurityGroupEgress", "ec2:CreatePlacementGroup"),
    "ec2:RevokeSecurityGroupEgress",
}


def test_gangs_add_permissions_for_their_own_resources_only(cloud: Account) -> None:
    def granted(fleet: Fleet) -> set[str]:
        return allowed_actions(policy_of(fleet))

    without_gangs = GANGS.model_copy(update={"gangs": None})
    assert granted(GANGS) - granted(without_gangs) == GANGS_CALL
    assert granted(without_gangs) <= granted(GANGS)
    plain_gangs = GANGS.model_copy(update={"gangs": Gangs(placement_group=False, efa=False)})
    assert granted(plain_gangs) == granted(without_gangs)
    own = moto_account.manager_instance(cloud)
    cloud.faults.calls.clear()
    assert raised_watched_and_removed(cloud.aws, own, GANGS) == []
    assert set(cloud.faults.calls) >= GANGS_CALL - {"ec2:RevokeSecurityGroupEgress"}


def test_the_policy_is_enough_for_the_life_of_a_fleet_with_gangs(cloud: Account) -> None:
    own = moto_account.manager_instance(cloud)
    with moto_iam.allowed(policy_of(GANGS)) as aws:
        up.prepare(aws, GANGS, supplies_of(own), choice.candidates(aws, GANGS))
        no_efa = GANGS.model_copy(update={"gangs": Gangs(efa=False)})
        up.prepare(aws, no_efa, supplies_of(own), choice.candidates(aws, no_efa))
        assert raised_watched_and_removed(aws, own, GANGS) == []


def test_only_tagged_placement_groups_can_be_made_used_or_removed() -> None:
    arn = f"arn:aws:ec2:eu-west-1:{ACCOUNT}:placement-group/trialfleet-f"
    tag = {"aws:RequestTag/trialfleet:fleet": "f", "aws:RequestedRegion": ["eu-west-1"]}
    document = policy_of(GANGS)
    (make,) = grants(document, "ec2:CreatePlacementGroup", arn)
    assert make["Condition"]["StringEquals"] == tag
    for action in ("ec2:RunInstances", "ec2:DeletePlacementGroup"):
        (own,) = grants(document, action, arn)
        assert own["Condition"]["StringEquals"] == {"aws:ResourceTag/trialfleet:fleet": "f"}
    (tagged,) = grants(document, "ec2:CreateTags", arn)
    assert "CreatePlacementGroup" in tagged["Condition"]["StringEquals"]["ec2:CreateAction"]


KEYED = MINE.model_copy(update={"key_pair": "k"})
UNCALLED = {  # checked by IAM with another call, or never required by moto
    "ec2:DeletePlacementGroup",  # of a fleet that had gangs before
    *("ec2:CreateTags", "iam:CreateServiceLinkedRole", "iam:PassRole", "iam:TagInstanceProfile"),
    *("iam:TagRole", "pricing:GetProducts", "servicequotas:GetServiceQuota"),
    *("ssm:AddTagsToResource",),
}
IAM_NAMES = {
    "pricing:GetProducts": ["pricing:GetProducts"],
    "s3:DeleteObjects": ["s3:DeleteObject"],
    "s3:GetBucketLifecycleConfiguration": ["s3:GetLifecycleConfiguration"],
    "s3:GetPublicAccessBlock": ["s3:GetBucketPublicAccessBlock"],
    "s3:HeadBucket": ["s3:ListBucket"],
    "s3:HeadObject": ["s3:GetObject"],
    "s3:ListObjectsV2": ["s3:ListBucket"],
    "s3:PutBucketLifecycleConfiguration": ["s3:PutLifecycleConfiguration"],
    "s3:PutPublicAccessBlock": ["s3:PutBucketPublicAccessBlock"],
    "service-quotas:GetServiceQuota": ["servicequotas:GetServiceQuota"],
    "sts:GetCallerIdentity": [],  # it needs no permission
}


def test_resources_that_ec2_makes_must_carry_the_fleets_tag() -> None:
    tagged = {"aws:RequestTag/trialfleet:fleet": "f", "aws:RequestedRegion": ["eu-west-1"]}
    for called in ("Make", "Launch"):
        assert statement(called)["Condition"] == {"StringEquals": tagged}


@pytest.mark.parametrize(
    "action",
    [
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:DeleteLaunchTemplate",
        "ec2:DeleteSecurityGroup",
        "ec2:GetConsoleOutput",
    ],
)
def test_existing_resources_are_changed_only_if_they_carry_the_tag(action: str) -> None:
    for kind in ("instance", "launch-template", "security-group"):
        arn = f"arn:aws:ec2:eu-west-1:{ACCOUNT}:{kind}/x-1"
        for one in grants(policy_of(), action, arn):
            assert one["Condition"]["StringEquals"] == {"aws:ResourceTag/trialfleet:fleet": "f"}


def test_only_the_lease_and_price_tags_can_be_changed_after_the_launch() -> None:
    arn = f"arn:aws:ec2:eu-west-1:{ACCOUNT}:instance/i-1"
    new, later = grants(policy_of(), "ec2:CreateTags", arn)
    assert set(new["Condition"]["StringEquals"]) == {"ec2:CreateAction"}
    assert later["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"] == [
        names.EXPIRES_TAG,
        names.PRICE_TAG,
    ]


@pytest.mark.parametrize(
    ("action", "arn"),
    [
        ("iam:PutRolePolicy", f"arn:aws:iam::{ACCOUNT}:role/somebody"),
        ("iam:PutRolePolicy", f"arn:aws:iam::{ACCOUNT}:role/trialfleet-other"),
        ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin"),
        ("s3:DeleteBucket", "arn:aws:s3:::theirs"),
        ("s3:GetObject", "arn:aws:s3:::theirs/secret"),
        ("s3:GetObject", "arn:aws:s3:::theirs/fleet/other/log/i-1.log"),
        ("ssm:GetParameter", f"arn:aws:ssm:eu-west-1:{ACCOUNT}:parameter/password"),
        ("ssm:GetParameter", f"arn:aws:ssm:eu-west-1:{ACCOUNT}:parameter/trialfleet/g/node-token"),
        ("iam:CreateUser", f"arn:aws:iam::{ACCOUNT}:user/me"),
        ("ec2:StopInstances", f"arn:aws:ec2:eu-west-1:{ACCOUNT}:instance/i-1"),
    ],
)
def test_resources_of_others_are_out_of_reach(action: str, arn: str) -> None:
    fleet = MINE.model_copy(update={"bucket": "theirs"})
    assert grants(policy_of(fleet), action, arn) == []


def test_a_fleet_with_a_set_image_and_subnets_may_use_only_these() -> None:
    fleet = moto_account.fleet(
        ami={"eu-west-1": "ami-0123456789abcdef0"}, subnets=["subnet-0123456789abcdef0"]
    )
    used = statement("LaunchOn", fleet)["Resource"]
    assert f"arn:aws:ec2:*:{ACCOUNT}:subnet/subnet-0123456789abcdef0" in used
    assert "arn:aws:ec2:*::image/ami-0123456789abcdef0" in used
    assert not any(arn.endswith(("subnet/*", "image/*")) for arn in used)
    assert not any(one["Sid"] == "Image" for one in policy_of(fleet)["Statement"])


def test_an_image_in_a_parameter_adds_permission_to_read_the_parameter() -> None:
    theirs = Fleet(name="f", aws_regions=["eu-west-1"])
    ours = theirs.model_copy(update={"ami": "ssm:/images/gpu-{architecture}"})
    assert statement("Image", theirs)["Resource"][0].startswith(
        "arn:aws:ssm:*::parameter/aws/service/deeplearning/ami/*/"
    )
    assert statement("Image", ours)["Resource"] == [
        f"arn:aws:ssm:*:{ACCOUNT}:parameter/images/gpu-*"
    ]


def test_a_fleet_without_spot_gets_no_permission_for_the_spot_role() -> None:
    fleet = MINE.model_copy(update={"spot": MINE.spot.model_copy(update={"share": 0.0})})

    def services(document: Any) -> list[str]:
        [found] = [one for one in document["Statement"] if one["Sid"] == "First"]
        assert found["Action"] == ["iam:CreateServiceLinkedRole"]
        return list(found["Condition"]["StringEquals"]["iam:AWSServiceName"])

    assert services(policy_of(fleet)) == ["ec2fleet.amazonaws.com"]
    assert services(policy_of()) == ["ec2fleet.amazonaws.com", "spot.amazonaws.com"]


@pytest.mark.parametrize(
    ("aws_region", "partition"), [("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn")]
)
def test_arns_are_of_the_regions_partition(aws_region: str, partition: str) -> None:
    fleet = Fleet(name="f", aws_regions=[aws_region])
    for document in (policy_of(fleet), policy.node_policy(fleet, ACCOUNT)):
        arns = [arn for one in document["Statement"] for arn in one["Resource"] if arn != "*"]
        assert {arn.split(":")[1] for arn in arns} <= {partition, "*"}


FOUR = ["ap-northeast-1", "ap-southeast-2", "eu-central-1", "us-east-1"]
CHINA, GOVERNMENT = ["cn-north-1", "cn-northwest-1"], ["us-gov-east-1", "us-gov-west-1"]


@pytest.mark.parametrize("bucket", [None, "b" * 63])
@pytest.mark.parametrize(("regions", "key"), [(FOUR, 255), (CHINA, 255), (GOVERNMENT, 128)])
def test_the_largest_policies_are_ones_that_iam_takes(
    regions: list[str], key: int, bucket: str | None
) -> None:
    fleet = Fleet(
        name="n" * 32,
        aws_regions=regions,
        bucket=bucket,
        key_pair="k" * key,
        ssm=True,
        gangs=Gangs(),
    )
    for name, document in policies(fleet, ACCOUNT).items():
        assert len(json.dumps(document, separators=(",", ":"))) <= MOST_CHARACTERS, name
        called = [one["Sid"] for one in document["Statement"]]
        assert len(called) == len(set(called))


def test_the_policy_for_each_day_fits_into_a_managed_policy_with_all_regions() -> None:
    regions = boto3.Session().get_available_regions("ec2")
    fleet = Fleet(name="f", aws_regions=regions, ssm=True, gangs=Gangs())
    daily = policies(fleet, ACCOUNT)["daily"]
    assert len(regions) > 30
    assert len(json.dumps(daily, separators=(",", ":"))) <= MOST_CHARACTERS


def test_a_pattern_allows_no_more_than_the_actions_that_are_meant() -> None:
    """The patterns mean what AWS calls so today, but for S3, whose names in IAM are others."""
    fleet = GANGS.model_copy(update={"ssm": True})
    documents = policies(fleet, ACCOUNT).values()
    actions = {one for each in documents for part in each["Statement"] for one in part["Action"]}
    assert {one for one in actions if "*" in one} == MEANT.keys()
    for pattern, meant in MEANT.items():
        service, _, words = pattern.partition(":")
        if service != "s3":
            client = boto3.client(service, region_name=moto_account.HOME)  # type: ignore[call-overload]
            found = fnmatch.filter(client.meta.service_model.operation_names, words)
            assert sorted(f"{service}:{one}" for one in found) == sorted(meant)


def test_a_node_reads_its_program_and_the_token_and_writes_its_log(cloud: Account) -> None:
    s3, ssm = cloud.client("s3"), cloud.client("ssm")
    bucket, token = names.bucket_name("f", ACCOUNT), names.token_parameter("f")
    place = {"LocationConstraint": moto_account.HOME}
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
    for key in ("fleet/f/bundle-ab.tar.gz", "fleet/f/costs.json", "fleet/f/log/i-2.log"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    ssm.put_parameter(Name=token, Value="t", Type="SecureString")
    with moto_iam.allowed(policy.node_policy(MINE, ACCOUNT), "node") as aws:
        node = aws.s3(MINE.home)
        node.get_object(Bucket=bucket, Key="fleet/f/bundle-ab.tar.gz")
        node.put_object(Bucket=bucket, Key="fleet/f/log/i-1.log", Body=b"x")
        aws.ssm(MINE.home).get_parameter(Name=token, WithDecryption=True)
        for refused in (
            lambda: node.get_object(Bucket=bucket, Key="fleet/f/costs.json"),
            lambda: node.get_object(Bucket=bucket, Key="fleet/f/log/i-2.log"),
            lambda: node.put_object(Bucket=bucket, Key="fleet/f/bundle-ab.tar.gz", Body=b"bad"),
            lambda: node.list_objects_v2(Bucket=bucket),
            lambda: aws.ssm(MINE.home).put_parameter(Name=token, Value="u", Overwrite=True),
            lambda: aws.ec2(MINE.home).describe_instances(),
        ):
            with pytest.raises(ClientError, match=r"denied|not authorized|AccessDenied"):
                refused()


@pytest.mark.parametrize(
    ("aws_region", "service"),
    [("eu-west-1", "ec2.amazonaws.com"), ("cn-north-1", "ec2.amazonaws.com.cn")],
)
def test_only_ec2_can_assume_the_nodes_role(aws_region: str, service: str) -> None:
    trust = policy.node_trust(Fleet(name="f", aws_regions=[aws_region]))
    assert [one["Principal"] for one in trust["Statement"]] == [{"Service": service}]
