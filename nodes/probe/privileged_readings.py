"""Readings that the GPU probe can't take itself, such as the bandwidths of other nodes' GPUs.

The probe runs under HTCondor's account, which can read neither the kernel's log nor the pool's
token, with which to query other nodes' measurements. So the node's bootstrap and agent, which run
as root, write the log's errors and the measurements to a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trialfleet.nodes.probe.kernel_log import Xid

FILE = "/run/trialfleet/privileged.json"
NAME, BANDWIDTH, INSTANCE = "TrialfleetGpuName", "TrialfleetBandwidth", "TrialfleetInstance"
# The query for other nodes' bandwidths: one ad for each node that has healthy GPUs.
QUERY = (
    *("condor_status", "-json", "-attributes", f"{NAME},{BANDWIDTH},{INSTANCE}"),
    *("-constraint", f"PartitionableSlot && HAS_GPU && {BANDWIDTH} > 0"),
)


@dataclass(frozen=True)
class PrivilegedReadings:
    """The readings in root's file."""

    # The driver's errors since boot; None if the log can't be read.
    xids: tuple[Xid, ...] | None = None
    # Bandwidth of the pool's other nodes in GB/s, by the name of their GPUs.
    pool: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self)) + "\n"


def read(file: Path = Path(FILE)) -> PrivilegedReadings:
    """Return the readings in root's file, or empty readings if the file is missing or invalid."""
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        listed = table["xids"]
        return PrivilegedReadings(
            xids=None if listed is None else tuple(Xid(*one) for one in listed),
            pool={name: tuple(values) for name, values in table["pool"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return PrivilegedReadings()


def bandwidths(ads: Iterable[Mapping[str, Any]], besides: str) -> dict[str, tuple[float, ...]]:
    """Return the nodes' memory bandwidths in GB/s, by GPU name.

    `ads` are the ClassAds that QUERY returned. The EC2 instance `besides` is left out.
    """
    found: dict[str, list[float]] = {}
    for ad in ads:
        if NAME in ad and BANDWIDTH in ad and ad.get(INSTANCE) != besides:
            found.setdefault(ad[NAME], []).append(float(ad[BANDWIDTH]))
    return {name: tuple(sorted(values)) for name, values in sorted(found.items())}
