"""`fleet doctor`: checks for problems that would make `fleet up` fail.

The checks change nothing in AWS. AWS offers no way to test permissions to write to IAM, S3 and SSM
without writing, so these permissions are reported as unknown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from trialfleet.errors import FleetError, TrialfleetError
from trialfleet.infra.fleet.aws import images
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import candidates as choice
from trialfleet.infra.fleet.choice import quotas
from trialfleet.infra.fleet.commands import manager_checks, permissions
from trialfleet.infra.fleet.commands.permissions import Finding, policy_advice
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate

SKEW = timedelta(minutes=1)  # AWS accepts 5 minutes, but tokens of the future are refused


def examine(aws: Aws, fleet: Fleet) -> list[Finding]:
    """Return the findings about what a fleet needs in AWS and on this machine."""
    credentials, answer = _credentials(aws, fleet)
    found = [credentials, _clock(answer)]
    if credentials.ok:
        findings, candidates = _candidates(aws, fleet)
        kinds = sorted({(one.aws_region, one.type.architecture) for one in candidates})
        found += [*findings, *_quotas(aws, fleet, candidates)]
        found += [_image(aws, fleet, *kind) for kind in kinds]
        found += permissions.examine(aws, fleet)
    return [*found, *manager_checks.examine(fleet)]


def _credentials(aws: Aws, fleet: Fleet) -> tuple[Finding, Any]:
    """Return the finding about the AWS credentials, and AWS's answer, which has AWS's time."""
    check = "credentials"
    try:
        who = aws.caller(fleet.home)
    except FleetError as error:
        answer = getattr(error.__cause__, "response", {})  # where AWS itself refuses
        advice = "use valid credentials" if answer else ""
        return Finding(check=check, ok=False, found=str(error), advice=advice), answer
    return Finding(check=check, ok=True, found=who["Arn"]), who


def _clock(answer: Any) -> Finding:
    there = response_time(answer)
    if there is None:
        return Finding(check="clock", ok=None, found="AWS's answer has no time")
    skew = datetime.now(UTC) - there
    side, well = "ahead of" if skew > timedelta() else "behind", abs(skew) <= SKEW
    advice = "" if well else "turn on a time service: `timedatectl set-ntp true`"
    found = f"{abs(skew.total_seconds()):.0f} s {side} AWS"
    return Finding(check="clock", ok=well, found=found, advice=advice)


def response_time(answer: Any) -> datetime | None:
    """Return AWS's time from the header of an answer, or None if the header has no time."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date) if date else None


def _candidates(aws: Aws, fleet: Fleet) -> tuple[list[Finding], list[Candidate]]:
    check, troubles = "instance types and prices", list[str]()
    try:
        found = choice.candidates(aws, fleet, troubles.append)
    except TrialfleetError as error:
        refused = error.__cause__ is not None  # then the error says what to do
        advice = "" if refused else "change instance_types, zones, aws_regions, spot or price_cap"
        return [Finding(check=check, ok=False, found=str(error), advice=advice)], []
    best = found[0]
    summary = (
        f"{len(found)} candidates for a node, the cheapest GPU at {best.price_per_gpu:.3f} USD/h: "
        f"{best.type.name} {best.lifecycle} in {best.zone}"
    )
    missing = [Finding(check=check, ok=None, found=trouble) for trouble in troubles]
    return [Finding(check=check, ok=True, found=summary), *missing], found


def _quotas(aws: Aws, fleet: Fleet, candidates: list[Candidate]) -> list[Finding]:
    try:
        found = quotas.limits(aws, candidates)
    except FleetError as error:
        advice = policy_advice(error.__cause__)
        return [Finding(check="quotas", ok=None, found=str(error), advice=advice)]
    return [_check_quota(limit, fleet) for limit in found]


def _check_quota(limit: quotas.Limit, fleet: Fleet) -> Finding:
    check = f"quota in {limit.aws_region}: {limit.quota.name}"
    page = quotas.page(limit.aws_region, limit.quota)
    if limit.vcpus is None:
        return Finding(check=check, ok=None, found="AWS doesn't say", advice=f"see {page}")
    spot = fleet.spot.nodes(fleet.nodes.max)
    wanted = max(1, spot if limit.lifecycle == "spot" else fleet.nodes.max - spot)
    nodes = limit.vcpus // limit.smallest
    found = (
        f"{limit.vcpus} vCPUs: enough for {nodes} of the smallest nodes; the fleet has up to "
        f"{wanted} {limit.lifecycle} nodes"
    )
    if nodes >= wanted:
        return Finding(check=check, ok=True, found=found)
    advice = f"ask AWS for {wanted * limit.smallest} vCPUs: {page}"
    return Finding(check=check, ok=None if nodes else False, found=found, advice=advice)


def _image(aws: Aws, fleet: Fleet, aws_region: str, architecture: str) -> Finding:
    check = f"image for {architecture} in {aws_region}"
    try:
        found = images.find(aws, fleet, aws_region, architecture)
    except TrialfleetError as error:
        return Finding(check=check, ok=False, found=str(error), advice="name another in `ami:`")
    return Finding(check=check, ok=True, found=found.id)
