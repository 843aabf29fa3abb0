"""The price of a slot: a share of the price of its node (a machine of the pool).

    p    price of a whole node, in USD per hour
    s    a slot's share of the node, from 0 to 1
    t    time that a job executes in the slot, in seconds

    cost of the job, in USD = p · s · t / 3600

People pay for a node with GPUs because of its GPUs. So the share of a slot with GPUs is its share
of the node's GPUs. The share of a slot without GPUs is the mean of its shares of the cores and of
the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialfleet.workflows.cleaning import amount

HOUR = 3600.0
PRICE = "TrialfleetPricePerHour"
INSTANCE = "TrialfleetInstance"
# The attributes of node and slot that the submit file adds to a job's ad and event log.
PRICED_BY = (PRICE, INSTANCE, "TotalGPUs", "TotalCpus", "TotalMemory", "GPUs", "Memory")

# The attributes of a running job's ad with the values for `slot_price`.
SLOT_OF_JOB = {name: f"MachineAttr{name}0" for name in (*PRICED_BY, "Cpus")}


def slot_price(ad: Mapping[str, Any], default: float | None = None) -> float | None:
    """Return a slot's price in USD per hour; None if its node's price or its share is unknown.

    `ad` is a ClassAd with the attributes in `PRICED_BY` and with `Cpus`. If it has no price, the
    node's price is `default`.
    """
    price = amount(ad.get(PRICE))
    price = default if price is None else price
    cpus, memory, gpus = (_share(ad, name) for name in ("Cpus", "Memory", "GPUs"))
    if price is None or cpus is None or memory is None:
        return None
    return price * (gpus or (cpus + memory) / 2)


def _share(ad: Mapping[str, Any], name: str) -> float | None:
    """Return a slot's share of its node's resource, from 0 to 1; None if unknown."""
    part, total = amount(ad.get(name)), amount(ad.get(f"Total{name}"))
    if part is None or total is None:
        return None
    return min(1.0, part / total) if total > 0 else 0.0
