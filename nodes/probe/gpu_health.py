"""The rules by which a GPU is healthy or sick, with thresholds for its readings.

The node's agent takes sick GPUs offline (node_agent/decisions.py).

Two kinds of slowness need different repairs:

- Slow launches: each small kernel takes long to launch, but memory is fast. This happened
  on EC2 in 2014: the driver read the PCI configuration space at each call, and the hypervisor made
  each read slow.
- Slow memory: launches are fast, but a copy on the device is far slower than in the data sheet or
  on the pool's other nodes with this GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trialfleet.gpu_memory import DATA_SHEET
from trialfleet.nodes.probe.readings import Gpu, Readings

# Numbers of the driver's errors that the GPU causes, not a program: uncorrectable memory (48, 95,
# 140), memory that can't be replaced by spare memory (64), internal controllers (62, 119, 120,
# 143), NVLink (74), a GPU that is gone from the bus (79).
# https://docs.nvidia.com/deploy/xid-errors/
SICK_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, 143})
LIKE = 3  # minimum number of other nodes with the same GPU for a comparison with their median
# GB/s of one lane of a PCIe link in one direction, by generation: the billions of bits per second
# of PCI-SIG's base specification (2.5, 5, 8, 16, 32), times the share of them that is data (8 of 10
# bits; from generation 3 on, 128 of 130), divided by 8 bits per byte.
PCIE_LANE = {
    1: 2.5 * 8 / 10 / 8,
    2: 5 * 8 / 10 / 8,
    3: 8 * 128 / 130 / 8,
    4: 16 * 128 / 130 / 8,
    5: 32 * 128 / 130 / 8,
}


def _field_with_help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Thresholds:
    """Limits beyond which a reading is bad. Each limit is an option of the probe."""

    ecc_uncorrected: int = _field_with_help(0, "maximum number of uncorrectable memory errors")
    launch_microseconds: float = _field_with_help(
        500.0, "maximum microseconds from a kernel's launch until the host knows that it has ended"
    )
    # Launches in direct succession. The slow GPUs of 2014 reached 400 to 1,200 per second; after
    # the repair they reached 20,000.
    launch_rate: float = _field_with_help(10_000.0, "minimum launches per second of any GPU")
    bandwidth: float = _field_with_help(0.0, "minimum GB/s of any GPU's memory")
    bandwidth_share: float = _field_with_help(
        0.5, "minimum share of a known GPU's data-sheet bandwidth"
    )
    pool_share: float = _field_with_help(
        0.7, "minimum share of the median bandwidth of the pool's other nodes with this GPU"
    )
    host_share: float = _field_with_help(
        0.2, "minimum share of the PCIe link's capacity that copies from the host reach"
    )


@dataclass(frozen=True)
class Verdict:
    """The verdict on a machine's GPUs."""

    healthy: bool
    reason: str = ""  # all problems; empty: none
    sick: tuple[str, ...] = ()  # HTCondor's names of the sick GPUs


def verdict(readings: Readings, thresholds: Thresholds | None = None) -> Verdict:
    """Return the verdict on a machine with these readings.

    The machine is healthy if it has no problem as a whole, at least one of its GPUs is healthy, and
    each sick GPU has a name by which HTCondor can exclude it.
    """
    bounds = thresholds or Thresholds()
    common = list(machine_complaints(readings))
    of_gpus = [list(gpu_complaints(gpu, readings, bounds)) for gpu in readings.gpus]
    sick = [gpu for gpu, problems in zip(readings.gpus, of_gpus, strict=True) if problems]
    usable = not common and len(sick) < len(readings.gpus) and all(gpu.id for gpu in sick)
    return Verdict(
        healthy=usable,
        reason="; ".join([*common, *each_once(readings, of_gpus)]),
        sick=tuple(gpu.id for gpu in sick if gpu.id),
    )


def machine_complaints(readings: Readings) -> Iterator[str]:
    """Yield the problems of a machine as a whole."""
    yield from readings.problems
    if not readings.gpus and not readings.problems:
        yield "no GPU"
    for xid in sorted(SICK_XIDS & set(readings.xids or ())):
        yield f"Xid {xid} in the kernel's log, of a GPU that the driver doesn't list"


def each_once(readings: Readings, of_gpus: list[list[str]]) -> Iterator[str]:
    """Yield each problem once, with the numbers of the GPUs that have it.

    `of_gpus` has one list of problems for each GPU in `readings`.
    """
    for text in dict.fromkeys(text for problems in of_gpus for text in problems):
        numbers = (
            str(gpu.index)
            for gpu, problems in zip(readings.gpus, of_gpus, strict=True)
            if text in problems
        )
        yield f"GPU {', '.join(numbers)}: {text}"


def gpu_complaints(gpu: Gpu, readings: Readings, thresholds: Thresholds) -> Iterator[str]:
    """Yield the problems of one GPU. Missing readings are not problems."""
    yield from memory_errors(gpu, thresholds)
    yield from state(gpu)
    yield from speed(gpu, readings, thresholds)


def memory_errors(gpu: Gpu, thresholds: Thresholds) -> Iterator[str]:
    """Yield the problems of a GPU's memory."""
    if (gpu.ecc_uncorrected or 0) > thresholds.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected} memory errors that ECC could not correct"
    if gpu.repair_failed:
        yield "bad memory that could not be replaced by spare memory"
    if gpu.repair_pending:
        yield "bad memory that is replaced by spare memory only when the GPU is reset"


def state(gpu: Gpu) -> Iterator[str]:
    """Yield the problems that the driver or the measurement of a GPU has reported."""
    if gpu.problem:
        yield gpu.problem
    for xid in sorted(SICK_XIDS & set(gpu.xids)):
        yield f"Xid {xid} in the kernel's log"
    if gpu.reset_required:
        yield "the driver requires a reset"
    if gpu.slowdowns:
        yield f"slowed down by the hardware: {', '.join(gpu.slowdowns)}"
    if gpu.matmul_error:
        yield f"a matrix product is wrong by {gpu.matmul_error:g}"


def speed(gpu: Gpu, readings: Readings, thresholds: Thresholds) -> Iterator[str]:
    """Yield the problems with the speed of a GPU's launches, memory and link to the host."""
    launches = slow_launches(gpu, thresholds)
    memory = slow_memory(gpu, readings, thresholds)
    if launches and not memory and gpu.bandwidth is not None:
        yield (
            f"each small launch is slow ({launches}) although the memory is not slow "
            f"({gpu.bandwidth:.0f} GB/s): perhaps a hypervisor traps the PCI configuration space "
            "(see TrialfleetDriverOption)"
        )
    elif launches:
        yield f"each small launch is slow ({launches})"
    if memory:
        quick = not launches and gpu.launch_rate is not None
        yield f"the memory is slow ({memory}){' although launches are not slow' if quick else ''}"
    yield from slow_link(gpu, thresholds)


def slow_launches(gpu: Gpu, thresholds: Thresholds) -> str:
    """Return how slow launches are, as text, or "" if they are fast enough or not measured."""
    latency, rate = gpu.launch_microseconds, gpu.launch_rate
    found = []
    if latency is not None and latency > thresholds.launch_microseconds:
        most = thresholds.launch_microseconds
        found.append(f"{latency:.0f} us until it is done instead of at most {most:g}")
    if rate is not None and rate < thresholds.launch_rate:
        found.append(f"{rate:.0f} per second instead of at least {thresholds.launch_rate:g}")
    return ", ".join(found)


def slow_memory(gpu: Gpu, readings: Readings, thresholds: Thresholds) -> str:
    """Return how slow the memory is, as text, or "" if it is fast enough or not measured."""
    found = gpu.bandwidth
    if found is None:
        return ""
    bounds = [(thresholds.bandwidth, "")]
    if sheet := DATA_SHEET.get(gpu.name):
        of_sheet = thresholds.bandwidth_share
        of_what = f", which is {of_sheet:.0%} of the data sheet's {sheet:g}"
        bounds.append((of_sheet * sheet, of_what))
    if usual := pool_median(gpu, readings):
        of_pool = thresholds.pool_share
        of_what = f", which is {of_pool:.0%} of the pool's median {usual:.0f}"
        bounds.append((of_pool * usual, of_what))
    least, of_what = max(bounds)
    if found >= least:
        return ""
    return f"a copy moves {found:.0f} GB/s instead of at least {least:.0f}{of_what}"


def pool_median(gpu: Gpu, readings: Readings) -> float | None:
    """Return the median memory bandwidth, in GB/s, of other nodes with this GPU's model.

    Return None if fewer than LIKE other nodes have this model.
    """
    others = readings.pool.get(gpu.name, ())
    return statistics.median(others) if len(others) >= LIKE else None


def slow_link(gpu: Gpu, thresholds: Thresholds) -> Iterator[str]:
    """Yield a problem if the link from the host is slow."""
    most = link_capacity(gpu.pcie_generation_max, gpu.pcie_width_max)
    if gpu.host_bandwidth is None or most is None:
        return
    least = thresholds.host_share * most
    if gpu.host_bandwidth < least:
        yield (
            f"the host sends {gpu.host_bandwidth:.1f} GB/s instead of at least {least:.1f}, which "
            f"is {thresholds.host_share:.0%} of what PCIe {gpu.pcie_generation_max} "
            f"x{gpu.pcie_width_max} can carry (the link is now PCIe {gpu.pcie_generation} "
            f"x{gpu.pcie_width})"
        )


def link_capacity(generation: int | None, width: int | None) -> float | None:
    """Return a PCIe link's capacity in one direction in GB/s, or None if it is unknown."""
    lane = PCIE_LANE.get(generation or 0)
    return lane * width if lane and width else None
