"""Seconds until a trial's first steps are done: `python -m tests.bench.train.first_step [--json]`.

Each measurement is a new process, as a trial is. Its clock begins when the rows are in memory and
torch is imported, and is read after each step. What compilers keep between processes is in a cache
folder that is

    cold       empty
    another    filled by a network of half the width, as an earlier trial would leave it
    warm       filled by the same network

Our kernels are built before, as on a pool's machines, and loaded while the clock runs; on a CPU
none are used. "again" is the next trial, twice as wide, in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.bench.train import rivals, workloads
from tests.bench.train.workloads import Workload

STEPS = 3  # after them nothing is compiled or captured any more
AGAIN = "again"
CASES = {  # way, and the folder of its compiler; AGAIN: in a process that has trained before
    "ours": ("ours", ""),
    "ours, again": ("ours", AGAIN),
    "eager": ("eager", ""),
    "torch.compile, cold": ("captured", "cold"),
    "torch.compile, another": ("captured", "another"),
    "torch.compile, warm": ("captured", "warm"),
}


def main() -> None:
    """Measure and print."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--device", choices=["cpu", "cuda"], help="else a GPU where there is one")
    reader.add_argument(
        "--only",
        metavar="WORD",
        default="flights",
        help="workloads with this in the name: %(default)s",
    )
    reader.add_argument("--repeats", type=int, default=3, help="processes of each case")
    reader.add_argument("--cases", metavar="WORD", default="", help="those with this in the name")
    reader.add_argument("--json", action="store_true", help="one object, nothing else")
    reader.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    chosen = reader.parse_args()
    if chosen.child:
        way, name, hidden, folder = chosen.child
        device = torch.device(chosen.device)
        if folder == AGAIN:
            seconds_of_steps(way, name, int(hidden) // 2, device)
        print(json.dumps(seconds_of_steps(way, name, int(hidden), device)))
        return
    # imports the kernels, which a child of this shall do while its clock runs
    from tests.bench.train.__main__ import describe, device_of, workloads_of

    try:
        device = device_of(chosen.device)
        wanted = workloads_of([chosen.only], device)
    except ValueError as error:
        reader.error(str(error))
    results: dict[str, Any] = {"machine": describe(device), "workloads": []}
    for workload in wanted:
        cases = {
            name: measured(name, workload, device, chosen.repeats)
            for name in CASES
            if chosen.cases in name
        }
        results["workloads"].append({"workload": workload.name, "cases": cases})
        if not chosen.json:
            print_workload(workload, cases)
    if chosen.json:
        print(json.dumps(results, indent=1))


def seconds_of_steps(way: str, name: str, hidden: int, device: torch.device) -> list[float]:
    """Return the seconds until each of the first steps is done, in this process."""
    named = {workload.name: workload for workload in workloads.workloads(device)}
    workload = replace(named[name], hidden=hidden)
    rivals.quiet()
    rivals.prepare(device)
    data = workloads.make_data(workload)
    if device.type == "cuda":
        torch.zeros(1, device=device).item()  # the driver's start is everyone's
    begin = time.perf_counter()
    running = rivals.WAYS[way](data, workload, device)
    found = []
    for _ in range(STEPS):
        running.advance(1)
        found.append(time.perf_counter() - begin)
    return found


def measured(name: str, workload: Workload, device: torch.device, repeats: int) -> dict[str, Any]:
    """Return the medians of several processes, and the fastest and slowest first step."""
    way, folder = CASES[name]
    with tempfile.TemporaryDirectory() as kept:
        shared = folder in {"", AGAIN, "warm"}
        if shared:  # not for compilers alone: kernels are built before, too
            child(way, workload, device, Path(kept))
        runs = []
        for repeat in range(repeats):
            place = Path(kept) / ("" if shared else str(repeat))
            if folder == "another":
                child(way, replace(workload, hidden=workload.hidden // 2), device, place)
            runs.append(child(way, workload, device, place, folder))
    first = [run[0] for run in runs]
    return {
        "processes": repeats,
        "first_step": statistics.median(first),
        "fastest_and_slowest": [min(first), max(first)],
        f"first_{STEPS}_steps": statistics.median(run[-1] for run in runs),
    }


def child(
    way: str, workload: Workload, device: torch.device, kept: Path, folder: str = ""
) -> list[float]:
    """Return `seconds_of_steps` of a new process, whose compilers use the cache folder `kept`.

    Raises:
        subprocess.CalledProcessError: the process failed, and has printed why.
    """
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(kept), "TRITON_CACHE_DIR": str(kept / "triton")}
    command = [sys.executable, "-m", "tests.bench.train.first_step", "--device", device.type]
    command += ["--child", way, workload.name, str(workload.hidden), folder]
    ran = subprocess.run(
        command, env=os.environ | folders, stdout=subprocess.PIPE, text=True, check=True
    )
    found: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def print_workload(workload: Workload, found: dict[str, dict[str, Any]]) -> None:
    """Print one workload's table."""
    print(f"\n{workload.name}\n{'':24}{'first step, s':>14}{'range':>16}{f'{STEPS} steps, s':>12}")
    for name, case in found.items():
        least, most = case["fastest_and_slowest"]
        print(
            f"{name:24}{case['first_step']:14.2f}{f'{least:.2f} - {most:.2f}':>16}"
            f"{case[f'first_{STEPS}_steps']:12.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
