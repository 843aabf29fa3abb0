"""The AWS account's quotas of running vCPUs. In a new account, those for GPU types are 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.machines import Candidate, Lifecycle

SERVICE = "ec2"
# Hosts of AWS's web console, by partition.
CONSOLES = {
    "aws": "console.aws.amazon.com",
    "aws-us-gov": "console.amazonaws-us-gov.com",
    "aws-cn": "console.amazonaws.cn",
}


class Quota(NamedTuple):
    """A limit on running vCPUs in an AWS region, with its code in AWS's Service Quotas."""

    code: str
    name: str


# Quotas by lifecycle and a pattern for the types' names; the first entry that matches counts.
QUOTAS: tuple[tuple[Lifecycle, str, Quota], ...] = (
    ("on-demand", r"(g|gr|vt)\d", Quota("L-DB2E81BA", "Running On-Demand G and VT instances")),
    ("on-demand", r"p\d", Quota("L-417A185B", "Running On-Demand P instances")),
    ("on-demand", r"[acdhimrtz]\d", Quota("L-1216C47A", "Running On-Demand Standard instances")),
    ("spot", r"(g|gr|vt)\d", Quota("L-3819A6DF", "All G and VT Spot Instance Requests")),
    ("spot", r"p[234]", Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")),
    ("spot", r"p5", Quota("L-C4BD4855", "All P5 Spot Instance Requests")),
    ("spot", r"[acdhimrtz]\d", Quota("L-34B43A08", "All Standard Spot Instance Requests")),
)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A quota that limits a fleet's nodes in an AWS region.

    `vcpus` is the number of vCPUs that may run at once, or None if unknown. `smallest` is the
    number of vCPUs of the smallest candidate that the quota limits.
    """

    quota: Quota
    aws_region: str
    lifecycle: Lifecycle
    vcpus: int | None
    smallest: int


def find_quota(instance_type: str, lifecycle: Lifecycle) -> Quota | None:
    """Return the quota that limits the running instances of a type, or None if it is unknown."""
    fitting = (
        quota
        for its, beginning, quota in QUOTAS
        if its == lifecycle and re.match(beginning, instance_type)
    )
    return next(fitting, None)


def page(aws_region: str, quota: Quota) -> str:
    """Return the URL of a quota's page in AWS's web console."""
    host = CONSOLES[names.partition(aws_region)]
    return f"https://{host}/servicequotas/home/services/{SERVICE}/quotas/{quota.code}"


def limits(aws: Aws, candidates: Iterable[Candidate]) -> list[Limit]:
    """Return the quotas that limit the `candidates`, except those that are unknown."""
    smallest: dict[tuple[Quota, str, Lifecycle], int] = {}
    for one in candidates:
        if quota := find_quota(one.type.name, one.lifecycle):
            key = quota, one.aws_region, one.lifecycle
            smallest[key] = min(one.type.vcpus, smallest.get(key, one.type.vcpus))
    return [
        Limit(
            quota=quota,
            aws_region=aws_region,
            lifecycle=lifecycle,
            vcpus=vcpus(aws, aws_region, quota),
            smallest=least,
        )
        for (quota, aws_region, lifecycle), least in smallest.items()
    ]


def vcpus(aws: Aws, aws_region: str, quota: Quota) -> int | None:
    """Return the number of vCPUs that a quota allows, or None if AWS doesn't say."""
    with asking(f"the quota {quota.name} in {aws_region}"):
        service = aws.quotas(aws_region)
        found = or_none(
            lambda: service.get_service_quota(ServiceCode=SERVICE, QuotaCode=quota.code),
            "NoSuchResourceException",
        )
    return None if found is None else int(found["Quota"]["Value"])
