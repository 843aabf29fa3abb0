"""The AWS regions that offer each of a fleet's instance types.

candidates.py chooses among types and zones by price and interruptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types
from trialfleet.infra.fleet.spec.fleet import Fleet


@dataclass(frozen=True, kw_only=True)
class Offer:
    """An instance type, and which of the fleet's AWS regions offer it in the fleet's zones.

    `others` are the fleet's other AWS regions.
    """

    type: str
    aws_regions: list[str]
    others: list[str]


def offers(aws: Aws, fleet: Fleet) -> list[Offer]:
    """List, for each instance type of the fleet, the AWS regions that offer it; sorted by type."""
    by_region = {
        aws_region: _offered_zones(aws, fleet, aws_region) for aws_region in fleet.aws_regions
    }
    known = {*fleet.instance_types}.union(*by_region.values())
    return [
        Offer(
            type=name,
            aws_regions=[region for region, types in by_region.items() if name in types],
            others=[region for region, types in by_region.items() if name not in types],
        )
        for name in sorted(known)
    ]


def _offered_zones(aws: Aws, fleet: Fleet, aws_region: str) -> set[str]:
    known = [kind.name for kind in instance_types.resolve(aws, fleet, aws_region)]
    zones = instance_types.zones(aws, aws_region, known, fleet.zones)
    return {name for name, places in zones.items() if places}
