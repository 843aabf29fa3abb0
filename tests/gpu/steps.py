"""Steps of `make gpu`: programs, in an order, each with its part of the time.

In a dry run the same programs run on the processor, on the smallest cases: it shows that they start
and that what they find can be read, and its figures are nobody's.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import counters

TOOLS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")  # in addition to PATH
PART = "{part}"  # in a command: the file for the step's results
DRY = "TRIALFLEET_GPU_DRY"  # in the environment of a dry run's programs


class NothingFoundError(Exception):
    """A step left nothing that can be read; the message says what it said instead."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One program.

    Attributes:
        name: a word.
        title: what it shows.
        command: `PART` in it is the file for its JSON.
        seconds: its share of the time; what the steps before it left is its own as well.
        prints: its standard output is that JSON.
        environment: beside the runner's.
        needs: the program that the command begins with, if it may be missing here.
        read: what to make of its part and of what it said.
    """

    name: str
    title: str
    command: tuple[str, ...]
    seconds: float
    prints: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    read: Callable[[Path, str], Any] = lambda part, _output: json.loads(part.read_text("utf-8"))


def steps(*, dry: bool) -> Iterator[Step]:
    """Yield the steps, those that decide most first."""
    yield Step(
        name="probe",
        title="the probe's verdict",
        command=module("trialfleet.nodes.probe", "--json"),
        seconds=20,
        prints=True,
    )
    yield Step(
        name="machine",
        title="what the machine is",
        command=module("tests.gpu.machine"),
        seconds=10,
        prints=True,
    )
    yield Step(
        name="build",
        title="the kernels, compiled",
        command=module("trialfleet.nodes.kernels", "build"),
        seconds=60,
        prints=True,
    )
    yield tests(dry=dry)
    yield from benchmarks(dry=dry)
    yield counted(dry=dry)
    for tool in ("memcheck", "racecheck"):
        yield sanitizer(tool, dry=dry)


def tests(*, dry: bool) -> Step:
    """Return tests/gpu: values, capture, streams, a second device, no waiting; dry, their list."""
    chosen = ("tests/gpu", "-m", "not slow", "-k", "not sanitizer")
    only = ("--collect-only",) if dry else ()
    # tests/conftest.py, above, is for machines that have more.
    config = ("-c", "tests/gpu/bare.ini", "--rootdir", ".", "--confcutdir", "tests/gpu")
    return Step(
        name="tests",
        title="tests/gpu",
        command=module("pytest", *config, *only, *chosen),
        environment={"TRIALFLEET_GPU_TESTS": PART},
        seconds=75,
    )


def sanitizer(tool: str, *, dry: bool) -> Step:
    """Return the smallest cases of every kernel, watched by a tool of NVIDIA's."""
    every = module("tests.gpu.every_kernel", "--smallest")
    watched = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *every)
    return Step(
        name=tool,
        title=f"compute-sanitizer's {tool}, on the smallest cases",
        command=(*every, "--device", "cpu") if dry else watched,
        # Every tensor has its own allocation; else the next tensor follows it in memory.
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        seconds=20,
        needs="" if dry else "compute-sanitizer",
        read=not_watched if dry else summary,
    )


def benchmarks(*, dry: bool) -> Iterator[Step]:
    """Yield the benchmarks of the kernels and of the trainer."""
    device = ("--device", "cpu" if dry else "cuda")
    sizes = ("--sizes", "1K" if dry else "1K,64K,4M,256M")
    yield Step(
        name="compiled",
        title="what torch.compile makes of all that is compared, all at once",
        command=module("tests.gpu.compiled", *device, *sizes),
        seconds=45,
        prints=True,
    )
    hasty = ("--quick", "--seconds", "0.01", "--without", "compile")
    fused = hasty if dry else ("--seconds", "0.1", "--without", "eager")
    mulc = hasty if dry else ("--seconds", "0.3")
    every = (*device, *sizes, "--out", PART)
    yield Step(
        name="fused",
        title="the fused operators beside torch.compile",
        command=module("tests.bench.kernels", "--only", "fused", *fused, *every),
        seconds=85,
    )
    workloads = ("--only", "flights") if dry else ("--only", "flights", "--only", "1 million")
    ways = ("--ways", "ours,eager" if dry else "ours,captured,eager")
    yield Step(
        name="trainer",
        title="the trainer's benchmark",
        command=module("tests.bench.train", "--quick", *workloads, *ways, *device, "--out", PART),
        seconds=70,
    )
    yield Step(
        name="mulc",
        title="the table of 2014",
        command=module("tests.bench.kernels", "--only", "mulc", *mulc, *every),
        seconds=55,
    )


def counted(*, dry: bool) -> Step:
    """Return Nsight Compute's counters of each kernel at its larger size."""
    program = module("tests.gpu.once", *(("--device", "cpu") if dry else ()))
    return Step(
        name="counters",
        title="Nsight Compute's counters of the three slowest kernels",
        command=program if dry else counters.command(PART, program),
        seconds=20,
        needs="" if dry else "ncu",
        read=not_watched if dry else counters.read,
    )


def module(name: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs a module by this Python."""
    return (sys.executable, "-m", name, *words)


def find_tool(name: str) -> str | None:
    """Return the path of one of NVIDIA's programs, which are often not in PATH."""
    beside = (str(path) for folder in TOOLS for path in Path("/").glob(folder.lstrip("/")))
    return shutil.which(name) or next(
        filter(None, (shutil.which(name, path=p) for p in beside)), None
    )


def summary(_part: Path, output: str) -> dict[str, str]:
    """Return the sanitizer's last word."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", output)
    if not found:
        raise NothingFoundError("the sanitizer came to no summary")
    return {"summary": found[-1]}


def not_watched(_part: Path, _output: str) -> dict[str, str]:
    """Return that the program ran without the tool that watches a GPU."""
    return {"summary": "it ran on the processor, watched by nothing"}
