"""Whether readings are those of a GPU that one may train on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trialfleet.nodes.probe.readings import Gpu, Readings

# The driver's errors that mean the GPU, not the program on it: uncorrectable memory (48, 95, 140),
# memory that can't be set aside (64), internal controllers (62, 119, 120, 143), NVLink (74), and a
# GPU that is no longer on the bus (79). https://docs.nvidia.com/deploy/xid-errors/
SICK_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140, 143})
# GB/s in NVIDIA's data sheets, for the GPUs of EC2's instances. One that is known to be fast and
# moves little is sick, or is not what it says; one that isn't listed is taken as it is.
DATA_SHEET = {
    "Tesla T4": 320,
    "NVIDIA T4G": 320,
    "NVIDIA A10G": 600,
    "NVIDIA L4": 300,
    "NVIDIA L40S": 864,
    "Tesla V100-SXM2-16GB": 900,
    "Tesla V100-SXM2-32GB": 900,
    "NVIDIA A100-SXM4-40GB": 1555,
    "NVIDIA A100-SXM4-80GB": 2039,
    "NVIDIA H100 80GB HBM3": 3350,
    "NVIDIA H200": 4800,
}


@dataclass(frozen=True)
class Thresholds:
    """From where on a reading is bad.

    Attributes:
        ecc_uncorrected: so many memory errors are still good.
        launch_microseconds: so long a launch is still good; tens are usual.
        bandwidth: GB/s that any GPU must reach; 0: no such limit.
        bandwidth_share: of the data sheet's bandwidth, for GPUs that are listed.
    """

    ecc_uncorrected: int = 0
    launch_microseconds: float = 500
    bandwidth: float = 0
    bandwidth_share: float = 0.5


@dataclass(frozen=True)
class Verdict:
    """Whether the machine's GPUs are healthy; what is wrong where not."""

    healthy: bool
    reason: str = ""


def verdict(readings: Readings, thresholds: Thresholds | None = None) -> Verdict:
    """Judge a machine by its readings: healthy when every GPU is and nothing else is wrong."""
    wrong = list(complaints(readings, thresholds or Thresholds()))
    return Verdict(healthy=not wrong, reason="; ".join(wrong))


def complaints(readings: Readings, thresholds: Thresholds) -> Iterator[str]:
    """Yield what is wrong with a machine."""
    yield from readings.problems
    if not readings.gpus and not readings.problems:
        yield "no GPU"
    for xid in sorted(SICK_XIDS & set(readings.xids or ())):
        yield f"Xid {xid} in the kernel's log"
    for gpu in readings.gpus:
        yield from (f"GPU {gpu.index}: {text}" for text in gpu_complaints(gpu, thresholds))


def gpu_complaints(gpu: Gpu, thresholds: Thresholds) -> Iterator[str]:
    """Yield what is wrong with one GPU; what was not read is not held against it."""
    for check in (memory, state, speed):
        yield from check(gpu, thresholds)


def memory(gpu: Gpu, thresholds: Thresholds) -> Iterator[str]:
    """Yield what is wrong with its memory."""
    if (gpu.ecc_uncorrected or 0) > thresholds.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected} memory errors that ECC could not correct"
    if gpu.repair_failed:
        yield "bad memory that could not be set aside"
    if gpu.repair_pending:
        yield "bad memory that is set aside only at its next reset"


def state(gpu: Gpu, _thresholds: Thresholds) -> Iterator[str]:
    """Yield what the driver says is wrong, and whether it counts wrongly."""
    if gpu.reset_required:
        yield "the driver wants it reset"
    if gpu.slowdowns:
        yield f"slowed down by the hardware: {', '.join(gpu.slowdowns)}"
    if gpu.matmul_error:
        yield f"a matrix product is wrong by {gpu.matmul_error:g}"


def speed(gpu: Gpu, thresholds: Thresholds) -> Iterator[str]:
    """Yield whether it is too slow."""
    launch, bandwidth = gpu.launch_microseconds, gpu.bandwidth
    if launch is not None and launch > thresholds.launch_microseconds:
        yield f"a launch takes {launch:.0f} us, over {thresholds.launch_microseconds:g}"
    least = least_bandwidth(gpu.name, thresholds)
    if bandwidth is not None and bandwidth < least:
        yield f"its memory moves {bandwidth:.0f} GB/s, under {least:.0f}"


def least_bandwidth(name: str, thresholds: Thresholds) -> float:
    """Return the GB/s that a GPU of this name must reach."""
    return max(thresholds.bandwidth, thresholds.bandwidth_share * DATA_SHEET.get(name, 0))


def worst(
    readings: Readings, value: Callable[[Gpu], float | None], choose: Callable[..., float]
) -> float | None:
    """Return the worst of a value over the GPUs, by `min` or `max`; None if none was measured."""
    known = [found for gpu in readings.gpus if (found := value(gpu)) is not None]
    return choose(known) if known else None
