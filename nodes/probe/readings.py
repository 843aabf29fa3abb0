"""The probe's readings of a machine's GPUs, as plain data that converts to JSON and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU; a value is None if the GPU or its driver doesn't report it."""

    index: int  # its number, in the order of the PCI bus
    name: str = ""  # such as `NVIDIA A10G`
    uuid: str = ""  # such as `GPU-5135b1cf-…`
    pci: str = ""  # its place on the bus, such as `0000:00:1e`
    # Memory errors since the driver was loaded that ECC couldn't correct.
    ecc_uncorrected: int | None = None
    repair_pending: bool | None = None  # bad memory is remapped at the GPU's next reset
    repair_failed: bool | None = None  # bad memory could not be remapped
    reset_required: bool | None = None  # the driver requires a reset of the GPU
    # Why the hardware slows down now, such as `hw_thermal_slowdown`.
    slowdowns: tuple[str, ...] = ()
    # Codes of the driver's errors about it in the kernel's log since boot, in order.
    xids: tuple[int, ...] = ()
    watts: float | None = None  # its power, and `watts_limit` its maximum
    watts_limit: float | None = None
    celsius: float | None = None  # its temperature
    # Of the link to the host, now: an idle GPU's link may be slowed to the first;
    # `pcie_generation_max` is what both ends can do.
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None  # lanes of that link, now; `pcie_width_max`: at most
    pcie_width_max: int | None = None
    processes: int = 0  # programs that use it
    # Launch of a small kernel until it is known to be done, median.
    launch_microseconds: float | None = None
    launch_rate: float | None = None  # small kernels launched per second, one right after the other
    bandwidth: float | None = None  # GB/s (10^9 bytes) read plus written by a copy on the device
    host_bandwidth: float | None = None  # GB/s from the host's pinned memory to the device
    # Largest difference of a matrix product of small integers; 0 is right.
    matmul_error: float | None = None
    problem: str = ""  # why it can't be used; empty: it can

    @property
    def id(self) -> str:
        """HTCondor's name of the GPU (`condor_gpu_discovery -short-uuid`); empty if unknown."""
        found = re.match(r"GPU-[0-9a-fA-F]{8}(?=-|$)", self.uuid)
        return found[0] if found else ""


@dataclass(frozen=True)
class Readings:
    """The readings of a machine."""

    driver: str = ""  # version of the driver; empty without one
    cuda: str = ""  # the newest CUDA that the driver can run, such as `12.4`
    gpus: tuple[Gpu, ...] = ()  # in the order of their numbers
    # Codes of the driver's errors since boot about an unlisted GPU; None if the
    # kernel's log can't be read.
    xids: tuple[int, ...] | None = None
    # The driver's options, as /proc has them.
    parameters: Mapping[str, str] = field(default_factory=dict)
    # Bandwidth of the pool's other nodes, by the name of their GPUs.
    pool: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # The CUDA kernels of trialfleet are built, and load; None if unknown.
    kernels: bool | None = None
    problems: tuple[str, ...] = ()  # problems of the machine as a whole
    not_measured: str = ""  # why speed was not measured; empty: it was

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Readings:
        """Return the readings from a table made by `asdict`; ValueError if the table is invalid."""
        try:
            gpus = tuple(Gpu(**_lists_to_tuples(gpu)) for gpu in table.get("gpus", ()))
            pool = _lists_to_tuples(table.get("pool", {}))
            return replace(cls(**_lists_to_tuples(table)), gpus=gpus, pool=pool)
        except (TypeError, AttributeError) as error:
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"{error}; readings have {known}") from error


def _lists_to_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
