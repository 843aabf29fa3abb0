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
    from types_boto3_ec2.type_defs import TagTypeDef


def renew(
    aws: Aws, fleet: Fleet, instances: Iterable[Instance], *, now: datetime | None = None
) -> None:
    """Let instances live on for the fleet's `lease_minutes`; pass over those that are gone."""
    end = (now or datetime.now(UTC)) + timedelta(minutes=fleet.lease_minutes)
    tag: TagTypeDef = {"Key": names.EXPIRES_TAG, "Value": names.at(end)}
    call_by_region(
        aws, instances, "the lease of", lambda ec2, ids: ec2.create_tags(Resources=ids, Tags=[tag])
    )
