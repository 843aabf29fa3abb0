"""Measure the commands that show a run: `make bench-views`.

Ended runs of 3 regions with 20 trials and of 300 with 100 are written (`stored.py`), and each
command is started as users start it. A Python that does nothing is the comparison. Memory is the
largest resident memory of the command's process. If other programs run, its processor time says
more than the wall time. Then the live page of a running run is measured (`live_runs.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import platformdirs

RUN = "runs/views/r1"  # the same as in stored.py
COMMANDS = ("status", "best", "trials", "cost", "report")
_TIMES = 3  # that a command is started; the median counts
_LONG = 10.0  # seconds: a program that takes longer is started once


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    sizes = [(3, 20), (300, 100)]
    parser.add_argument("sizes", nargs="*", help="REGIONSxTRIALS (default: 3x20 300x100)")
    parser.add_argument(
        "--live", help="size of the running run (default: 1000x20; skipped if sizes are given)"
    )
    parser.add_argument("--keep", type=Path, help="make the runs in this folder and keep them")
    given = parser.parse_args()
    live = given.live or (None if given.sizes else "1000x20")
    if given.sizes or given.live:
        sizes = [_parsed(size) for size in given.sizes]
    base = given.keep or platformdirs.user_cache_path("trialfleet") / "bench-views"
    os.environ["TRIALFLEET_POOL"] = str(base / "pool")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # people have compiled modules
    try:
        for regions, trials in sizes:
            _measure(base / f"{regions}x{trials}", regions, trials)
        if live:
            _measure_live(base / "live", *_parsed(live))
    finally:
        if not given.keep:
            shutil.rmtree(base, ignore_errors=True)


def _parsed(size: str) -> tuple[int, int]:
    regions, _, trials = size.partition("x")
    return int(regions), int(trials)


def _measure_live(place: Path, regions: int, trials: int) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    print(f"the page of {regions} regions x {trials} trials that go on", flush=True)
    live = [sys.executable, "-m", "tests.bench.views.live", str(place), str(regions), str(trials)]
    subprocess.run(live, check=True)


def _measure(place: Path, regions: int, trials: int) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    began = time.perf_counter()
    made = [sys.executable, "-m", "tests.bench.views.stored", str(place), str(regions), str(trials)]
    subprocess.run(made, check=True)  # not here: its memory would count as the commands'
    print(f"{regions} regions x {trials} trials, written in {time.perf_counter() - began:.0f} s")
    _show("python -c", [sys.executable, "-c", ""])
    run, program = place / RUN, Path(sys.executable).with_name("trialfleet")
    for command in COMMANDS:
        _show(command, [str(program), command, str(run)])
    for file in (run / "report.html", run / "report.json"):
        print(f"  {file.name:12} {file.stat().st_size / 1e6:7.2f} MB")


def _show(name: str, command: list[str]) -> None:
    found = [_cost(command)]
    while len(found) < _TIMES and found[0][0] < _LONG:
        found.append(_cost(command))
    seconds, cpu, memory = (statistics.median(each) for each in zip(*found, strict=True))
    print(f"  {name:12} {seconds:7.2f} s  {cpu:7.2f} s of CPU  {memory:5.0f} MB")


def _cost(command: list[str]) -> tuple[float, float, float]:
    """Return a program's seconds, processor seconds, and largest resident memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    cpu = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - began, cpu, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
