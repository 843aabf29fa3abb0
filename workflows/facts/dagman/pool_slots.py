"""The slots of the pool: as they are now, and as they would be without jobs."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from trialfleet.classads import value
from trialfleet.infra.pool.collector import slot_ads

if TYPE_CHECKING:
    from classad2 import ClassAd

RESOURCES = ("Cpus", "Memory", "Disk", "GPUs")


class PoolSlots(NamedTuple):
    """The slots of the pool, without the dynamic slots that HTCondor makes for jobs.

    `whole` has each slot as if no job ran on it. `free` has the unclaimed slots, each with only its
    free resources.
    """

    whole: list[ClassAd]
    free: list[ClassAd]


def pool_slots() -> PoolSlots:
    """Return the pool's slots; PoolError if HTCondor is unreachable."""
    slots = slot_ads('SlotType =!= "Dynamic"')
    free = [copy(slot) for slot in slots if slot.get("State") == "Unclaimed"]
    return PoolSlots([_with_total_resources(slot) for slot in slots], free)


def machines(requirements: str = "true") -> set[str]:
    """Return the hosts of slots that meet `requirements`; PoolError if HTCondor is unreachable.

    `requirements` is a ClassAd expression with attributes of slots.
    """
    import classad2

    none = classad2.ClassAd()
    slots = (slot for slot in pool_slots().whole if is_true(requirements, none, slot))
    return {str(slot["Name"]).rpartition("@")[2] for slot in slots}


def _with_total_resources(slot: ClassAd) -> ClassAd:
    for name in RESOURCES:
        total = value(slot, f"TotalSlot{name}")
        if isinstance(total, int | float):
            slot[name] = total
    return slot


def has_gpu(slot: ClassAd) -> bool:
    """Return whether a slot's attribute `HAS_GPU` is true; only then may trials use its GPUs."""
    return "HAS_GPU" in slot and slot.eval("HAS_GPU") is True


def gpus(slot: ClassAd) -> int:
    """Return the number of a slot's GPUs, even if trials may not use them."""
    return int(number_attribute(slot, "GPUs"))


def is_true(clause: str, job: ClassAd, slot: ClassAd) -> bool:
    """Return whether `clause`, a part of a job's requirements, is true for `slot`."""
    import classad2

    return classad2.ExprTree(clause).eval(job, slot) is True


def number_attribute(ad: ClassAd, name: str) -> float:
    """Return the value of the attribute `name`; 0 if it is missing or not a number."""
    found = value(ad, name)
    return float(found) if isinstance(found, int | float) else 0.0
