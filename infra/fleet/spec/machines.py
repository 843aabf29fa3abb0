"""Instance types, the choices among them, and instances, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Lifecycle = Literal["spot", "on-demand"]
Pool = tuple[str, str, Lifecycle]  # an instance type in a zone


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """An instance type, from AWS's description.

    Attributes:
        name: for instance `g5.xlarge`.
        vcpus: virtual processors.
        memory_mb: main memory in MiB.
        gpus: number of NVIDIA GPUs; may be 0.
        gpu: AWS's name of the GPU, such as `A10G`; empty without a GPU.
        gpu_memory_mb: memory of one GPU in MiB; 0 without a GPU.
        architecture: `x86_64` or `arm64`.
        local_disk_gb: local NVMe disks in GB; 0 without a disk.
        clusters: True if it can be in a cluster placement group.
        efa: True if it has an Elastic Fabric Adapter.
    """

    name: str
    vcpus: int
    memory_mb: int
    gpus: int
    gpu: str
    gpu_memory_mb: int
    architecture: str
    local_disk_gb: int = 0
    clusters: bool = False
    efa: bool = False


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to get a node: a type in a zone, spot or on-demand. EC2 calls it a capacity pool.

    Attributes:
        price: USD per hour.
        speed: relative speed of its nodes: GB/s of memory bandwidth of all their GPUs; the number
            of vCPUs if the fleet's nodes have no GPUs.
        interruptions: expected number of spot interruptions per hour of a node.
        efficiency: the share of a node's hours that interruptions leave for finished trials.
    """

    type: InstanceType
    aws_region: str
    zone: str
    lifecycle: Lifecycle
    price: float
    speed: float = 1.0
    interruptions: float = 0.0
    efficiency: float = 1.0

    @property
    def pool(self) -> Pool:
        """The capacity pool, without the price."""
        return self.type.name, self.zone, self.lifecycle

    @property
    def price_per_gpu(self) -> float:
        """USD per GPU and hour; per instance without GPUs."""
        return self.price / max(1, self.type.gpus)

    @property
    def throughput(self) -> float:
        """The expected finished work of a node per hour, in units of `speed`."""
        return self.speed * self.efficiency

    @property
    def cost(self) -> float:
        """USD per unit of finished work, by which candidates are compared."""
        return self.price / self.throughput


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance of a fleet, as AWS describes it.

    Attributes:
        id: for instance `i-0123456789abcdef0`.
        state: AWS's own word: pending, running, shutting-down, stopping, stopped, terminated.
        address: the private IP address; empty if AWS has none, or no longer.
        launched: when AWS started it.
        expires: end of its lease; None if the tag is missing or can't be read.
        price: USD per hour when it was requested; None if the tag is missing.
        run: the run that it was requested for; empty without one.
        launch: name of the request that made it.
        ended: why it ended, AWS's code and message; empty while it lives, or if AWS doesn't say.
        ended_at: when it ended; None while it lives, or if AWS doesn't say.
    """

    id: str
    aws_region: str
    zone: str
    type: str
    lifecycle: Lifecycle
    state: str
    address: str
    launched: datetime
    expires: datetime | None
    price: float | None
    run: str
    launch: str
    tags: dict[str, str] = field(default_factory=dict)
    ended: str = ""
    ended_at: datetime | None = None

    @property
    def pool(self) -> Pool:
        """Its capacity pool."""
        return self.type, self.zone, self.lifecycle

    def price_or(self, new: float) -> float:
        """Return USD per hour; if unknown, the price of a new node."""
        return new if self.price is None else self.price

    @property
    def alive(self) -> bool:
        """True if it costs money, or soon will."""
        return self.state in {"pending", "running", "stopping", "stopped"}
