"""`fleet down`: remove the nodes, then their resources, in the order that AWS requires."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

TERMINATION = (2.0, *[5.0] * 120)  # ten minutes: machines with GPUs are slow to go


def down(
    aws: Aws,
    fleet: Fleet,
    drain: Callable[[list[Instance]], None],
    progress: Progress = lambda _: None,
    *,
    keep: Callable[[list[Instance]], object] = lambda _: None,
) -> list[str]:
    """Remove the fleet; return errors and resources that are left, a line each.

    Nodes are terminated even if `drain` fails. Before the bucket is deleted, `keep` gets AWS's last
    listing, to save the record of costs. If `keep` raises FleetError, the bucket is not deleted.
    If an AWS region does not list its nodes, the other regions' nodes are terminated, nothing is
    deleted, and FleetError is raised. The call waits up to ten minutes until the nodes are gone.
    """
    fleet = inventory.with_earlier_regions(aws, fleet)
    listing = inventory.list_by_region(aws, fleet)
    nodes = [instance for instance in listing.instances if instance.is_alive]
    if nodes:
        ids = ", ".join(node.id for node in nodes)
        progress(f"draining {ids}")
        try:
            drain(nodes)
        except TrialfleetError as error:
            progress(f"draining failed: {error}")
        progress(f"terminating {ids}")
        terminate(aws, nodes)
    for refusal in listing.silent.values():  # nodes there may need the fleet's other resources
        raise refusal

    def gone() -> bool:
        found = inventory.instances(aws, fleet, gone=True)
        return all(instance.state == "terminated" for instance in found)

    progress("waiting for the instances to be gone")
    if not retries.wait_for(gone, TERMINATION):
        progress("instances are still shutting down")
    failures = _delete(aws, fleet, keep, progress)
    try:
        return [*failures, *(f"left: {one}" for one in inventory.list_resources(aws, fleet))]
    except FleetError as error:
        return [*failures, f"what is left can't be listed: {error}"]


def terminate(aws: Aws, instances: Iterable[Instance]) -> None:
    """Terminate instances; skip instances that no longer exist."""
    call_by_region(
        aws, instances, "terminating", lambda ec2, ids: ec2.terminate_instances(InstanceIds=ids)
    )


def _delete(
    aws: Aws, fleet: Fleet, keep: Callable[[list[Instance]], object], progress: Progress
) -> list[str]:
    """Delete all of the fleet's resources except instances; return errors, and go on after one."""
    account = aws.account(fleet.home)

    def remove_bucket() -> None:
        keep(inventory.instances(aws, fleet, gone=True))
        bucket.remove(aws, fleet, account)

    steps: list[tuple[str, Callable[[], None]]] = [
        *(
            (f"{what} in {aws_region}", lambda step=step, at=aws_region: step(aws, fleet, at))
            for aws_region in fleet.aws_regions
            for what, step in (
                ("launch templates", launch_template.remove),
                ("security group", network.remove),
                ("placement group", placement.remove),
            )
        ),
        ("instance profile and role", lambda: identity.remove(aws, fleet)),
        ("token", lambda: token_store.remove(aws, fleet)),
        ("bucket", remove_bucket),
    ]
    failures = []
    for what, step in steps:
        progress(f"deleting: {what}")
        try:
            step()
        except FleetError as error:
            failures.append(str(error))
    return failures
