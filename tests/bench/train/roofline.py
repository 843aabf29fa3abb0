"""Limits of the hardware: flops and bytes of a step by formula, ceilings by measurement.

The roofline is the longer of two times: flops by the rate of a matrix product, and bytes by the
bandwidth of a copy. A small network's step can't come near it: each of its launches waits for the
one before, and takes a minimum of time. So there is a third time, the number of launches by the
time of an empty one. The longest of the three bounds the step.

    b   rows of a batch            d, k   numeric and categorical columns
    i   inputs of a layer          e      numbers per categorical value
    o   outputs of a layer         s      bytes of a number in the hidden layers: 2 or 4
    w   weights i · o              p      parameters

Flops of a step; a multiplication with its addition counts as two:
    every layer    2 b i o forward, 2 b i o for the weights' gradient
    and 2 b i o for the inputs' gradient, if anything below has weights

Bytes that a step must move through memory, everything read or written once per operation:
    batch          rows and their order read, embeddings read, [b, i] written
    hidden layer   forward: inputs, weights, product [b, o]; bias and activation: product, outputs
                   backward: outputs and their gradient, product's gradient; that, inputs, weights'
                   gradient; where needed that, weights, inputs' gradient
    last layer     the same without an activation, in float32
    optimiser      gradient read; weight, m, v read and written, float32; the bfloat16 copy written

Data that stay in a cache between two operations need no bandwidth of the memory. So small networks
may be faster than the roofline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from tests.bench.train.workloads import Workload

COPIED = {"cpu": 1 << 28, "cuda": 1 << 31}  # bytes of the array
SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices
CHAIN = 1000  # launches


class Clock:
    """The clock of all measurements.

    Attributes:
        now: the wall's seconds; on a CPU with other programs better this process's own.
    """

    now: Callable[[], float] = staticmethod(time.perf_counter)


@dataclass(frozen=True)
class Step:
    """A step's demands on the hardware."""

    flops: float
    bytes: float
    launches: int  # one after the other


@dataclass(frozen=True)
class Ceilings:
    """This machine's highest rates, measured in the same run."""

    bandwidth: float  # bytes per second, read and written, of a copy
    flops: float  # per second, of a matrix product in the trainer's type
    launch: float  # seconds of an operation that does nothing; on a GPU, within a CUDA graph

    def times(self, step: Step) -> dict[str, float]:
        """Return the least seconds of a step by flops, bytes and launches."""
        return {
            "flops": step.flops / self.flops,
            "bytes": step.bytes / self.bandwidth,
            "launches": step.launches * self.launch,
        }

    def roofline(self, step: Step) -> float:
        """Return the least seconds by flops and bytes alone, without launches."""
        times = self.times(step)
        return max(times["flops"], times["bytes"])

    def bound(self, step: Step) -> str:
        """Return which of flops, bytes and launches takes longest."""
        times = self.times(step)
        return max(times, key=lambda name: times[name])


def measure_ceilings(device: torch.device, dtype: torch.dtype, repeats: int) -> Ceilings:
    """Measure a copy, a matrix product and an empty launch, each `repeats` times."""
    # Random: a GPU takes less power for equal numbers, so its clocks stay higher.
    x, y = (torch.randn(COPIED[device.type] // 4, device=device) for _ in range(2))
    side = SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return Ceilings(
        bandwidth=2 * x.nbytes / best(lambda: y.copy_(x), device, repeats),
        flops=2 * side**3 / best(lambda: a @ b, device, repeats),
        launch=best(chain_of_launches(device), device, repeats) / CHAIN,
    )


def chain_of_launches(device: torch.device) -> Callable[[], object]:
    """Return CHAIN empty launches, one after the other; on a GPU as one CUDA graph."""
    x = torch.ones(1, device=device)

    def chain() -> None:
        for _ in range(CHAIN):
            x.mul_(1.0)

    if device.type != "cuda":
        return chain
    chain()  # loads the kernel, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    return graph.replay


def best(action: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the least seconds of an action."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        begin = Clock.now()
        action()
        synchronize(device)
        times.append(Clock.now() - begin)
    return min(times)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def flops_of(workload: Workload) -> float:
    """Return the flops of a step."""
    b, total = workload.batch, 0
    for layer, (i, o) in enumerate(layers_of(workload)):
        total += (2 + has_gradient(workload, layer)) * 2 * b * i * o
    return float(total)


def bytes_of(workload: Workload, s: int) -> float:
    """Return the bytes of a step; `s` is the bytes of a number in the hidden layers."""
    b, d, k = workload.batch, workload.numeric, len(workload.vocabularies)
    e = workload.settings.embedding
    total = b * (4 * d + 4 * k + 4 + 8 + 4 * k * e + s * (d + k * e))
    for layer, (i, o) in enumerate(layers_of(workload)):
        hidden = layer < workload.layers
        size = s if hidden else 4
        x, w, y = size * b * i, size * i * o, size * b * o
        total += (x + w + y) + (y + x + w) + has_gradient(workload, layer) * (y + w + x)
        total += 2 * y + 3 * y if hidden else 2 * y  # activation; the last layer's: the loss
        total += w + i * o * (24 + (s if hidden and s < 4 else 0))
    return float(total)


def layers_of(workload: Workload) -> list[tuple[int, int]]:
    """Return inputs and outputs of each layer."""
    return [*pairwise(workload.widths)]


def has_gradient(workload: Workload, layer: int) -> bool:
    """Return whether a layer's inputs have a gradient, as hidden units and embeddings have."""
    return layer > 0 or len(workload.vocabularies) > 0
