"""The names and tags of a fleet's resources in AWS.

All commands find a fleet's resources by `FLEET_TAG` or by their names, because only AWS records
which resources a fleet has.
"""

from __future__ import annotations

from datetime import UTC, datetime

FLEET_TAG = "trialfleet:fleet"  # the fleet's name, on all its resources
RUN_TAG = "trialfleet:run"  # the run, if any, for which the instance was requested
EXPIRES_TAG = "trialfleet:expires"  # end of the instance's lease, UTC; the node reads it from IMDS
PRICE_TAG = "trialfleet:price"  # USD per hour when the instance was requested
LAUNCH_TAG = "trialfleet:launch"  # name of the request that made the instance
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def resource_name(fleet: str) -> str:
    """Return the name of the fleet's role, instance profile, security groups and placement groups.

    The names of the fleet's launch templates begin with this name.
    """
    return f"trialfleet-{fleet}"


def bucket_name(fleet: str, account: str) -> str:
    """Return the name of the fleet's bucket if the user did not name a bucket."""
    return f"trialfleet-{fleet}-{account}"


def prefix(fleet: str) -> str:
    """Return the prefix of the S3 keys of the fleet's objects."""
    return f"fleet/{fleet}/"


def regions_prefix(fleet: str) -> str:
    """Return the prefix of the S3 keys that record which AWS regions the fleet has used."""
    return f"{prefix(fleet)}aws-regions/"


def log_prefix(fleet: str) -> str:
    """Return the prefix of the S3 keys of the nodes' logs."""
    return f"{prefix(fleet)}log/"


def log_key(fleet: str, instance: str) -> str:
    """Return the S3 key of the boot log of the node with this instance id."""
    return f"{log_prefix(fleet)}{instance}.log"


def token_parameter(fleet: str) -> str:
    """Return the name of the SSM parameter that holds the pool's token for nodes."""
    return f"/trialfleet/{fleet}/node-token"


def partition(aws_region: str) -> str:
    """Return the partition of an AWS region, as in ARNs: `aws`, `aws-cn` or `aws-us-gov`."""
    parts = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    return next((name for start, name in parts.items() if aws_region.startswith(start)), "aws")


def time_text(moment: datetime) -> str:
    """Return `moment` as a value of the tag `EXPIRES_TAG`."""
    return moment.astimezone(UTC).strftime(TIME_FORMAT)


def moment(text: str) -> datetime:
    """Return the time from a value of the tag `EXPIRES_TAG`. ValueError if it is invalid."""
    return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)


def price(usd: float) -> str:
    """Return `usd`, a price per hour, as a value of the tag `PRICE_TAG`."""
    return f"{usd:.6f}".rstrip("0").rstrip(".")
