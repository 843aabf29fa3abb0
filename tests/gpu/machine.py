"""The machine's properties, as JSON: `python3 -m tests.gpu.machine`."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ASKED = (
    *("name", "driver_version", "memory.total", "ecc.mode.current", "power.limit"),
    *("clocks.max.sm", "clocks.max.memory", "temperature.gpu", "mig.mode.current"),
)


def main() -> None:
    """Print it."""
    import torch

    gpus = [describe(torch, i) for i in range(torch.cuda.device_count())]
    facts = {
        "gpus": gpus,
        "nvidia_smi": nvidia_smi(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": version("triton"),
        "python": platform.python_version(),
        "nvcc": nvcc(),
        "processor": found_in("/proc/cpuinfo", r"^model name\s*: (.*)$") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
    }
    print(json.dumps(facts, indent=1))


def describe(torch: Any, index: int) -> dict[str, Any]:
    """Return what torch knows of a GPU."""
    gpu = torch.cuda.get_device_properties(index)
    return {
        "name": gpu.name,
        "capability": f"{gpu.major}.{gpu.minor}",
        "memory_bytes": gpu.total_memory,
        "cache_bytes": gpu.L2_cache_size,
        "multiprocessors": gpu.multi_processor_count,
    }


def nvidia_smi() -> list[dict[str, str]]:
    """Return what the driver says of each GPU; nothing where there is none."""
    words = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    lines = output_of(words).splitlines()
    rows = ([value.strip() for value in line.split(",")] for line in lines)
    return [dict(zip(ASKED, row, strict=True)) for row in rows if len(row) == len(ASKED)]


def nvcc() -> str | None:
    """Return the release of the nvcc that is found first."""
    path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    release = re.search(r"release ([\d.]+)", output_of([path, "--version"])) if path else None
    return release[1] if release else None


def output_of(words: list[str]) -> str:
    """Return what a program prints; "" where it can't be asked."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=False).stdout
    return ""


def version(package: str) -> str | None:
    """Return an installed package's version."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def found_in(file: str, pattern: str) -> str | None:
    """Return the first group of a pattern in a file."""
    with contextlib.suppress(OSError):
        found = re.search(pattern, Path(file).read_text("utf-8"), re.MULTILINE)
        return found[1] if found else None
    return None


if __name__ == "__main__":
    main()
