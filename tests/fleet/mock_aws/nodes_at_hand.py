"""Nodes of a fleet as the pool reports them: ads with HTCondor's attributes, and plain data."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import classad2

from trialfleet.classads import plain_attributes
from trialfleet.infra.fleet.htcondor.demand import AS_TEXT
from trialfleet.infra.fleet.scaling.scaling_decision import Node
from trialfleet.infra.fleet.spec.limits import Limits
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Machine, Resources, parse_machines

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ROOM = Resources(gpus=1, cpus=4, memory_mb=15_000)
ONE_GPU = Resources(gpus=1, cpus=1, memory_mb=4_000)
LIMITS = Limits(min_nodes=0, max_nodes=8, idle_minutes=10, boot_minutes=20, room=ROOM, price=0.5)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def slot_ad(instance: str = "i-1", *, now: datetime = NOW, **changes: Any) -> dict[str, Any]:
    """Return a partitionable slot's ad, as an idle node with one healthy GPU sends it."""
    seconds = int(now.timestamp())
    ad = classad2.ClassAd(
        {
            "Name": f"slot1@{instance}",
            "Machine": instance,
            "MyAddress": "<10.0.0.1:9618>",
            "SlotType": "Partitionable",
            "NumDynamicSlots": 0,
            "NumDynamicSlotsTime": seconds - 60,
            "MyCurrentTime": seconds,
            "LastHeardFrom": seconds,
            "Cpus": 4,
            "Memory": 15_000,
            "GPUs": 1,
            "TotalSlotCpus": 4,
            "TotalSlotMemory": 15_000,
            "TotalSlotGPUs": 1,
            "TrialfleetFleet": "demo",
            "TrialfleetInstance": instance,
            "TrialfleetGpuHealthy": True,
            "TrialfleetGpuReason": "",
            "TrialfleetGpuName": "NVIDIA A10G",
            "TrialfleetBandwidth": 481.5,
            **changes,
        }
    )
    return plain_attributes(ad)


def dynamic_ad(instance: str = "i-1", job: str = "7.0", **changes: Any) -> dict[str, Any]:
    """Return the ad of a slot that a job has taken."""
    own = {"SlotType": "Dynamic", "JobId": job, "GlobalJobId": f"vm#{job}#1"}
    return slot_ad(instance, **{"Name": f"slot1_1@{instance}", **own, **changes})


def job_ad(job: str = "7.0", **changes: Any) -> dict[str, Any]:
    """Return a trial in the job queue, running."""
    ad = classad2.ClassAd(
        {
            "JobStatus": 2,
            "GlobalJobId": f"vm#{job}#1",
            "RequestCpus": 1,
            "RequestGPUs": 1,
            "RequestMemory": 4_000,
            "TrialfleetRun": "r1",
            "TrialfleetRegion": "JFK",
            "TrialfleetNode": "JFK.l1.t03",
            **changes,
        }
    )
    return plain_attributes(ad, as_text=AS_TEXT)


@cache
def _usual_node() -> Machine:
    (node,) = parse_machines([slot_ad()])
    return node


def pool_node(instance: str = "i-1", *, idle: float | None = 1.0, **changes: Any) -> Machine:
    """Return a node in the pool: idle for this number of minutes, or busy."""
    node = replace(_usual_node(), instance=instance, slot=f"slot1@{instance}")
    full = {"jobs": ("7.0",), "free": Resources(cpus=3, memory_mb=11_000)} if idle is None else {}
    since = None if idle is None else ago(idle)
    return replace(node, **{"idle_since": since, **full, **changes})


def joined(instance: str = "i-1", *, idle: float | None = 1.0, **changes: Any) -> Node:
    """Return an instance that has joined."""
    price = changes.pop("price", 0.5)
    return replace(
        launched(instance, 60, price=price),
        machine=pool_node(instance, idle=idle, **changes),
        seen=NOW,
    )


def launched(
    name: str = "i-1", minutes: float = 1, *, seen: datetime | None = None, **changes: Any
) -> Node:
    """Return an instance that has not joined, launched this number of minutes ago."""
    listed = instance(name, minutes=minutes, **{"price": 0.5, **changes})
    return Node(instance=listed, room=ROOM, seen=seen)


def instance(name: str = "i-1", *, minutes: float = 60, **changes: Any) -> Instance:
    """Return an instance as AWS lists it, launched this number of minutes ago."""
    usual = Instance(
        id=name,
        aws_region="eu-west-1",
        zone="eu-west-1a",
        type="g5.xlarge",
        lifecycle="spot",
        state="running",
        address="",
        launched=ago(minutes),
        expires=NOW + timedelta(minutes=60),
        price=0.6,
        run="",
        launch="",
    )
    return replace(usual, **changes)
