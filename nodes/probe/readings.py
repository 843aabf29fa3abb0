"""The probe's readings of a machine's GPUs, as plain data that converts to JSON and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU. A value is None if the GPU or its driver doesn't report it."""

    index: int  # its number, in the order of the PCI bus
    name: str = ""  # such as `NVIDIA A10G`
    uuid: str = ""  # such as `GPU-5135b1cf-…`
    pci: str = ""  # its address on the PCI bus, such as `0000:00:1e`
    # Memory errors since the driver was loaded that ECC couldn't correct.
    ecc_uncorrected: int | None = None
    repair_pending: bool | None = None  # bad memory will be replaced by spare memory at a reset
    repair_failed: bool | None = None  # bad memory could not be replaced by spare memory
    reset_required: bool | None = None  # the driver requires a reset of the GPU
    # Why the hardware slows down now, such as `hw_thermal_slowdown`.
    slowdowns: tuple[str, ...] = ()
    # Codes (Xid) of the driver's errors about this GPU in the kernel's log since boot, in order.
    xids: tuple[int, ...] = ()
    watts: float | None = None  # its power now
    watts_limit: float | None = None  # the maximum that is allowed
    celsius: float | None = None  # its temperature
    # PCIe generation of the link to the host now; an idle GPU may slow its link to generation 1.
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None  # the highest generation of which both ends are capable
    pcie_width: int | None = None  # lanes of the link now
    pcie_width_max: int | None = None  # lanes of the link at most
    processes: int = 0  # programs that use it
    # Median time from the launch of a small kernel until the host knows that it has ended.
    launch_microseconds: float | None = None
    launch_rate: float | None = None  # small kernels launched per second, one right after the other
    bandwidth: float | None = None  # GB/s (10^9 bytes) read plus written by a copy on the device
    host_bandwidth: float | None = None  # GB/s from the host's pinned memory to the device
    # Largest error in a matrix product of small integers; 0 on a healthy GPU.
    matmul_error: float | None = None
    problem: str = ""  # why it can't be used; empty: it can

    @property
    def id(self) -> str:
        """HTCondor's name of the GPU, such as `GPU-5135b1cf`, or empty if unknown."""
        found = re.match(r"GPU-[0-9a-fA-F]{8}(?=-|$)", self.uuid)
        return found[0] if found else ""


@dataclass(frozen=True)
class Readings:
    """The readings of a machine."""

    driver: str = ""  # version of the driver; empty if there is none
    cuda: str = ""  # the newest CUDA that the driver can run, such as `12.4`
    gpus: tuple[Gpu, ...] = ()  # in the order of their numbers
    # Codes (Xid) of the driver's errors since boot about GPUs that are not in `gpus`; None if the
    # kernel's log can't be read.
    xids: tuple[int, ...] | None = None
    # Bandwidth of the pool's other nodes, by the name of their GPUs.
    pool: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Whether trialfleet's CUDA kernels are built and load; None if unknown.
    kernels: bool | None = None
    problems: tuple[str, ...] = ()  # problems of the machine as a whole
    not_measured: str = ""  # why speed was not measured; empty: it was

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Readings:
        """Return the readings in a table made by `asdict`. Raise ValueError if it is invalid."""
        try:
            gpus = tuple(Gpu(**_lists_to_tuples(gpu)) for gpu in table.get("gpus", ()))
            pool = _lists_to_tuples(table.get("pool", {}))
            return replace(cls(**_lists_to_tuples(table)), gpus=gpus, pool=pool)
        except (TypeError, AttributeError) as error:
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(
                f"not the probe's readings: {error}; the known names are {known}"
            ) from error


def _lists_to_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
