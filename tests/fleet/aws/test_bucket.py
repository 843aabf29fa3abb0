"""The fleet's own bucket, and the user's."""

from __future__ import annotations

import pytest

from tests.fleet.mock_aws.moto_account import ACCOUNT, AWAY, HOME, Account, fleet
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import bucket

OWN = f"trialfleet-f-{ACCOUNT}"


def create_users_bucket(cloud: Account, aws_region: str = HOME) -> None:
    where = {"CreateBucketConfiguration": {"LocationConstraint": aws_region}}
    s3 = cloud.client("s3", aws_region)
    s3.create_bucket(Bucket="users", **(where if aws_region != "us-east-1" else {}))
    s3.put_object(Bucket="users", Key="fleet/g/log/i-1.log", Body=b"")


@pytest.mark.parametrize("home", [HOME, AWAY])
def test_the_fleets_bucket_is_private_and_expires_logs(cloud: Account, home: str) -> None:
    assert bucket.ensure(cloud.aws, fleet(aws_regions=[home]), ACCOUNT) == OWN
    s3 = cloud.client("s3", home)
    assert s3.head_bucket(Bucket=OWN)["BucketRegion"] == home
    access = s3.get_public_access_block(Bucket=OWN)["PublicAccessBlockConfiguration"]
    assert (all(access.values()), len(access)) == (True, 4)
    [rule] = s3.get_bucket_lifecycle_configuration(Bucket=OWN)["Rules"]
    assert (rule["Filter"]["Prefix"], rule["Expiration"]["Days"]) == ("fleet/f/log/", 30)
    assert s3.get_bucket_tagging(Bucket=OWN)["TagSet"] == [
        {"Key": "trialfleet:fleet", "Value": "f"}
    ]


def test_a_correct_bucket_is_not_changed(cloud: Account) -> None:
    bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    cloud.faults.calls.clear()
    bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    assert all(call.startswith(("s3:Get", "s3:Head")) for call in cloud.faults.calls)


def test_public_access_to_the_fleets_bucket_is_blocked_again(cloud: Account) -> None:
    bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    cloud.client("s3").put_public_access_block(
        Bucket=OWN, PublicAccessBlockConfiguration={"BlockPublicAcls": True}
    )
    bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    access = cloud.client("s3").get_public_access_block(Bucket=OWN)
    assert all(access["PublicAccessBlockConfiguration"].values())


def test_a_name_that_is_still_being_deleted_is_waited_for(cloud: Account) -> None:
    cloud.faults.refuse("CreateBucket", "OperationAborted", times=2, status=409)
    cloud.faults.refuse("PutBucketTagging", "NoSuchBucket", times=1, status=404)
    bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    assert cloud.pauses == [2, 4, 0.5]
    assert f"bucket {OWN}" in cloud.holdings()


def test_another_accounts_bucket_is_not_used(cloud: Account) -> None:
    cloud.faults.refuse("HeadBucket", "403", "Forbidden", status=403)
    cloud.faults.refuse("ListObjectsV2", "AccessDenied", "Access Denied", times=1)
    with pytest.raises(FleetError, match=rf"{OWN} belongs to another account, or .*s3:ListBucket"):
        bucket.ensure(cloud.aws, fleet(), ACCOUNT)


def test_a_bucket_that_the_organization_denies_names_its_policy(cloud: Account) -> None:
    """S3's answer to HeadBucket has no body, so it gives no reason."""
    cloud.faults.refuse("HeadBucket", "403", "Forbidden", status=403)
    message = "User: x is not authorized to perform: s3:ListBucket on resource: y with an explicit "
    cloud.faults.refuse(
        "ListObjectsV2", "AccessDenied", f"{message}deny in a service control policy"
    )
    with pytest.raises(
        FleetError, match=r"s3:ListBucket is denied .* organization's admin"
    ) as error:
        bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    assert "plan --policy" not in str(error.value)


def test_a_users_bucket_keeps_its_settings_and_other_objects(cloud: Account) -> None:
    create_users_bucket(cloud)
    spec = fleet(bucket="users")
    assert bucket.ensure(cloud.aws, spec, ACCOUNT) == "users"
    bucket.put(cloud.aws, spec, "users", "fleet/f/bundle-1.tar.gz", b"1")
    assert cloud.faults.calls == ["s3:HeadBucket", "s3:HeadObject", "s3:PutObject"]
    assert bucket.remaining_objects(cloud.aws, spec, ACCOUNT) == [
        "s3://users/fleet/f/bundle-1.tar.gz"
    ]
    bucket.remove(cloud.aws, spec, ACCOUNT)
    assert [held for held in cloud.holdings() if "users" in held or "fleet/" in held] == [
        "bucket users",
        "object fleet/g/log/i-1.log",
    ]


def test_a_users_bucket_that_does_not_exist_is_not_made(cloud: Account) -> None:
    with pytest.raises(InputError, match=r"bucket: users doesn't exist"):
        bucket.ensure(cloud.aws, fleet(bucket="users"), ACCOUNT)
    assert "bucket users" not in cloud.holdings()


def test_a_users_bucket_in_another_region_is_refused(cloud: Account) -> None:
    create_users_bucket(cloud, "eu-central-1")
    with pytest.raises(InputError, match=r"is in eu-central-1.* list eu-central-1 first"):
        bucket.ensure(cloud.aws, fleet(bucket="users"), ACCOUNT)


def test_an_object_is_uploaded_once(cloud: Account) -> None:
    name = bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    for _ in range(2):
        bucket.put(cloud.aws, fleet(), name, "fleet/f/x", b"content")
    assert cloud.faults.calls.count("s3:PutObject") == 1
    held = cloud.client("s3").get_object(Bucket=name, Key="fleet/f/x")
    assert held["Body"].read() == b"content"


def test_more_objects_can_be_removed_than_one_call_lists_or_deletes(cloud: Account) -> None:
    bare = cloud.holdings()
    name = bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    for number in range(1_001):
        cloud.client("s3").put_object(Bucket=name, Key=f"fleet/f/log/{number}", Body=b"")
    bucket.remove(cloud.aws, fleet(), ACCOUNT)
    assert cloud.holdings() == bare
    bucket.remove(cloud.aws, fleet(), ACCOUNT)


def test_the_fleets_bucket_is_kept_while_it_holds_foreign_objects(cloud: Account) -> None:
    name = bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    for key in ("models/JFK", "fleet/f/bundle"):
        cloud.client("s3").put_object(Bucket=name, Key=key, Body=b"")
    with pytest.raises(FleetError, match="also holds objects that are not the fleet's"):
        bucket.remove(cloud.aws, fleet(), ACCOUNT)
    assert [held for held in cloud.holdings() if held.startswith("object")] == ["object models/JFK"]


def test_the_fleets_bucket_is_removed_after_a_move_to_a_users_bucket(cloud: Account) -> None:
    bucket.ensure(cloud.aws, fleet(), ACCOUNT)
    create_users_bucket(cloud)
    bucket.remove(cloud.aws, fleet(bucket="users"), ACCOUNT)
    assert bucket.remaining_objects(cloud.aws, fleet(bucket="users"), ACCOUNT) == []
