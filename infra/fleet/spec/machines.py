"""Instance types, candidates for new nodes, and instances, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Lifecycle = Literal["spot", "on-demand"]
_TAKEN_BACK = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")  # AWS's codes
Pool = tuple[str, str, Lifecycle]  # an instance type in a zone, as spot or on-demand


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """An instance type, as AWS describes it.

    Attributes:
        memory_mb, gpu_memory_mb: memory of the machine, and of one GPU, in MiB.
        gpus: number of NVIDIA GPUs.
        gpu: AWS's name of the GPU, such as `A10G`. Empty without a GPU.
        local_disks_gb: sizes of the local disks in GB.
        clusters: True if instances can be in a cluster placement group.
        efa: True if instances can have an Elastic Fabric Adapter.
    """

    name: str
    vcpus: int
    memory_mb: int
    gpus: int
    gpu: str
    gpu_memory_mb: int
    architecture: str
    local_disks_gb: tuple[int, ...] = ()
    clusters: bool = False
    efa: bool = False


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A choice for a new node: an instance type in a zone, as spot or on-demand.

    Attributes:
        price: USD per hour.
        speed: memory bandwidth of all GPUs of a node in GB/s; of its vCPUs if it has no GPU.
        interruptions: expected number of spot interruptions per hour of a node.
        efficiency: the share of a node's work that is not lost at interruptions.
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
        """The capacity pool of EC2: type, zone, and spot or on-demand."""
        return self.type.name, self.zone, self.lifecycle

    @property
    def price_per_gpu(self) -> float:
        """USD per hour for each GPU, or for the instance if it has no GPU."""
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
        state: AWS's word: pending, running, shutting-down, stopping, stopped or terminated.
        address: the private IP address. Empty if AWS reports none.
        expires: end of its lease, or None if the tag is missing or can't be read.
        price: USD per hour when it was requested, or None if the tag is missing or invalid.
        run: the run for which it was requested. May be empty.
        launch: name of the request that made it.
        ended: AWS's code and message for its end. Empty while it lives, or if AWS doesn't say.
        ended_at: when it ended. None while it lives, or if AWS doesn't say.
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
        """The instance's capacity pool: type, zone, and spot or on-demand."""
        return self.type, self.zone, self.lifecycle

    def price_or(self, new: float) -> float:
        """Return the price in USD per hour, or `new` if the price is unknown."""
        return new if self.price is None else self.price

    @property
    def was_taken_back(self) -> bool:
        """True if AWS reclaimed the spot instance."""
        return self.ended.startswith(_TAKEN_BACK)

    @property
    def is_alive(self) -> bool:
        """True if the instance costs money, or soon will."""
        return self.state in {"pending", "running", "stopping", "stopped"}
