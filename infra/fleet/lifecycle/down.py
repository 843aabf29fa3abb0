"""`fleet down`: remove the nodes, then their resources, in the order that AWS requires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from trialfleet.errors import FleetError, TrialfleetError
from trialfleet.infra.fleet.aws import (
    bucket,
    identity,
    launch_template,
    network,
    placement,
    retries,
    token_store,
)
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.batches import call_by_region
from trialfleet.infra.fleet.instances.inventory import Listing
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

REGIONAL: dict[str, Callable[[Aws, Fleet, str], None]] = {
    "launch templates": launch_template.remove,
    "security group": network.remove,
    "placement group": placement.remove,
}
TERMINATION = (2.0, *[5.0] * 120)  # ten minutes: machines with GPUs are slow to go


def down(
    aws: Aws,
    fleet: Fleet,
    drain: Callable[[list[Instance]], None],
    progress: Progress = lambda _: None,
    *,
    keep: Callable[[Listing], object] = lambda _: None,
) -> list[str]:
    """Delete all AWS resources of a fleet. Return a line for each error and for what is left.

    `drain` gets the living nodes before they are terminated, and `keep` AWS's last list of
    instances, to save the record of costs. The call waits up to ten minutes until the nodes are
    gone. After an error, it continues, but leaves the bucket, which a later `fleet down` needs to
    find the fleet's AWS regions. FleetError if the AWS credentials are missing or refused.
    """
    account = aws.account(fleet.home)  # which fails without credentials
    named, (fleet, unknown) = fleet.aws_regions, inventory.with_earlier_regions(aws, fleet)
    failures = [unknown] if unknown else []
    refusals = _end_nodes(aws, fleet, drain, progress)
    listing = _wait_until_gone(aws, fleet, progress, refusals)
    failures += refusals
    for aws_region, refusal in listing.silent.items():
        failures.append(
            f"nodes in {aws_region} can't be listed; they may still run, and cost money until "
            f"their leases end: {refusal}"
        )
        if aws_region in fleet.aws_regions[1:] and aws_region not in named:
            failures.append(
                f"if the fleet has nothing in {aws_region} any more, run this to make trialfleet "
                f"forget the region: `aws s3 rm {bucket.region_note(aws, fleet, aws_region)}`"
            )
    listed = [one for one in fleet.aws_regions if one not in listing.silent]
    steps: dict[str, Callable[[], object]] = {
        **{
            f"deleting: {what} in {aws_region}": partial(step, aws, fleet, aws_region)
            for aws_region in listed
            for what, step in REGIONAL.items()
        },
        "deleting: instance profile and role": partial(identity.remove, aws, fleet),
        "deleting: token": partial(token_store.remove, aws, fleet),
        "copying the record of costs": partial(keep, listing),
    }
    failures += _errors(steps, progress)
    if not failures:
        remove = partial(bucket.remove, aws, fleet, account)
        failures = _errors({"deleting: bucket": remove}, progress)
    try:
        left = inventory.list_resources(aws, fleet, listed)
    except FleetError as error:
        return [*failures, f"what is left can't be listed: {error}"]
    return [*failures, *(f"left: {one}" for one in left)]


def terminate(aws: Aws, instances: Iterable[Instance]) -> None:
    """Terminate instances. Those that no longer exist are skipped."""
    call_by_region(
        aws, instances, "terminating", lambda ec2, ids: ec2.terminate_instances(InstanceIds=ids)
    )


def _end_nodes(
    aws: Aws, fleet: Fleet, drain: Callable[[list[Instance]], None], progress: Progress
) -> list[str]:
    """Drain and terminate the living nodes. Return AWS's refusal to terminate them, if any."""
    nodes = [one for one in inventory.list_by_region(aws, fleet).instances if one.is_alive]
    if not nodes:
        return []
    progress(f"draining {_ids(nodes)}")
    try:
        drain(nodes)
    except TrialfleetError as error:
        progress(f"draining failed: {error}")
    return _terminate(aws, nodes, progress)


def _terminate(aws: Aws, nodes: Sequence[Instance], progress: Progress) -> list[str]:
    return _errors({f"terminating {_ids(nodes)}": partial(terminate, aws, nodes)}, progress)


def _ids(nodes: Iterable[Instance]) -> str:
    return ", ".join(node.id for node in nodes)


def _wait_until_gone(aws: Aws, fleet: Fleet, progress: Progress, refusals: list[str]) -> Listing:
    """Wait until the nodes are gone. Return AWS's last list of instances.

    Nodes that are still alive are terminated. If AWS refuses, the reason is added to `refusals`. If
    `refusals` is not empty, living nodes are neither terminated nor waited for.
    """
    listing = Listing(instances=[], silent={})

    def gone() -> bool:
        nonlocal listing
        listing = inventory.list_by_region(aws, fleet)
        living = [one for one in listing.instances if one.is_alive]
        if living and not refusals:
            refusals.extend(_terminate(aws, living, progress))
        ending = [one for one in listing.instances if not (refusals and one.is_alive)]
        return all(instance.state == "terminated" for instance in ending)

    progress("waiting for the instances to be gone")
    if not retries.wait_for(gone, TERMINATION):
        progress("instances are still shutting down")
    return listing


def _errors(steps: Mapping[str, Callable[[], object]], progress: Progress) -> list[str]:
    failures = []
    for what, step in steps.items():
        progress(what)
        try:
            step()
        except FleetError as error:
            failures.append(str(error))
    return failures
