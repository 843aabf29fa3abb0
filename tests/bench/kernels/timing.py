"""Times calls on one device: by CUDA events on a GPU, by the clock on a CPU.

The benchmark of 2014 was 128 x 1000 calls. Each of the 128 rounds is timed separately, which gives
a median and a spread. Nothing waits for the device between the first call and the last.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

ROUNDS, CALLS = 128, 1000
FEWEST_ROUNDS = 8  # for a median and a spread
TRIED = 100  # calls in a row, to see how long one takes

Call = Callable[[], object]
Repeat = Callable[[Call, int], Call]


@dataclass(frozen=True)
class Timing:
    """The seconds of some rounds, each of several calls."""

    calls: int
    rounds: tuple[float, ...]

    @property
    def count(self) -> int:
        """The number of calls made."""
        return self.calls * len(self.rounds)

    @property
    def seconds(self) -> float:
        """The time of all calls."""
        return sum(self.rounds)

    @property
    def microseconds(self) -> tuple[float, float, float]:
        """First decile, median and last decile of a call's time, over the rounds."""
        if len(self.rounds) == 1:
            return (self.rounds[0] / self.calls * 1e6,) * 3
        deciles = statistics.quantiles(self.rounds, n=10, method="inclusive")
        low, middle, high = (deciles[i] / self.calls * 1e6 for i in (0, 4, 8))
        return low, middle, high


class Meter:
    """Times what runs on the CPU.

    Attributes:
        device: the CPU; a GPU in subclasses.
        manners: the ways of repeating a call, by name: "called"; on a GPU also "graph".
        warm_up: seconds of calls before the measurement, in which clock rates rise and caches fill.
    """

    warm_up = 0.1

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.manners: dict[str, Repeat] = {"called": repeated}

    def rounds(self, action: Call, count: int) -> tuple[float, ...]:
        """Return the seconds of each of `count` actions, made one right after the other."""
        marks = [time.perf_counter()]
        with without_collector():
            for _ in range(count):
                action()
                marks.append(time.perf_counter())
        return tuple(end - begin for begin, end in pairwise(marks))


class CudaMeter(Meter):
    """Times the work of one stream of a GPU by the GPU's clock, including waits for launches.

    Everything that is measured runs on `stream`, with nothing else on the GPU.
    """

    warm_up = 0.02

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        torch.cuda.set_device(device)
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.manners["graph"] = self.captured

    def rounds(self, action: Call, count: int) -> tuple[float, ...]:
        """Return the seconds of each of `count` actions, queued one right after the other."""
        marks = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(count + 1)
        ]
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self.stream), without_collector():
            marks[0].record(self.stream)
            for mark in marks[1:]:
                action()
                mark.record(self.stream)
        self.stream.synchronize()
        return tuple(begin.elapsed_time(end) / 1000 for begin, end in pairwise(marks))

    def captured(self, call: Call, calls: int) -> Call:
        """Return the launch of a CUDA graph of `calls` calls; make one call outside first."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(calls):
                call()
        return graph.replay


def repeated(call: Call, calls: int) -> Call:
    """Return an action that makes a call `calls` times."""

    def action() -> None:
        for _ in range(calls):
            call()

    return action


def measured(meter: Meter, call: Call, repeat: Repeat, budget: float) -> Timing:
    """Time a call 128 x 1000 times, or for about `budget` seconds if that is less.

    Args:
        meter: of the device.
        call: what is timed.
        repeat: one of the meter's ways of repeating a call.
        budget: seconds for all rounds.
    """
    warm_up = min(meter.warm_up, budget / 2)
    tried = max(1, min(TRIED, int(warm_up / max(seconds_when_warm(meter, call, warm_up), 1e-9))))
    seconds = seconds_when_warm(meter, repeat(call, tried), warm_up) / tried
    rounds, calls = scaled(seconds, budget)
    action = repeat(call, calls)
    meter.rounds(action, 1)  # a graph is brought to the device by its first launch
    return Timing(calls, meter.rounds(action, rounds))


def scaled(seconds: float, budget: float) -> tuple[int, int]:
    """Return the numbers of rounds and of calls per round for calls of `seconds`: most 128 x 1000.

    At least 8 rounds of one call are made, however long they take.
    """
    affordable = int(min(budget / max(seconds, 1e-9), ROUNDS * CALLS))
    rounds = min(ROUNDS, max(FEWEST_ROUNDS, affordable // CALLS))
    return rounds, max(1, min(CALLS, affordable // rounds))


def seconds_when_warm(meter: Meter, call: Call, warm_up: float) -> float:
    """Repeat a call for `warm_up` seconds or more; return the least seconds per call."""
    meter.rounds(call, 2)  # the first may compile something
    calls, best = 1, math.inf
    while True:
        (seconds,) = meter.rounds(repeated(call, calls), 1)
        best = min(best, seconds / calls)
        if seconds >= warm_up:
            return best
        calls *= 4


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch Python's garbage collector off in the block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def freshly_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.compile's version of a function, without earlier compilations' effects."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)
