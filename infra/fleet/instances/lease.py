"""Leases: how long an instance may live unless the manager says so again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances.batches import call_by_region
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import TagTypeDef


def renew(
    aws: Aws,
    fleet: Fleet,
    instances: Iterable[Instance],
    minutes: float | None = None,
    *,
    now: datetime | None = None,
) -> datetime:
    """Let instances live on, by default for the fleet's `lease_minutes`; return the lease's end.

    Those that are gone meanwhile are passed over.
    """
    length = timedelta(minutes=fleet.lease_minutes if minutes is None else minutes)
    end = (now or datetime.now(UTC)) + length
    tag: TagTypeDef = {"Key": names.EXPIRES_TAG, "Value": names.at(end)}

    def renewed(ec2: EC2Client, ids: list[str]) -> None:
        ec2.create_tags(Resources=ids, Tags=[tag])

    call_by_region(aws, instances, "the lease of", renewed)
    return end
