"""AWS calls for many instances. A missing or refused instance does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from trialfleet.errors import FleetError, join_names
from trialfleet.infra.fleet.aws.clients import DENIED, Aws, asking, error_code
from trialfleet.infra.fleet.spec.machines import Instance

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client

AT_ONCE = 1_000  # EC2's maximum of instances in a call of CreateTags or TerminateInstances
# Errors about the call, not about one of its instances.
OF_THE_CALL = {
    *DENIED,
    *("RequestLimitExceeded", "Throttling", "ThrottlingException"),
    *("AuthFailure", "ExpiredToken", "InvalidClientTokenId", "OptInRequired", "RequestExpired"),
}
GONE = {"InvalidInstanceID.NotFound", "InvalidID"}
Call = Callable[["EC2Client", list[str]], object]


def call_by_region(aws: Aws, instances: Iterable[Instance], doing: str, call: Call) -> None:
    """Make an AWS call for many instances, except those that no longer exist.

    `call` gets a client of an AWS region and ids of instances there. It must be safe to repeat.
    `doing` describes the call in errors. If AWS refuses some instances, the call is still made for
    all others, and FleetError is raised at the end.
    """
    by_region: dict[str, list[str]] = {}
    for instance in instances:
        by_region.setdefault(instance.aws_region, []).append(instance.id)
    batches = [
        (aws.ec2(aws_region), ids[first : first + AT_ONCE])
        for aws_region, ids in by_region.items()
        for first in range(0, len(ids), AT_ONCE)
    ]
    with ThreadPoolExecutor(max(1, len(by_region))) as threads:  # a slow region delays no other
        found = threads.map(lambda of: list(_refusals(call, of[0], of[1], doing)), batches)
        refusals = [str(refusal) for each in found for refusal in each]
    if refusals:
        raise FleetError("; ".join(refusals))


def _refusals(call: Call, ec2: EC2Client, ids: list[str], doing: str) -> Iterator[FleetError]:
    """Make `call` for all `ids`, and yield AWS's refusals.

    One bad id makes AWS refuse the whole call. So after a refusal, each half of the ids is tried
    separately.
    """
    try:
        with asking(f"{doing} {join_names(ids, 4)}"):
            call(ec2, ids)
    except FleetError as refusal:
        error = refusal.__cause__
        code = error_code(error) if isinstance(error, ClientError) else ""
        if len(ids) > 1 and code and code not in OF_THE_CALL:
            half = len(ids) // 2
            yield from _refusals(call, ec2, ids[:half], doing)
            yield from _refusals(call, ec2, ids[half:], doing)
        elif code not in GONE:
            yield refusal
