"""The EC2 instance that this program runs on, if any."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trialfleet.instance_aws import AwsError, Imds

PATIENCE = 1.0  # seconds; outside of EC2 the service does not answer


@dataclass(frozen=True, kw_only=True)
class OwnInstance:
    """This machine as an EC2 instance, with its private IP address."""

    id: str
    aws_region: str
    address: str


def find() -> OwnInstance | None:
    """Return this EC2 instance; None outside EC2, or if AWS_EC2_METADATA_DISABLED is true."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    imds = Imds(timeout=PATIENCE)
    names = ("instance-id", "placement/region", "local-ipv4")
    try:
        found = [(imds.get(f"meta-data/{name}") or "").strip() for name in names]
    except AwsError:  # no route, no answer
        return None
    own, aws_region, address = found
    return OwnInstance(id=own, aws_region=aws_region, address=address) if all(found) else None
