"""One call for all instances of a region; one that is gone, or refused, keeps no other from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import DENIED, Aws, asking, code_of
from trialfleet.infra.fleet.spec.machines import Instance

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client

GONE = {"InvalidInstanceID.NotFound", "InvalidID"}
Call = Callable[["EC2Client", list[str]], object]


def call_by_region(aws: Aws, instances: Iterable[Instance], doing: str, call: Call) -> None:
    """Make a call for instances, region by region; those that are gone are passed over.

    `doing` says what the call does, in words that the instances' ids follow. Done again, the call
    must do no harm.

    Raises:
        FleetError: AWS refuses for some; it was called for all others.
    """
    by_region: dict[str, list[str]] = {}
    for instance in instances:
        by_region.setdefault(instance.aws_region, []).append(instance.id)
    refusals = [
        str(refusal)
        for aws_region, ids in by_region.items()
        for refusal in _refusals(call, aws.ec2(aws_region), ids, doing)
    ]
    if refusals:
        raise FleetError("; ".join(refusals))


def _refusals(call: Call, ec2: EC2Client, ids: list[str], doing: str) -> Iterator[FleetError]:
    """Name all at once; where AWS refuses one it refuses them all, so then one by one."""
    try:
        with asking(f"{doing} {', '.join(ids)}"):
            call(ec2, ids)
    except FleetError as refusal:
        error = refusal.__cause__
        code = code_of(error) if isinstance(error, ClientError) else ""
        if len(ids) > 1 and code and code not in DENIED:
            for one in ids:
                yield from _refusals(call, ec2, [one], doing)
        elif code not in GONE:
            yield refusal
