"""The fleet's S3 bucket, with the nodes' program, the record of costs and the nodes' boot logs.

If the user names a bucket, it must exist. trialfleet doesn't change its settings, and only uses
keys that begin with the fleet's prefix. Otherwise trialfleet creates a bucket, which S3 encrypts by
default. trialfleet recognises its own bucket by the name, because a crash may leave a new bucket
without a tag.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import retries, tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, error_code, lacks_policy, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import PublicAccessBlockConfigurationTypeDef

LOG_DAYS = 30  # days for which a node's log is kept
MISSING = {"404", "NoSuchBucket", "NotFound"}
UNSET = {
    "NoSuchTagSet",
    "NoSuchPublicAccessBlockConfiguration",
    "NoSuchLifecycleConfiguration",
}
_CLOSED: PublicAccessBlockConfigurationTypeDef = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}


def fleet_bucket(fleet: Fleet, account: str) -> str:
    """Return the name of the fleet's bucket: the user's or, if none is named, trialfleet's own."""
    return fleet.bucket or names.bucket_name(fleet.full_name, account)


def known_buckets(fleet: Fleet, account: str) -> dict[str, None]:
    """Return the names of all buckets that the fleet may have used, the present one first.

    If the user named no bucket earlier, the bucket that trialfleet created then may still exist.
    """
    own = names.bucket_name(fleet.full_name, account)
    return dict.fromkeys((fleet.bucket or own, own))


def ensure(aws: Aws, fleet: Fleet, account: str) -> str:
    """Make sure that the fleet's bucket exists, and return its name.

    A bucket that trialfleet created also gets the right settings. InputError if the user's bucket
    is missing, or if a bucket is not in the fleet's first AWS region, where nodes look for it.
    """
    name = fleet_bucket(fleet, account)
    with asking(f"the bucket {name}"):
        s3 = aws.s3(fleet.home)
        found = _region(s3, name, account)
        if found:
            _check_region(fleet, name, found)
        if fleet.bucket and not found:
            raise InputError(
                f"bucket: {name} doesn't exist: create it, or leave out `bucket:`; then trialfleet "
                "creates a bucket"
            )
        if not fleet.bucket:
            if not found:
                _make(s3, name, fleet.home)
            settle = partial(_settle, s3, fleet, name, is_new=not found)
            retries.retry(settle, "NoSuchBucket")
    return name


def put(aws: Aws, fleet: Fleet, bucket: str, key: str, data: bytes) -> None:
    """Store `data` under the key `key`. An object that exists already is not replaced."""
    s3 = aws.s3(fleet.home)
    with asking(f"s3://{bucket}/{key}"):
        if not or_none(lambda: s3.head_object(Bucket=bucket, Key=key), *MISSING):
            retries.retry(lambda: s3.put_object(Bucket=bucket, Key=key, Body=data), "NoSuchBucket")


def exists(s3: S3Client, name: str, account: str) -> bool:
    """Return whether `account` has the bucket `name`. FleetError if another account has it."""
    return _region(s3, name, account) is not None


def _region(s3: S3Client, name: str, account: str) -> str | None:
    try:
        found = or_none(lambda: s3.head_bucket(Bucket=name, ExpectedBucketOwner=account), *MISSING)
    except ClientError as error:
        if error_code(error) != "403":  # an answer without a body: AWS says no more
            raise
        _raise_overriding_denial(s3, name, account)
        raise FleetError(
            f"the bucket {name} belongs to another account, or the permission s3:ListBucket is "
            "denied; `trialfleet fleet plan --policy` prints the policy that is needed"
        ) from error
    return None if found is None else found.get("BucketRegion", s3.meta.region_name)


def _raise_overriding_denial(s3: S3Client, name: str, account: str) -> None:
    """Try to list the bucket. Raise AWS's refusal, unless an additional policy would lift it.

    AWS explains a refusal to list, but not a refusal of a HEAD request. Both requests need the same
    permission.
    """
    try:
        s3.list_objects_v2(Bucket=name, ExpectedBucketOwner=account, MaxKeys=1)
    except ClientError as error:
        if not lacks_policy(error):
            raise


def objects(s3: S3Client, name: str, prefix: str) -> list[str]:
    """List the keys in the bucket `name` that begin with `prefix`."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def noted_regions(aws: Aws, fleet: Fleet) -> list[str]:
    """List the AWS regions that the fleet has used, the region of the bucket first.

    Regions that the fleet's file no longer names are included. The list is empty before the first
    `fleet up` and after `fleet down`.
    """
    s3, account = aws.s3(fleet.home), aws.account(fleet.home)
    prefix, noted = names.regions_prefix(fleet.full_name), dict[str, None]()
    for name in known_buckets(fleet, account):
        with asking(f"the bucket {name}"):
            home = _region(s3, name, account)
            if home and (keys := objects(s3, name, prefix)):
                noted |= dict.fromkeys([home, *(key.removeprefix(prefix) for key in keys)])
    return list(noted)


def region_note(aws: Aws, fleet: Fleet, aws_region: str) -> str:
    """Return the URL of the S3 object that marks an AWS region as used by the fleet."""
    name = fleet_bucket(fleet, aws.account(fleet.home))
    return f"s3://{name}/{names.regions_prefix(fleet.full_name)}{aws_region}"


def remaining_objects(aws: Aws, fleet: Fleet, account: str) -> list[str]:
    """Return the S3 URLs of the bucket that trialfleet made and of the fleet's other objects.

    These other objects are in the bucket that the fleet's file names.
    """
    s3, own = aws.s3(fleet.home), names.bucket_name(fleet.full_name, account)
    found = [f"s3://{own}"] if exists(s3, own, account) else []
    if fleet.bucket and exists(s3, fleet.bucket, account):
        keys = objects(s3, fleet.bucket, names.prefix(fleet.full_name))
        found += [f"s3://{fleet.bucket}/{key}" for key in keys]
    return found


def remove(aws: Aws, fleet: Fleet, account: str) -> None:
    """Delete the fleet's objects, and the bucket that trialfleet created for the fleet.

    FleetError if something can't be deleted, such as a bucket that has other objects.
    """
    s3, own = aws.s3(fleet.home), names.bucket_name(fleet.full_name, account)
    for name in known_buckets(fleet, account):
        with asking(f"the bucket {name}"):
            if exists(s3, name, account):
                _empty(s3, name, names.prefix(fleet.full_name))
                if name == own:
                    _delete(s3, own)


def _check_region(fleet: Fleet, name: str, found: str) -> None:
    if found == fleet.home:
        return
    instead = (
        f"name a bucket in {fleet.home}"
        if fleet.bucket
        else "take the fleet down with `trialfleet fleet down`, which deletes the bucket"
    )
    raise InputError(
        f"the fleet's bucket {name} is in {found}, but must be in {fleet.home}, the first of the "
        f"fleet's `aws_regions`: list {found} first, or {instead}"
    )


def _make(s3: S3Client, name: str, aws_region: str) -> None:
    where = {"CreateBucketConfiguration": {"LocationConstraint": aws_region}}
    settings: Any = {} if aws_region == "us-east-1" else where
    make = partial(s3.create_bucket, Bucket=name, **settings)
    deleting = "OperationAborted"  # a bucket of that name is still being deleted
    or_none(lambda: retries.retry(make, deleting, retries.LATER), "BucketAlreadyOwnedByYou")


def _settle(s3: S3Client, fleet: Fleet, name: str, *, is_new: bool) -> None:
    """Correct the bucket's settings. If the bucket is new, set them without reading them first."""

    def setting(get: Callable[..., Any], key: str) -> Any:
        return None if is_new else or_none(lambda: get(Bucket=name)[key], *UNSET)

    own = tags.own_tags(fleet)
    rules: Any = [
        {
            "Expiration": {"Days": LOG_DAYS},
            "ID": "trialfleet-logs",
            "Filter": {"Prefix": names.log_prefix(fleet.full_name)},
            "Status": "Enabled",
        }
    ]
    tagged = setting(s3.get_bucket_tagging, "TagSet")
    if tags.table(tagged) != tags.table(own):
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": own})
    if setting(s3.get_public_access_block, "PublicAccessBlockConfiguration") != _CLOSED:
        s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=_CLOSED)
    if setting(s3.get_bucket_lifecycle_configuration, "Rules") != rules:
        s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": rules})


def _empty(s3: S3Client, name: str, prefix: str) -> None:
    keys = objects(s3, name, prefix)
    for first in range(0, len(keys), 1_000):
        batch: Any = [{"Key": key} for key in keys[first : first + 1_000]]
        answer = s3.delete_objects(Bucket=name, Delete={"Objects": batch, "Quiet": True})
        for kept in answer.get("Errors", []):
            raise FleetError(f"s3://{name}/{kept['Key']} can't be deleted: {kept['Message']}")


def _delete(s3: S3Client, name: str) -> None:
    try:
        or_none(lambda: s3.delete_bucket(Bucket=name), *MISSING)
    except ClientError as error:
        if error_code(error) != "BucketNotEmpty":
            raise
        raise FleetError(
            f"the bucket {name} was kept, because it also holds objects that are not the fleet's: "
            f"aws s3 rb --force s3://{name} deletes the bucket with all its objects"
        ) from error
