"""The machines of the pool that a run's trials run on, by what they say of themselves."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trialfleet.classads import plain
from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, use
from trialfleet.workflows.costs.cost import node_price

_LOOK_EVERY = 10.0  # seconds; the slots of a large pool are megabytes
_ATTRIBUTES = [
    "Machine", "SlotType", "State", "Cpus", "TotalSlotCpus", "TotalSlotGPUs", "GPUs", "Draining",
    "JobId", "IsDataSlot", "TrialfleetFleet", "TrialfleetInstance", "TrialfleetInstanceType",
    "TrialfleetLifecycle", "TrialfleetZone", "TrialfleetPricePerHour", "TrialfleetGpuName",
    "TrialfleetGpuHealthy", "TrialfleetGpuReason", "TrialfleetNote", "DrainReason",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the pool.

    Attributes:
        name: its name in the pool.
        kind: what it is: instance type and lifecycle, and its GPU; empty where nobody said.
        state: `well`, `sick` or `draining`.
        why: why it isn't well, or refuses jobs; empty where there is nothing to say.
        price: USD per hour; None if nobody knows.
        cpus, gpus: what it has.
        jobs: how many jobs it runs, of whatever run.
    """

    name: str
    kind: str
    state: str
    why: str
    price: float | None
    cpus: int
    gpus: int
    jobs: int


@dataclass(frozen=True, kw_only=True)
class PoolNodes:
    """The nodes of a pool, and why they are unknown, if they are."""

    nodes: tuple[Node, ...] = ()
    notice: str = ""

    @property
    def price(self) -> float:
        """USD per hour of all whose price is known."""
        return sum(node.price or 0.0 for node in self.nodes)


class NodeReader:
    """Asks the collector now and then, whoever wants to know."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._found = PoolNodes()
        self._lock = threading.Lock()

    def read(self) -> PoolNodes:
        """Return the nodes as they were at most some seconds ago."""
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK_EVERY:
                try:
                    self._found = PoolNodes(nodes=read_nodes(_ads()))
                except PoolError as error:
                    self._found = PoolNodes(notice=str(error))
                self._looked = time.monotonic()
            return self._found


def _ads() -> list[dict[str, Any]]:
    use(connect())
    import htcondor2

    try:
        kind = htcondor2.AdTypes.Startd
        ads = htcondor2.Collector().query(kind, projection=_ATTRIBUTES)
        return [plain(ad) for ad in ads]
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor's collector does not answer: {error}") from error


def read_nodes(ads: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Return the machines that slots' ads describe, by name."""
    of: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for ad in ads:
        if isinstance(ad.get("Machine"), str):
            of[ad["Machine"]].append(ad)
    return tuple(_node(name, slots) for name, slots in sorted(of.items()))


def _node(name: str, slots: list[Mapping[str, Any]]) -> Node:
    whole = [slot for slot in slots if slot.get("SlotType") != "Dynamic"] or slots
    ad = whole[0]
    state, why = _health(ad)
    return Node(
        name=name,
        kind=_kind(ad),
        state=state,
        why=why,
        price=node_price(ad) or None,
        cpus=sum(_number(slot, "TotalSlotCpus") for slot in whole),
        gpus=sum(_number(slot, "TotalSlotGPUs") for slot in whole),
        jobs=sum(map(_runs_a_job, slots)),
    )


def _runs_a_job(slot: Mapping[str, Any]) -> bool:
    """Whether a slot runs a job: a claim outlives its job, for the next one.

    The slots in which HTCondor keeps what several jobs' inputs have in common name a job too, and
    are claimed long after it.
    """
    return "JobId" in slot and slot.get("IsDataSlot") is not True


def _kind(ad: Mapping[str, Any]) -> str:
    names = ("TrialfleetInstanceType", "TrialfleetLifecycle", "TrialfleetGpuName")
    return " · ".join(text for name in names if (text := _text(ad, name)))


def _health(ad: Mapping[str, Any]) -> tuple[str, str]:
    if ad.get("Draining") is True:
        return "draining", _text(ad, "DrainReason") or _text(ad, "TrialfleetNote")
    if ad.get("TrialfleetGpuHealthy") is False and _number(ad, "TotalSlotGPUs"):
        return "sick", _text(ad, "TrialfleetGpuReason") or "its GPU failed the probe"
    return "well", _text(ad, "TrialfleetNote") or _text(ad, "TrialfleetGpuReason")


def _text(ad: Mapping[str, Any], name: str) -> str:
    value = ad.get(name)
    return value if isinstance(value, str) else ""


def _number(ad: Mapping[str, Any], name: str) -> int:
    value = ad.get(name)
    return int(value) if isinstance(value, int | float) else 0
