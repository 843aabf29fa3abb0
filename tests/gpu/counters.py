"""Nsight Compute's counts of each kernel: its command, and its output."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

SLOWEST = 3
METRICS = {  # by Nsight Compute's names, in its base units
    "gpu__time_duration.sum": "nanoseconds",
    "dram__bytes.sum.per_second": "bytes_per_second",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_percent",
    "launch__registers_per_thread": "registers",
}


def command(part: str, program: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that counts for our kernels in a program; clocks stay as they are."""
    return (
        *("ncu", "--csv", "--print-units", "base", "--log-file", part),
        *("--clock-control", "none", "--metrics", ",".join(METRICS)),
        *("--kernel-name-base", "demangled", "--kernel-name", "regex:trialfleet"),
        *program,
    )


def read(part: Path, _output: str = "") -> dict[str, Any]:
    """Return the slowest kernels and how many there were.

    Raises:
        LookupError: nothing was counted; its words say why.
    """
    text = part.read_text(encoding="utf-8", errors="replace")
    begin = re.search(r'^"ID",', text, re.MULTILINE)
    if not begin:
        raise LookupError(f"Nsight Compute counted nothing: {text[-1000:]}")
    launches: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in csv.DictReader(text[begin.start() :].splitlines()):
        name, value = METRICS.get(row["Metric Name"] or ""), row["Metric Value"] or ""
        launches[row["ID"]]["kernel"] = short(row["Kernel Name"])
        if name and re.fullmatch(r"[\d.,]+(e[+-]?\d+)?", value):
            launches[row["ID"]][name] = float(value.replace(",", ""))
    slowest = sorted(launches.values(), key=lambda one: -one.get("nanoseconds", 0.0))
    return {"kernels": len(slowest), "slowest": slowest[:SLOWEST]}


def short(name: str) -> str:
    """Return a kernel's name without its namespaces and arguments."""
    plain = re.sub(r"\w+::|\(anonymous namespace\)::|<unnamed>::|^void ", "", name)
    depth = 0  # within the template's arguments, which may hold parentheses
    for i, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return plain[:i]
    return plain
