"""`fleet up`: creation of the AWS resources that nodes need, then the launch of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import (
    bucket,
    identity,
    images,
    launch_template,
    network,
    own_instance,
    placement,
    policy,
    retries,
    token_store,
)
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.aws.launch_template import Template
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.instances import inventory, launch, node_lease
from trialfleet.infra.fleet.instances.fleet_request import Prepared
from trialfleet.infra.fleet.instances.launch import Launched, Progress
from trialfleet.infra.fleet.nodes import bundle, user_data
from trialfleet.infra.fleet.nodes import configuration as node_config
from trialfleet.infra.fleet.nodes.bundle import Bundle
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate
from trialfleet.infra.manager import tokens
from trialfleet.infra.pool import htcondor_installation
from trialfleet.infra.pool.joining import PORT

BOOT_MINUTES = 20  # a node that hasn't joined after that shuts itself down
PAUSES = (15.0, 30.0, 60.0)  # seconds between rounds over candidates that had no capacity


@dataclass(frozen=True, kw_only=True)
class NodeInputs:
    """The manager's data that a launch of nodes needs.

    Attributes:
        manager: HOST:PORT at which nodes find the pool.
        own: the manager's EC2 instance, or None if it isn't on EC2.
        token: the pool's token for nodes, which is stored only in SSM.
        bundle: the program that turns a machine into a node.
        condor_version: HTCondor's version on the manager and the nodes.
        endpoint_url: the URL at which nodes reach AWS. Empty for AWS's own.
    """

    manager: str
    own: OwnInstance | None
    token: str = field(repr=False)
    bundle: Bundle = field(repr=False)
    condor_version: str
    endpoint_url: str = ""


def gather_inputs(aws: Aws, fleet: Fleet) -> NodeInputs:
    """Return what a launch of nodes needs from this machine, the manager.

    PoolError if this machine has no HTCondor or no token for nodes. InputError if the manager's
    address is unknown.
    """
    own = own_instance.find()
    manager = manager_address(fleet, own)
    return NodeInputs(
        manager=manager,
        own=own,
        token=tokens.read_node_token(),
        bundle=bundle.build(node_config.render(fleet, manager)),
        condor_version=htcondor_installation.managers_version(),
        endpoint_url=aws.endpoint(fleet.home),
    )


def manager_address(fleet: Fleet, own: OwnInstance | None) -> str:
    """Return the manager's HOST:PORT for nodes. InputError if it is unknown."""
    host = fleet.manager or (own.address if own else "")
    if not host:
        raise InputError(
            "manager: this machine's address is unknown, because it isn't an EC2 instance or the "
            "instance's metadata service does not answer: set `manager:` to the name or address at "
            "which the nodes reach it"
        )
    return host if ":" in host else f"{host}:{PORT}"


def prepare(
    aws: Aws,
    fleet: Fleet,
    inputs: NodeInputs,
    candidates: Sequence[Candidate],
    run: str = "",
    progress: Progress = lambda _: None,
    *,
    everywhere: bool = True,
) -> Prepared:
    """Create or correct the AWS resources that nodes need. Their costs belong to `run`, if any.

    With `everywhere`, all AWS regions with a subnet for a candidate get their resources now.
    Otherwise a region gets them when its first node is requested.
    """
    account = aws.account(fleet.home)
    places = network.places(aws, fleet, each=False)
    progress("the bucket and the nodes' program in it")
    bucket_name = bucket.ensure(aws, fleet, account)
    settings = node_settings(fleet, inputs, bucket_name)
    bucket.put(aws, fleet, bucket_name, settings["bundle"], inputs.bundle.data)
    progress("the pool's token")
    token_store.ensure(aws, fleet, inputs.token)
    script = user_data.pack(user_data.render(settings | {"run": run}))
    progress("the nodes' role and instance profile")
    trust = policy.node_trust(fleet)
    profile = identity.ensure(aws, fleet, policy.node_policy(fleet, account), trust)

    def make(aws_region: str) -> dict[tuple[str, str], Template]:
        noted = names.regions_prefix(fleet.full_name) + aws_region
        bucket.put(aws, fleet, bucket_name, noted, b"")
        progress(f"the security group in {aws_region}")
        types = [one.type for one in candidates if one.aws_region == aws_region]
        vpc, templates = places[aws_region].vpc, {}
        group = network.ensure(aws, fleet, aws_region, vpc)
        if inputs.own and inputs.own.aws_region == aws_region:
            network.admit(aws, inputs.own, vpc, group)
        for architecture, efa in sorted(
            {(one.architecture, fleet.efa and one.efa) for one in types}
        ):
            image = images.find(aws, fleet, aws_region, architecture)
            wanted = launch_template.definition(fleet, image, group, profile, script, efa=efa)
            kind = launch_template.name_suffix(fleet, architecture, efa=efa)
            made = launch_template.ensure(aws, fleet, aws_region, kind, wanted)
            templates[aws_region, kind] = made
        if fleet.clusters and any(one.clusters for one in types):
            progress(f"the placement group in {aws_region}")
            placement.ensure(aws, fleet, aws_region)
        return templates

    prepared = Prepared(places=places, make=make)
    for one in sorted(candidates, key=lambda one: one.aws_region) if everywhere else ():
        if prepared.subnet(one):
            prepared.template(fleet, one)
    return prepared


def up(
    aws: Aws,
    fleet: Fleet,
    inputs: NodeInputs,
    candidates: Sequence[Candidate],
    count: int | None = None,
    run: str = "",
    progress: Progress = lambda _: None,
) -> Launched:
    """Create the resources that nodes need, then launch nodes until `count` are alive.

    The default of `count` is the fleet's minimum, but at least one. The nodes' costs belong to
    `run`, unless it is empty. After a temporary refusal, the request is repeated for about two
    minutes. The result has all living nodes, perhaps fewer than `count`, and the last refusals.
    Leases are renewed, except in AWS regions that the fleet's file no longer names. FleetError if
    the fleet has no node at the end, unless `count` is 0.
    """
    wanted = check_count(fleet, count)
    prepared = prepare(aws, fleet, inputs, candidates, run, progress)
    living, notices = inventory.living_in_all_regions(aws, fleet)
    for notice in notices:
        progress(notice)
    node_lease.renew(aws, fleet, [one for one in living if one.aws_region in fleet.aws_regions])
    refusals = []
    for pause in (*PAUSES, None):
        missing = max(0, wanted - len(living))
        # A gang gets all of its nodes or none: some of them alone would be useless.
        least = missing if fleet.gangs else 1
        launched = launch.launch(
            aws,
            fleet,
            prepared,
            candidates,
            missing,
            run,
            progress,
            least=least,
            unlisted=living,
        )
        living += launched.instances
        refusals = launched.refusals
        if pause is None or len(living) >= wanted or not any(r.is_temporary for r in refusals):
            break
        progress(f"{len(living)} of {wanted} nodes; asking again in {pause:.0f} s")
        retries.sleep(pause)
    if wanted and not living:
        raise FleetError("AWS gave no node:\n" + "\n".join(f"  {why}" for why in refusals))
    return Launched(instances=living, refusals=refusals)


def check_count(fleet: Fleet, count: int | None) -> int:
    """Return `count`, by default the fleet's minimum, but at least 1.

    InputError if `count` is negative or exceeds the fleet's maximum.
    """
    wanted = max(1, fleet.nodes.min) if count is None else count
    if not 0 <= wanted <= fleet.nodes.max:
        raise InputError(
            f"the fleet may have 0 to {fleet.nodes.max} nodes (nodes.max), not {wanted}"
        )
    return wanted


def node_settings(fleet: Fleet, inputs: NodeInputs, bucket_name: str) -> dict[str, Any]:
    """Return the settings for nodes' user data, without secrets and without the run's name."""
    return {
        "fleet": fleet.full_name,
        "home": fleet.home,
        "bucket": bucket_name,
        "bundle": inputs.bundle.key(fleet.full_name),
        "bundle_sha256": inputs.bundle.sha256,
        "log_prefix": names.log_prefix(fleet.full_name),
        "token_parameter": names.token_parameter(fleet.full_name),
        "manager": inputs.manager,
        "condor_version": inputs.condor_version,
        # With a minimum, idle nodes don't leave by themselves: the autoscaler decides which stay.
        "idle_minutes": 0 if fleet.nodes.min else fleet.idle_minutes,
        "boot_minutes": BOOT_MINUTES,
        "endpoint_url": inputs.endpoint_url,
    }
