"""Whether the caller has the permissions that a fleet takes, as far as that can be tried.

EC2 is asked by dry run, the other services by reading.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from botocore.exceptions import ClientError

from trialfleet.errors import FleetError, TrialfleetError
from trialfleet.infra.fleet.aws import bucket, identity, launch_template, network, tags, token_store
from trialfleet.infra.fleet.aws.clients import DENIED, Aws, code_of, explained
from trialfleet.infra.fleet.aws.network import RegionNetwork
from trialfleet.infra.fleet.choice import instance_types, prices
from trialfleet.infra.fleet.commands.findings import Finding
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

ALLOWED = "DryRunOperation"
ADVICE = "attach what `trialfleet fleet plan --policy` prints"
LATER = "`trialfleet fleet up` will tell"
Probe = tuple[str, Callable[[], Any]]
Places = Callable[[], dict[str, RegionNetwork]]


def examine(aws: Aws, fleet: Fleet) -> list[Finding]:
    """Try what can be tried; what is denied is in the findings and never raised."""
    probes, places = _reading(aws, fleet), cache(partial(network.places, aws, fleet))
    for aws_region in fleet.aws_regions:
        probes += _dry_runs(aws, fleet, aws_region, places)
    unknown = "writing to IAM, S3 and SSM can't be tried without doing it"
    return [
        *(_tried(check, probe) for check, probe in probes),
        Finding(check="permission to write", ok=None, found=unknown, advice=LATER),
    ]


def _reading(aws: Aws, fleet: Fleet) -> list[Probe]:
    def of_bucket() -> bool:
        account = aws.account(fleet.home)
        return bucket.exists(aws.s3(fleet.home), bucket.name_of(fleet, account), account)

    def of_price() -> object:
        return prices.ask(aws, fleet.home, "g4dn.xlarge")

    return [
        ("permission to see the role", partial(identity.role, aws, fleet)),
        ("permission to see the instance profile", partial(identity.profile, aws, fleet)),
        ("permission to see the bucket", of_bucket),
        ("permission to see the token's parameter", partial(token_store.exists, aws, fleet)),
        ("permission to see instances", partial(inventory.instances, aws, fleet)),
        ("permission to see on-demand prices", of_price),
    ]


def _dry_runs(aws: Aws, fleet: Fleet, aws_region: str, places: Places) -> list[Probe]:
    ec2, name = aws.ec2(aws_region), names.resource_name(fleet.called)

    def group() -> object:
        return ec2.create_security_group(
            DryRun=True,
            GroupName=name,
            Description="a dry run",
            VpcId=places()[aws_region].vpc,
            TagSpecifications=[tags.specification(fleet, "security-group")],
        )

    def launch_template() -> object:
        return ec2.create_launch_template(
            DryRun=True,
            LaunchTemplateName=name,
            LaunchTemplateData={"InstanceInitiatedShutdownBehavior": "terminate"},
            TagSpecifications=[tags.specification(fleet, "launch-template")],
        )

    def placement_group() -> object:
        return ec2.create_placement_group(
            DryRun=True,
            GroupName=name,
            Strategy="cluster",
            TagSpecifications=[tags.specification(fleet, "placement-group")],
        )

    place = f"permission to make a placement group in {aws_region}"
    return [
        *([(place, placement_group)] if fleet.clusters else []),
        (f"permission to make a security group in {aws_region}", group),
        (f"permission to make a launch template in {aws_region}", launch_template),
        (f"permission to launch in {aws_region}", partial(_launch, aws, fleet, aws_region, places)),
    ]


def _launch(aws: Aws, fleet: Fleet, aws_region: str, places: Places) -> None:
    """Try to launch from the fleet's template: the policy allows no other way.

    Raises:
        FleetError: there is no template yet.
        ClientError: AWS's answer to the dry run, which is never another.
    """
    made = launch_template.templates(aws, fleet, aws_region)
    if not made:
        raise FleetError("it takes the launch template that `up` makes")
    name = made[0]["LaunchTemplateName"]
    efa = name.endswith(launch_template.EFA)
    architecture = name.removesuffix(launch_template.EFA).rpartition("-")[2]
    kinds = instance_types.resolve(aws, fleet, aws_region)
    fit: Any = next(
        kind.name for kind in kinds if kind.architecture == architecture and kind.efa >= efa
    )
    groups = network.groups(aws, fleet, aws_region) if efa else []
    interface = launch_template.adapter(groups[0]) if groups else None
    subnet = next(iter(places()[aws_region].subnets.values()))
    aws.ec2(aws_region).run_instances(
        DryRun=True,
        MinCount=1,
        MaxCount=1,
        LaunchTemplate={"LaunchTemplateId": made[0]["LaunchTemplateId"], "Version": "$Latest"},
        InstanceType=fit,
        **launch_template.in_subnet(interface, subnet),
        IamInstanceProfile={"Name": names.resource_name(fleet.called)},
        TagSpecifications=[tags.specification(fleet, one) for one in ("instance", "volume")],
    )


def _tried(check: str, probe: Callable[[], Any]) -> Finding:
    """Say what AWS's answer to a probe means: it came, it was no refusal, or it was one."""
    try:
        probe()
    except (ClientError, TrialfleetError) as error:
        return _answered(check, error)
    return Finding(check=check, ok=True, found="granted")


def _answered(check: str, error: ClientError | TrialfleetError) -> Finding:
    cause = error if isinstance(error, ClientError) else error.__cause__
    code = code_of(cause) if isinstance(cause, ClientError) else ""
    if code == ALLOWED:
        return Finding(check=check, ok=True, found="granted")
    reason = explained(error, check) if isinstance(error, ClientError) else str(error)
    if code in DENIED:
        return Finding(check=check, ok=False, found=reason, advice=ADVICE)
    return Finding(check=check, ok=None, found=reason, advice=LATER)
