"""Measures every GPU by torch, in a process of its own that may hang and be killed.

    python3 -m trialfleet.nodes.probe.measure

It prints a line of JSON for each thing that it does, before doing it (`{"doing": …}`), and each
thing that it finds: so whoever kills it knows where it hung.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

LAUNCHES = 200
COPY_BYTES = 256 * 1024 * 1024  # beyond the largest caches, and little on the smallest GPU
COPIES = 20
SIDE = 512  # of the matrices


def say(**line: object) -> None:
    """Print a line of JSON that arrives even if this process is killed next."""
    print(json.dumps(line), flush=True)


def main() -> int:
    """Measure every GPU that torch sees."""
    say(doing="import torch")
    try:
        import torch
    except Exception as error:  # noqa: BLE001  a broken installation raises anything
        say(not_measured=f"no torch: {type(error).__name__}: {error}")
        return 0
    if torch.version.cuda is None:
        say(not_measured=f"torch {torch.__version__} has no CUDA")
        return 0
    say(doing="start CUDA")
    for index in range(torch.cuda.device_count()):
        say(doing=f"use GPU {index}")
        try:
            found = measured(torch, torch.device("cuda", index), index)
        except Exception as error:  # noqa: BLE001  whatever it is, this GPU can't be used
            first = (str(error).splitlines() or [""])[0]
            say(problem=f"GPU {index}: {type(error).__name__}: {first}")
        else:
            say(gpu=index, **found)
    say(done=True)
    return 0


def measured(torch: Any, device: Any, index: int) -> dict[str, float]:
    """Return launch latency, bandwidth and arithmetic of one GPU."""
    found = {}
    for name, measure in (
        ("launch_microseconds", launch_microseconds),
        ("bandwidth", bandwidth),
        ("matmul_error", matmul_error),
    ):
        say(doing=f"measure {name} of GPU {index}")
        found[name] = measure(torch, device)
    return found


def launch_microseconds(torch: Any, device: Any) -> float:
    """Return the median of launching a kernel on one number and waiting for it."""
    one = torch.zeros(1, device=device)
    times = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        one.add_(1)
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def bandwidth(torch: Any, device: Any) -> float:
    """Return GB/s (10^9 bytes), read plus written, of copies on the device; the best of some."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(COPIES):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * COPY_BYTES / best / 1e9


def matmul_error(torch: Any, device: Any) -> float:
    """Return the largest difference between this device's product and the processor's.

    Of small integers, so that every order of summation and every precision gives the same numbers.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(-8, 9, (SIDE, SIDE), generator=generator).float() for _ in range(2)
    )
    product = (left.to(device) @ right.to(device)).cpu()
    return float((product - left @ right).abs().max())


if __name__ == "__main__":
    sys.exit(main())
