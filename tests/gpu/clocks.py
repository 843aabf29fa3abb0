"""Clocks, power and temperature of the GPU while steps run, as nvidia-smi reports them."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.gpu.steps import find_tool

EVERY = 500  # ms
ASKED = {  # by nvidia-smi's names
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "watts",
    "temperature.gpu": "celsius",
}
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the latter until 535
BITS = (  # of that: why a clock is lower than it might be
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
KILLED = 1.0  # s that nvidia-smi gets to end

Look = tuple[float, list[float | None], int]  # when, the values of ASKED, the bits


class Clocks:
    """Looks at the first visible GPU twice a second, while entered; without nvidia-smi never."""

    def __init__(self) -> None:
        self._looks: list[Look] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over, self._lock = False, threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Clocks:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            if self._process:
                self._process.kill()
        self._reader.join(2 * KILLED)

    def since(self, moment: float) -> dict[str, Any] | None:
        """Return least, median and most of each value since a moment of the monotonic clock.

        "reasons" has the share of the looks at which a clock was held down for that reason. None
        where nothing is known.
        """
        looks = [look for look in self._looks if look[0] >= moment]
        if not looks:
            return None
        found: dict[str, Any] = {"looks": len(looks)}
        for number, name in enumerate(ASKED.values()):
            values = [look[1][number] for look in looks]
            if known := [value for value in values if value is not None]:
                found[name] = [min(known), statistics.median(known), max(known)]
        reasons = Counter(name for look in looks for name in names_of(look[2]))
        found["reasons"] = {name: round(n / len(looks), 3) for name, n in reasons.items()}
        return found

    def _read(self) -> None:
        """Take note of what nvidia-smi prints, as long as it does."""
        tool = find_tool("nvidia-smi")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
        for reasons in REASONS if tool else ():
            fields = ",".join([*ASKED, reasons])
            words = [str(tool), f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
            for line in self._lines([*words, f"--id={visible}", f"--loop-ms={EVERY}"]):
                with contextlib.suppress(ValueError):
                    *values, bits = line.split(", ")
                    numbers = [number(value) for value in values]
                    self._looks.append((time.monotonic(), numbers, int(bits, 16)))
            if self._looks:
                return

    def _lines(self, words: list[str]) -> Iterator[str]:
        """Yield the lines of a program at once: it prints to a terminal, as it may hold back else.

        Yields nothing if the program cannot be started or the clocks are already closed.
        """
        ours, its = os.openpty()
        none = subprocess.DEVNULL
        with open(ours, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  a descriptor
            try:
                with self._lock:
                    if self._is_over:
                        return
                    self._process = subprocess.Popen(words, stdin=none, stdout=its, stderr=none)
            except OSError:
                return
            finally:
                os.close(its)
            with contextlib.suppress(OSError):  # the program has ended
                yield from map(str.strip, lines)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED)


def number(text: str) -> float | None:
    """Return a value; None where the GPU doesn't tell it."""
    return None if text.startswith("[") else float(text)


def names_of(bits: int) -> list[str]:
    """Return the reasons."""
    return [name for place, name in enumerate(BITS) if bits >> place & 1]
