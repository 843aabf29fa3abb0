"""`fleet gpus`: instance types with GPUs, their hardware, prices and AWS regions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from botocore.exceptions import NoCredentialsError

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types, prices
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import InstanceType


@dataclass(frozen=True, kw_only=True)
class GpuType:
    """An instance type with GPUs.

    Attributes:
        type: the hardware of the instance type, or None without AWS credentials.
        on_demand: USD per hour by AWS region, without unknown prices.
        spot: USD per hour in `zone`, the cheapest zone, or None if AWS lists no spot price.
        aws_regions: the requested AWS regions that offer the type or, without AWS credentials, that
            have a known price.
    """

    name: str
    type: InstanceType | None
    on_demand: Mapping[str, float]
    spot: float | None
    zone: str
    aws_regions: Sequence[str]

    @property
    def price_per_gpu(self) -> float:
        """The lowest known price of one GPU in USD per hour, or infinity if no price is known.

        If the number of GPUs is unknown, the result is the price of the instance.
        """
        known = [*self.on_demand.values(), *([] if self.spot is None else [self.spot])]
        return min(known, default=math.inf) / (self.type.gpus or 1 if self.type else 1)


@dataclass(frozen=True, kw_only=True)
class GpuTypes:
    """Instance types, sorted by the price of one GPU, the cheapest first.

    `note` says what is missing without AWS credentials. With credentials, it is empty.
    """

    types: Sequence[GpuType]
    note: str = ""
    currency: str = "USD"


def gpu_types(aws: Aws, aws_regions: Sequence[str], fleet: Fleet | None = None) -> GpuTypes:
    """List the instance types with GPUs that AWS offers in at least one of `aws_regions`.

    With `fleet`, these are only the types that this fleet allows. Without AWS credentials, the list
    comes from the price table.
    """
    try:
        by_region = _types(aws, aws_regions, fleet)
    except FleetError as error:
        if not isinstance(error.__cause__, NoCredentialsError):
            raise
        return _read_price_table(aws_regions, fleet)
    kinds = {kind.name: kind for types in by_region.values() for kind in types}
    allowed = fleet.zones if fleet else []
    zones = {at: instance_types.zones(aws, at, kinds, allowed) for at in aws_regions}
    spot: dict[str, dict[str, float]] = {name: {} for name in kinds}  # by type and zone
    for aws_region in aws_regions:
        for (name, zone), price in prices.spot_prices(aws, aws_region, kinds).items():
            if zone in zones[aws_region][name]:
                spot[name][zone] = price
    known, found = prices.table(), []
    for name, kind in kinds.items():
        offered = [at for at in aws_regions if zones[at][name]]
        zone = min(spot[name], key=lambda at: (spot[name][at], at), default="")
        found.append(
            GpuType(
                name=name,
                type=kind,
                on_demand=_on_demand(known, name, offered),
                spot=spot[name].get(zone),
                zone=zone,
                aws_regions=offered,
            )
        )
    return GpuTypes(types=_sort_by_price(found))


def _types(
    aws: Aws, aws_regions: Sequence[str], fleet: Fleet | None
) -> dict[str, list[InstanceType]]:
    if fleet is not None:
        # A type that the fleet lists need not be in the requested regions, if it is in the fleet's.
        everywhere = [*dict.fromkeys((*aws_regions, *fleet.aws_regions))]
        wide = fleet.model_copy(update={"aws_regions": everywhere})
        found = instance_types.resolve_everywhere(aws, wide)
    else:
        found = {at: instance_types.list_sold(aws, at) for at in aws_regions}
    return {at: [kind for kind in found[at] if kind.gpus] for at in aws_regions}


def _read_price_table(aws_regions: Sequence[str], fleet: Fleet | None) -> GpuTypes:
    known, listed = prices.table(), set(fleet.instance_types) if fleet else set()
    names = {name for at in aws_regions for name in known.get(at, ())}
    found = []
    for name in names & listed if listed else names:
        usd = _on_demand(known, name, aws_regions)
        one = GpuType(name=name, type=None, on_demand=usd, spot=None, zone="", aws_regions=[*usd])
        found.append(one)
    needs = "" if fleet is None or listed else "; the fleet's `needs:` is not applied"
    note = (
        "there are no AWS credentials here: names and on-demand prices come from the table that "
        "is shipped with trialfleet, and many are missing; hardware, spot prices and other regions "
        f"are shown only with credentials{needs}"
    )
    return GpuTypes(types=_sort_by_price(found), note=note)


def _on_demand(known: prices.Table, name: str, aws_regions: Sequence[str]) -> dict[str, float]:
    return {at: known[at][name] for at in aws_regions if name in known.get(at, ())}


def _sort_by_price(found: Sequence[GpuType]) -> list[GpuType]:
    return sorted(found, key=lambda one: (one.price_per_gpu, one.name))
