"""AWS's scores (1 to 10) of how likely an AWS region has room for spot nodes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws, asking
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate

FEW = 3  # AWS's documentation says that fewer types always get a low score


def scores(aws: Aws, fleet: Fleet, candidates: Iterable[Candidate], nodes: int) -> dict[str, int]:
    """Return AWS's score for `nodes` spot nodes of the candidates' types, by AWS region.

    The result is empty if AWS refuses. It is also empty for fewer than three types, because AWS's
    scores are then always low.
    """
    types = sorted({one.type.name for one in candidates if one.lifecycle == "spot"})
    if len(types) < FEW or nodes < 1:
        return {}
    with suppress(FleetError), asking("the spot placement scores"):
        pages = aws.ec2(fleet.home).get_paginator("get_spot_placement_scores")
        found = pages.paginate(
            InstanceTypes=types, TargetCapacity=nodes, RegionNames=fleet.aws_regions
        )
        listed = [one for page in found for one in page["SpotPlacementScores"]]
        return {one["Region"]: one["Score"] for one in listed}
    return {}
