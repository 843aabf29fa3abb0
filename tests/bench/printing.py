"""Prints lines of figures, and measures times."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable


def line(what: str, ours: float, plain: float, unit: str, plain_way: str) -> None:
    """Print one comparison."""
    print(f"{what:<52} {ours:8.3f} {unit}   {ours / plain:6.2f} x {plain_way} ({plain:.3f} {unit})")
    sys.stdout.flush()


def seconds(action: Callable[[], object], repeat: int = 5) -> float:
    """Return the median time of an action."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
