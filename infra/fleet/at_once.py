"""One call for all instances of a region, some of which may be gone meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from trialfleet.infra.fleet.aws import Aws, asking, code_of
from trialfleet.infra.fleet.machines import Instance

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client

GONE = {"InvalidInstanceID.NotFound", "InvalidID"}
Call = Callable[["EC2Client", list[str]], object]


def at_once(aws: Aws, instances: Iterable[Instance], doing: str, call: Call) -> None:
    """Make a call for instances, region by region; those that are gone are passed over.

    Args:
        aws: the account.
        instances: which.
        doing: what the call does, in words that the instances' ids follow.
        call: takes a region's EC2 and ids; done again, it must do no harm.

    Raises:
        FleetError: AWS refuses.
    """
    by_region: dict[str, list[str]] = {}
    for instance in instances:
        by_region.setdefault(instance.aws_region, []).append(instance.id)
    for aws_region, ids in by_region.items():
        with asking(f"{doing} {', '.join(ids)}"):
            _of_those_that_live(call, aws.ec2(aws_region), ids)


def _of_those_that_live(call: Call, ec2: EC2Client, ids: list[str]) -> None:
    """Name all at once; where one is gone AWS refuses them all, so then one by one."""
    try:
        call(ec2, ids)
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        for one in ids if len(ids) > 1 else ():
            _of_those_that_live(call, ec2, [one])
