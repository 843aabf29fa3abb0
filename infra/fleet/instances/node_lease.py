"""The leases of EC2 nodes, and how the manager renews them.

A node shuts down when its lease ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances.batches import call_by_region
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import TagTypeDef

# A lease is renewed when less than RENEWED of its length is left. A short lease is renewed earlier,
# but not before LEAST has passed, so that nodes survive an OUTAGE in which AWS refuses all calls.
RENEWED = 2 / 3
OUTAGE, LEAST = timedelta(minutes=12), timedelta(minutes=1)


def instances_to_renew(
    fleet: Fleet, instances: Iterable[Instance], now: datetime
) -> list[Instance]:
    """Return all living instances if the lease of at least one must be renewed now; else none.

    Renewing a thousand leases takes no longer than renewing one.
    """
    length = timedelta(minutes=fleet.lease_minutes)
    soon = now + max(RENEWED * length, min(OUTAGE, length - LEAST))
    living = [instance for instance in instances if instance.is_alive]
    return living if any(i.expires is None or i.expires < soon for i in living) else []


def renew(
    aws: Aws, fleet: Fleet, instances: Iterable[Instance], *, now: datetime | None = None
) -> list[Instance]:
    """Renew the leases of `instances`. Return the instances with their new `expires`."""
    instances = list(instances)
    end = (now or datetime.now(UTC)) + timedelta(minutes=fleet.lease_minutes)
    tag: TagTypeDef = {"Key": names.EXPIRES_TAG, "Value": names.time_text(end)}
    call_by_region(
        aws, instances, "the lease of", lambda ec2, ids: ec2.create_tags(Resources=ids, Tags=[tag])
    )
    return [replace(instance, expires=end) for instance in instances]
