"""Measurement of one GPU by torch, in a separate process that may hang and be killed.

    CUDA_VISIBLE_DEVICES=GPU-… python3 -m trialfleet.nodes.probe.measure

Before each step the process prints `{"doing": STEP, "seconds": LIMIT}`. A healthy GPU takes at most
LIMIT seconds for the step; without `seconds`, there is no limit. So the caller knows whether the
process hangs, and in which step.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The environment variable with the lock file for exclusive use of the links between host and GPUs.
LINK = "TRIALFLEET_PROBE_LINK"
# Time limits of CUDA's start and of each measurement. On a machine that has just booted, CUDA's
# libraries are read from a cold disk: at the start, and when a measurement first calls one.
START_SECONDS, MEASURE_SECONDS = 30, 20

LATENCIES = 200
LAUNCHES = 1_000
COPY_BYTES = 256 * 1024 * 1024  # more than the largest cache, but it fits in the smallest GPU
COPIES = 10
PINNED_BYTES = 64 * 1024 * 1024
TAKES = 3  # repetitions of each measurement; the fastest counts, as disturbances only slow it down
SIDE = 512  # of the matrices


def print_json(**line: object) -> None:
    """Print a line of JSON at once, so that it arrives even if this process is killed next."""
    print(json.dumps(line), flush=True)


def main() -> int:
    """Measure the GPU that torch sees, print the values or the problem, and return 0."""
    print_json(doing="import torch")
    try:
        import torch
    except ModuleNotFoundError as error:
        absent = error.name == "torch"  # this is no problem, because a trainer may bring its own
        print_json(**{"not_measured" if absent else "problem": f"torch can't be imported: {error}"})
        return 0
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        print_json(problem=f"torch can't be imported: {first_line(error)}")
        return 0
    print_json(doing="start CUDA", seconds=START_SECONDS)
    problem = cuda_problem(torch)
    if problem:
        print_json(problem=problem)
        return 0
    try:
        measure(torch, torch.device("cuda", 0))
    except Exception as error:  # noqa: BLE001  after any error this GPU can't be used
        print_json(problem=first_line(error))
    print_json(done=True)
    return 0


def first_line(error: Exception) -> str:
    """Return an error's type and first line."""
    return f"{type(error).__name__}: {textwrap.shorten((str(error).splitlines() or [''])[0], 200)}"


def cuda_problem(torch: Any) -> str:
    """Return why torch can't use the GPU, or "" if torch can use it."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: trials would run on the CPU"
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001  is_available() would only warn of it
        return f"torch {torch.__version__} can't use the GPU: {first_line(error)}"
    return "" if torch.cuda.device_count() else "CUDA doesn't find the GPU"


def measure(torch: Any, device: Any) -> None:
    """Measure the GPU, and print each value."""
    for name, measurement in (
        ("launch_microseconds", launch_microseconds),
        ("launch_rate", launch_rate),
        ("bandwidth", bandwidth),
        ("matmul_error", matmul_error),
    ):
        print_json(doing=f"measure {name}", seconds=MEASURE_SECONDS)
        print_json(found={name: measurement(torch, device)})
    with link_alone():
        print_json(doing="measure host_bandwidth", seconds=MEASURE_SECONDS)
        print_json(found={"host_bandwidth": host_bandwidth(torch, device)})


@contextmanager
def link_alone() -> Iterator[None]:
    """Let only one process at a time run the `with` block, which measures a GPU's link to the host.

    $TRIALFLEET_PROBE_LINK names the lock's file. If the variable is not set, processes don't
    wait for each other.
    """
    if LINK not in os.environ:
        yield
        return
    with Path(os.environ[LINK]).open() as file:
        print_json(doing="wait for the link to the host")
        fcntl.flock(file, fcntl.LOCK_EX)  # released at any end of this process
        yield


def seconds(torch: Any, device: Any, work: Callable[[], object]) -> float:
    """Return the seconds from the launch of some work until the GPU has done it."""
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


def launch_microseconds(torch: Any, device: Any) -> float:
    """Return the median microseconds from the launch of a very small kernel to its end."""
    one = torch.zeros(1, device=device)
    times = [seconds(torch, device, lambda: one.add_(1)) for _ in range(LATENCIES)]
    return statistics.median(times) * 1e6


def launch_rate(torch: Any, device: Any) -> float:
    """Return how many very small kernels run per second if launched one right after another."""
    one = torch.zeros(1, device=device)

    def launch_many() -> None:
        for _ in range(LAUNCHES):
            one.add_(1)

    return LAUNCHES / min(seconds(torch, device, launch_many) for _ in range(TAKES))


def bandwidth(torch: Any, device: Any) -> float:
    """Return the bandwidth of copies in the GPU's memory, read plus written, in 10^9 bytes/s."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    few, many = (
        repeat_work(torch, device, lambda: target.copy_(source), copies)
        for copies in (COPIES, 3 * COPIES)
    )
    times = [min(seconds(torch, device, work) for _ in range(TAKES)) for work in (few, many)]
    # The difference of the two times, so that the launch itself doesn't count.
    return 2 * COPY_BYTES * 2 * COPIES / (times[1] - times[0]) / 1e9


def repeat_work(
    torch: Any, device: Any, work: Callable[[], object], times: int
) -> Callable[[], object]:
    """Return a function that does `work` repeatedly, `times` times.

    On a GPU, all repetitions are one CUDA graph, which needs only one launch.
    """

    def repeat() -> None:
        for _ in range(times):
            work()

    repeat()
    if device.type != "cuda":
        return repeat
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeat()
    replay: Callable[[], object] = graph.replay
    return replay


def host_bandwidth(torch: Any, device: Any) -> float:
    """Return the speed, in GB/s, of copies from the host's pinned memory to the device."""
    source = torch.zeros(PINNED_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty_like(source, device=device)
    copies = (
        seconds(torch, device, lambda: target.copy_(source, non_blocking=True))
        for _ in range(1 + TAKES)
    )
    return PINNED_BYTES / min(copies) / 1e9


def matmul_error(torch: Any, device: Any) -> float:
    """Return the largest error in a matrix product of small integers, 0 on a healthy GPU."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(-8, 9, (SIDE, SIDE), generator=generator).float() for _ in range(2)
    )
    product = (left.to(device) @ right.to(device)).cpu()
    return float((product - left @ right).abs().max())


if __name__ == "__main__":
    sys.exit(main())
