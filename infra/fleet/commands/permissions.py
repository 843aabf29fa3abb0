"""Checks of the user's AWS permissions, by dry runs in EC2 and by reads in other services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from botocore.exceptions import ClientError

from trialfleet.errors import FleetError, TrialfleetError
from trialfleet.infra.fleet.aws import bucket, identity, launch_template, network, tags, token_store
from trialfleet.infra.fleet.aws.clients import (
    DENIED,
    Aws,
    asking,
    error_code,
    lacks_policy,
)
from trialfleet.infra.fleet.aws.launch_template import Template
from trialfleet.infra.fleet.aws.network import RegionNetwork
from trialfleet.infra.fleet.choice import instance_types, prices
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.instances.fleet_request import FleetRequest, Prepared
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate

ALLOWED = "DryRunOperation"
ADVICE = "attach the policy that `trialfleet fleet plan --policy` prints"
LATER = "`trialfleet fleet up` will show it"
Probe = tuple[str, Callable[[], Any]]
Places = Callable[[], dict[str, RegionNetwork]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check of `fleet doctor`.

    `ok` is True if there is no problem, and False if `fleet up` would fail. It is None for a
    warning, or if the check was not possible.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""


def examine(aws: Aws, fleet: Fleet) -> list[Finding]:
    """Return a finding for each AWS permission that can be tested, and one for all others."""
    probes, places = _read_probes(aws, fleet), cache(partial(network.places, aws, fleet))
    for aws_region in fleet.aws_regions:
        probes += _dry_runs(aws, fleet, aws_region, places)
    unknown = "writing to IAM, S3 and SSM can't be tested without doing it"
    return [
        *(_run_probe(f"permission to {what}", probe) for what, probe in probes),
        Finding(check="permission to write", ok=None, found=unknown, advice=LATER),
    ]


def _read_probes(aws: Aws, fleet: Fleet) -> list[Probe]:
    def see_bucket() -> bool:
        account = aws.account(fleet.home)
        return bucket.exists(aws.s3(fleet.home), bucket.fleet_bucket(fleet, account), account)

    see_price = partial(prices.ask, aws, fleet.home, "g4dn.xlarge")
    return [
        ("see the role", partial(identity.role, aws, fleet)),
        ("see the instance profile", partial(identity.profile, aws, fleet)),
        ("see the bucket", see_bucket),
        ("see the token's parameter", partial(token_store.exists, aws, fleet)),
        ("see instances", partial(inventory.instances, aws, fleet)),
        *([] if prices.why_unavailable(fleet.home) else [("see on-demand prices", see_price)]),
    ]


def _dry_runs(aws: Aws, fleet: Fleet, aws_region: str, places: Places) -> list[Probe]:
    ec2, name = aws.ec2(aws_region), names.resource_name(fleet.full_name)

    def made(kind: str) -> dict[str, Any]:
        return {"DryRun": True, "TagSpecifications": [tags.specification(fleet, kind)]}

    def security_group() -> object:
        vpc, its = places()[aws_region].vpc, made("security-group")
        return ec2.create_security_group(GroupName=name, Description="a dry run", VpcId=vpc, **its)

    data: Any = {"InstanceInitiatedShutdownBehavior": "terminate"}
    template = {"LaunchTemplateName": name, "LaunchTemplateData": data, **made("launch-template")}
    group = {"GroupName": name, "Strategy": "cluster", **made("placement-group")}
    probes: dict[str, Callable[[], object]] = {
        "make a security group": security_group,
        "make a launch template": partial(ec2.create_launch_template, **template),
        "launch": partial(_launch, aws, fleet, aws_region, places),
    }
    if fleet.clusters:
        probes["make a placement group"] = partial(ec2.create_placement_group, **group)
    return [(f"{what} in {aws_region}", probe) for what, probe in probes.items()]


def _launch(aws: Aws, fleet: Fleet, aws_region: str, places: Places) -> None:
    """Test the permission to launch nodes, with the launch template that `fleet up` made.

    The user needs CreateFleet and also RunInstances, because EC2 Fleet launches in the user's name.
    This function always raises an error, because AWS answers even an allowed dry run with a
    ClientError. FleetError if the launch template is missing or does not fit the fleet.
    """
    made = launch_template.templates(aws, fleet, aws_region)
    if not made:
        raise FleetError("the check needs the launch template that `trialfleet fleet up` makes")
    kinds = instance_types.resolve(aws, fleet, aws_region)
    suffixes = {
        kind: launch_template.name_suffix(fleet, kind.architecture, efa=kind.efa) for kind in kinds
    }
    name, id_ = made[0]["LaunchTemplateName"], made[0]["LaunchTemplateId"]
    kind = next((one for one in kinds if name.endswith(f"-{suffixes[one]}")), None)
    if kind is None:
        raise FleetError(
            f"no instance type of the fleet fits the launch template {name}, which "
            "`trialfleet fleet up` made"
        )
    zone, subnet = next(iter(places()[aws_region].subnets.items()))
    pool = Candidate(type=kind, aws_region=aws_region, zone=zone, lifecycle="on-demand", price=1.0)
    template = Template(id=id_, version="$Latest")
    prepared = Prepared(places=places(), templates={(aws_region, suffixes[kind]): template})
    request = FleetRequest(name="dry-run", pools=[pool], count=1, least=1, expires="", run="")
    ec2 = aws.ec2(aws_region)
    try:
        ec2.create_fleet(DryRun=True, **request.body(fleet, prepared))
    except ClientError as error:
        if error_code(error) != ALLOWED:
            raise
    # RunInstances refuses a subnet if the template has a network interface; EC2 Fleet does not.
    at: dict[str, Any] = {} if fleet.efa and kind.efa else {"SubnetId": subnet}
    ec2.run_instances(
        DryRun=True,
        MinCount=1,
        MaxCount=1,
        LaunchTemplate={"LaunchTemplateId": template.id, "Version": template.version},
        InstanceType=kind.name,  # type: ignore[arg-type]
        TagSpecifications=[tags.specification(fleet, one) for one in ("instance", "volume")],
        **at,
    )


def _run_probe(check: str, probe: Callable[[], Any]) -> Finding:
    try:
        with asking(check):
            probe()
    except TrialfleetError as error:
        refusal, reason = error.__cause__, str(error)
    else:
        return Finding(check=check, ok=True, found="granted")
    code = error_code(refusal) if isinstance(refusal, ClientError) else ""
    if code == ALLOWED:
        return Finding(check=check, ok=True, found="granted")
    if code in DENIED:
        return Finding(check=check, ok=False, found=reason, advice=policy_advice(refusal))
    return Finding(check=check, ok=None, found=reason, advice=LATER)


def policy_advice(refusal: BaseException | None) -> str:
    """Return the advice to attach the fleet's policy, or an empty text if this can't help."""
    return ADVICE if isinstance(refusal, ClientError) and lacks_policy(refusal) else ""
