"""`fleet reap`: termination of instances with expired leases, of all fleets of the AWS account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.inventory import Listing
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.lifecycle import down
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.machines import Instance

LONGEST = timedelta(minutes=10_080)  # the longest lease, assumed for an instance without the tag


def list_expired(aws: Aws, aws_regions: Sequence[str], *, now: datetime | None = None) -> Listing:
    """List the account's living fleet instances in `aws_regions` whose lease has expired."""
    moment = now or datetime.now(UTC)
    anybodys: Any = [{"Name": "tag-key", "Values": [names.FLEET_TAG]}]
    found = inventory.list_regions(aws, aws_regions, anybodys)
    over = [one for one in found.instances if one.is_alive and _end(one) < moment]
    return replace(found, instances=over)


def reap(
    aws: Aws,
    aws_regions: Sequence[str],
    progress: Progress = lambda _: None,
    *,
    now: datetime | None = None,
) -> Listing:
    """Terminate the account's fleet instances whose lease has expired, and return them."""
    over = list_expired(aws, aws_regions, now=now)
    for instance in over.instances:
        fleet = instance.tags.get(names.FLEET_TAG, "")
        progress(
            f"{instance.id} ({instance.type} in {instance.zone}, fleet {fleet}): its lease ended "
            f"{names.time_text(_end(instance))}"
        )
    down.terminate(aws, over.instances)
    return over


def _end(instance: Instance) -> datetime:
    return instance.expires or instance.launched + LONGEST
