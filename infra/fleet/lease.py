"""Leases: how long an instance may live unless the manager says so again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from botocore.exceptions import ClientError

from trialfleet.infra.fleet import names
from trialfleet.infra.fleet.aws import Aws, asking, code_of
from trialfleet.infra.fleet.machines import Instance
from trialfleet.infra.fleet.spec import Fleet

GONE = {"InvalidInstanceID.NotFound", "InvalidID"}


def renew(
    aws: Aws,
    fleet: Fleet,
    instances: Iterable[Instance],
    minutes: float | None = None,
    *,
    now: datetime | None = None,
) -> datetime:
    """Let instances live on; those that are gone meanwhile are passed over.

    Args:
        aws: the account.
        fleet: whose instances they are.
        instances: which.
        minutes: from now on; by default the fleet's `lease_minutes`.
        now: the moment; by default the present.

    Returns:
        The lease's end.

    Raises:
        FleetError: AWS refuses.
    """
    length = timedelta(minutes=fleet.lease_minutes if minutes is None else minutes)
    end = (now or datetime.now(UTC)) + length
    by_region: dict[str, list[str]] = {}
    for instance in instances:
        by_region.setdefault(instance.aws_region, []).append(instance.id)
    for aws_region, ids in by_region.items():
        with asking(f"the lease of {', '.join(ids)}"):
            _tag(aws, aws_region, ids, names.at(end))
    return end


def _tag(aws: Aws, aws_region: str, ids: list[str], end: str) -> None:
    """Tag all at once; where one of them is gone AWS refuses them all, so then one by one."""
    try:
        aws.ec2(aws_region).create_tags(
            Resources=ids, Tags=[{"Key": names.EXPIRES_TAG, "Value": end}]
        )
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        for one in ids if len(ids) > 1 else ():
            _tag(aws, aws_region, [one], end)
