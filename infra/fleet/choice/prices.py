"""The prices of instances: spot prices from AWS, and on-demand prices from a table.

The shipped table has AWS's public prices of types with NVIDIA GPUs. `refresh` asks AWS's Pricing
API for new prices, and writes them to a file in the user's cache. A person may also write prices to
this file. Its prices take precedence over the shipped ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from trialfleet.errors import FleetError, InputError
from trialfleet.files import read_json, read_record, write_json
from trialfleet.infra.fleet.aws.clients import Aws, asking
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import AwsRegion, TypeName
from trialfleet.sections import Positive

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import SpotPriceTypeDef
    from types_boto3_pricing.type_defs import FilterTypeDef

SHIPPED = Path(__file__).with_name("on_demand_prices.json")
SYSTEMS = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]  # AWS lists spot prices under one of these
# Which of an instance type's many products to take: Linux without licences, on shared hardware.
PLAIN = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


Table = dict[AwsRegion, dict[TypeName, Positive]]  # USD per hour


def spot_prices(aws: Aws, aws_region: str, types: Iterable[str]) -> dict[tuple[str, str], float]:
    """Return the present spot prices in USD per hour, by (instance type, zone).

    InputError if AWS's prices in `aws_region` are in another currency.
    """
    if names.partition(aws_region) == "aws-cn":  # the answers don't state the currency
        raise InputError(
            f"aws_regions: the prices of {aws_region} are in CNY, but trialfleet calculates in "
            "USD. So a fleet in China can't have spot nodes: set `spot: {share: 0}`, or name other "
            "regions"
        )
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for found in _history(aws, aws_region, sorted(set(types))):
        pair = found["InstanceType"], found["AvailabilityZone"]
        entry = found["Timestamp"], float(found["SpotPrice"])
        newest[pair] = max(newest.get(pair, entry), entry)
    return {pair: price for pair, (_, price) in sorted(newest.items())}


def table() -> Table:
    """Return the on-demand prices, by AWS region and type. InputError if the cache is damaged."""
    found = _read_refreshed()
    for aws_region, known in read_json(SHIPPED)["regions"].items():
        found[aws_region] = known["prices"] | found.get(aws_region, {})
    return found


def why_unavailable(aws_region: str) -> str:
    """Return why AWS gives no on-demand prices in USD for a region, or an empty text.

    The text also says how to write prices to the user's cache. Only AWS's main partition and China
    have the Pricing API, and China's prices are in CNY.
    """
    if names.partition(aws_region) == "aws":
        return ""
    example = f'{{"{aws_region}": {{"g5.xlarge": 1.5}}}}'
    return (
        f"AWS has no on-demand prices in USD for accounts with {aws_region}: trialfleet uses the "
        f"prices in its own table. To set other prices, write them to {cache_file()} as {example}"
    )


def refresh(aws: Aws, aws_regions: Iterable[str], types: Iterable[str]) -> Path:
    """Ask AWS for on-demand prices, and write them to the user's cache. Return its file.

    Other prices in the cache stay. OSError if the cache can't be written.
    """
    kept, wanted = _read_refreshed(), sorted(set(types))
    for aws_region in aws_regions:
        asked = {name: ask(aws, aws_region, name) for name in wanted}
        new = {name: usd for name, usd in asked.items() if usd is not None}
        kept[aws_region] = kept.get(aws_region, {}) | new
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, kept)
    return path


def ask(aws: Aws, aws_region: str, instance_type: str) -> float | None:
    """Return AWS's on-demand price of a type in USD per hour, or None if AWS lists none.

    FleetError if AWS refuses, or has no prices in USD for the region.
    """
    if reason := why_unavailable(aws_region):
        raise FleetError(reason)
    fields = {**PLAIN, "regionCode": aws_region, "instanceType": instance_type}
    filters: list[FilterTypeDef] = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()
    ]
    with asking(f"the on-demand price of {instance_type} in {aws_region}"):
        pages = aws.pricing().get_paginator("get_products")
        found = pages.paginate(ServiceCode="AmazonEC2", Filters=filters)
        products = [json.loads(product) for page in found for product in page["PriceList"]]
    return min(
        (usd for product in products for usd in _hourly_prices(product) if usd > 0), default=None
    )


def cache_file() -> Path:
    """Return the file in the user's cache to which `refresh` writes prices."""
    return platformdirs.user_cache_path("trialfleet") / "on-demand-usd.json"


def _read_refreshed() -> Table:
    """Return the prices in the user's cache. InputError if its file is invalid."""
    try:
        return read_record(cache_file(), shape=Table, if_missing={})
    except InputError as error:
        raise InputError(f"{error}; correct the file or delete it") from None


def _history(aws: Aws, aws_region: str, types: list[Any]) -> list[SpotPriceTypeDef]:
    """Return AWS's present spot price of each type in each zone."""
    if not types:
        return []
    with asking(f"the spot prices of {aws_region}"):
        pages = aws.ec2(aws_region).get_paginator("describe_spot_price_history")
        found = pages.paginate(
            InstanceTypes=types, ProductDescriptions=SYSTEMS, StartTime=datetime.now(UTC)
        )
        return [entry for page in found for entry in page["SpotPriceHistory"]]


def _hourly_prices(product: Mapping[str, Any]) -> list[float]:
    return [
        float(dimension["pricePerUnit"].get("USD", 0))
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == "Hrs"
    ]
