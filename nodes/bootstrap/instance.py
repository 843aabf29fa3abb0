"""The facts that an EC2 instance reads from its metadata and advertises in the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trialfleet.instance_aws import Imds
from trialfleet.nodes.bootstrap.host import StepError

PRICE_TAG = "meta-data/tags/instance/trialfleet:price"


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The facts about an EC2 instance that it advertises in the pool."""

    id: str  # for instance `i-0123456789abcdef0`
    type: str  # for instance `g5.xlarge`
    zone: str  # for instance `eu-west-1a`
    lifecycle: str  # `spot` or `on-demand`
    price: float | None  # USD per hour at the time of the request; None if unknown


def identify(imds: Imds) -> Instance:
    """Return this instance's facts, read from its metadata.

    Raise StepError if a fact other than the price is missing. Raise AwsError if the metadata can't
    be read.
    """
    return Instance(
        id=_text(imds, "meta-data/instance-id"),
        type=_text(imds, "meta-data/instance-type"),
        zone=_text(imds, "meta-data/placement/availability-zone"),
        lifecycle=_text(imds, "meta-data/instance-life-cycle"),
        price=_price(imds.get(PRICE_TAG)),
    )


def _text(imds: Imds, path: str) -> str:
    found = imds.get(path)
    if not found:
        raise StepError(f"the instance's metadata service has no value for {path}")
    return found.strip()


def _price(text: str | None) -> float | None:
    try:
        price = float(text or "")
    except ValueError:
        return None
    return price if math.isfinite(price) else None
