"""Compile the benchmark's rivals beforehand, each operation in a process of its own.

torch keeps what it compiles on the disk, so the benchmark, which compiles one after the other and
measures in between, finds it there.

python3 -m tests.gpu.compiled [--device cpu] [--only OPERATION]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import torch

from tests.bench.kernels import fused, mulc
from tests.bench.kernels.__main__ import sizes_of
from tests.bench.kernels.timing import CudaMeter, Meter

MULC = "mulc"
NAMES = (*(make.__name__ for make in fused.FUSED), MULC)
ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # each has its own process already


def main() -> int:
    """Compile, and print the seconds of each operation as JSON; 1 if one could not be compiled."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--device", default="cuda", help="cpu: the smaller sizes, a dry run's")
    reader.add_argument("--sizes", type=sizes_of, default="64K", help="of MulC")
    reader.add_argument("--only", choices=NAMES, help="this one, in this process")
    chosen = reader.parse_args()
    if chosen.only:
        compile_one(chosen.only, torch.device(chosen.device), chosen.sizes)
        return 0
    began, words = time.monotonic(), [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
    names = NAMES[-1:] if chosen.device == "cpu" else NAMES
    running = {
        name: subprocess.Popen(
            [*words, "--only", name], stdout=sys.stderr, env={**os.environ, **ALONE}
        )
        for name in names
    }
    seconds: dict[str, float] = {}
    bad = []
    for name, process in running.items():
        if process.wait():
            bad.append(name)
        seconds[name] = round(time.monotonic() - began, 1)
    print(json.dumps({"seconds": seconds, "bad": bad}))
    return 1 if bad else 0


def compile_one(name: str, device: torch.device, sizes: tuple[int, ...]) -> None:
    """Compile an operation for each of its sizes."""
    on_gpu = device.type == "cuda"
    meter = CudaMeter(torch.device("cuda:0")) if on_gpu else Meter(device)
    with torch.no_grad():
        if name == MULC:
            for size in sizes:
                mulc.compiled(torch.rand(size, device=meter.device), meter)()
            return
        make = dict(zip(NAMES, fused.FUSED, strict=False))[name]
        for scale in fused.scales(meter.device)[: 2 if on_gpu else 1]:
            for variant, implementation in make(scale).implementations().items():
                if variant.startswith("compile"):
                    implementation()()


if __name__ == "__main__":
    sys.exit(main())
