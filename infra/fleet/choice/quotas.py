"""The account's limits on running vCPUs, which a new account has at 0 for instances with GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec.machines import Candidate, Lifecycle

SERVICE = "ec2"
CONSOLE = "https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas"


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A limit of vCPUs that run at once in a region.

    Attributes:
        code: what Service Quotas calls it.
        name: in AWS's words.
    """

    code: str
    name: str


_ON_DEMAND_P = Quota(code="L-417A185B", name="Running On-Demand P instances")
# By the beginning of the types' names; G's begin with g, gr or vt.
FAMILIES: tuple[tuple[str, dict[Lifecycle, Quota]], ...] = (
    (
        r"(g|gr|vt)\d",
        {
            "on-demand": Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances"),
            "spot": Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests"),
        },
    ),
    (
        r"p[234]",
        {
            "on-demand": _ON_DEMAND_P,
            "spot": Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests"),
        },
    ),
    (
        r"p5",
        {
            "on-demand": _ON_DEMAND_P,
            "spot": Quota(code="L-C4BD4855", name="All P5 Spot Instance Requests"),
        },
    ),
    (r"p\d", {"on-demand": _ON_DEMAND_P}),
    (
        r"[acdhimrtz]\d",
        {
            "on-demand": Quota(code="L-1216C47A", name="Running On-Demand Standard instances"),
            "spot": Quota(code="L-34B43A08", name="All Standard Spot Instance Requests"),
        },
    ),
)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A quota that a fleet's candidates fall under in a region.

    Attributes:
        quota: which.
        aws_region: where.
        lifecycle: of the instances that count.
        vcpus: the most that may run at once; None where AWS doesn't tell.
        smallest: vCPUs of the smallest of the candidates.
    """

    quota: Quota
    aws_region: str
    lifecycle: Lifecycle
    vcpus: int | None
    smallest: int


def quota_of(instance_type: str, lifecycle: Lifecycle) -> Quota | None:
    """Return the quota that instances of a type count against, if we know it."""
    for beginning, kinds in FAMILIES:
        if re.match(beginning, instance_type):
            return kinds.get(lifecycle)
    return None


def limits(aws: Aws, candidates: Iterable[Candidate]) -> list[Limit]:
    """Look up the quotas that candidates fall under.

    Raises:
        FleetError: AWS refuses.
    """
    return [
        Limit(
            quota=quota,
            aws_region=aws_region,
            lifecycle=lifecycle,
            vcpus=vcpus(aws, aws_region, quota),
            smallest=smallest,
        )
        for (quota, aws_region, lifecycle), smallest in _smallest(candidates).items()
    ]


def vcpus(aws: Aws, aws_region: str, quota: Quota) -> int | None:
    """Return how many vCPUs a quota lets run; None where AWS doesn't tell.

    Raises:
        FleetError: AWS refuses.
    """
    with asking(f"the quota {quota.name} in {aws_region}"):
        service = aws.quotas(aws_region)
        found = or_none(
            lambda: service.get_service_quota(ServiceCode=SERVICE, QuotaCode=quota.code),
            "NoSuchResourceException",
        )
    return None if found is None else int(found["Quota"]["Value"])


def _smallest(candidates: Iterable[Candidate]) -> Mapping[tuple[Quota, str, Lifecycle], int]:
    smallest: dict[tuple[Quota, str, Lifecycle], int] = {}
    for one in candidates:
        if quota := quota_of(one.type.name, one.lifecycle):
            key = quota, one.aws_region, one.lifecycle
            smallest[key] = min(one.type.vcpus, smallest.get(key, one.type.vcpus))
    return smallest
