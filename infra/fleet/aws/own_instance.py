"""The EC2 instance that this program runs on, if it does."""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass

IMDS = "http://169.254.169.254"
PATIENCE = 1.0  # seconds; away from EC2 nobody answers at that address
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 (the name of a header)


@dataclass(frozen=True, kw_only=True)
class OwnInstance:
    """This machine as EC2 knows it.

    Attributes:
        id: for instance `i-0123456789abcdef0`.
        aws_region: where it runs.
        address: its private address, at which nodes of its network find it.
    """

    id: str
    aws_region: str
    address: str


def look(base: str | None = None) -> OwnInstance | None:
    """Ask EC2's metadata service (IMDSv2) who this machine is.

    Args:
        base: where the service answers; by default as the AWS tools' own variables have it.

    Returns:
        None on a machine that isn't an EC2 instance.
    """
    if base is None and os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = base or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or IMDS
    try:
        return _described(base.rstrip("/"))
    except OSError:  # urllib's own errors are of this kind: no route, no answer, no such page
        return None


def _described(base: str) -> OwnInstance:
    token = _ask(base + "/latest/api/token", "PUT", {f"{_TOKEN}-ttl-seconds": "60"})
    page = {
        name: _ask(f"{base}/latest/meta-data/{name}", "GET", {_TOKEN: token})
        for name in ("instance-id", "placement/region", "local-ipv4")
    }
    return OwnInstance(
        id=page["instance-id"], aws_region=page["placement/region"], address=page["local-ipv4"]
    )


def _ask(url: str, method: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310
    with _DIRECT.open(request, timeout=PATIENCE) as answer:
        return str(answer.read().decode().strip())


# A proxy would answer for itself, not for this machine.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
