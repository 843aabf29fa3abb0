"""Install torch in the version that a file pins: its CPU build unless an NVIDIA GPU is here.

    python infra/install_torch.py constraints.txt

It goes into the environment of that `python`, and needs nothing but pip, and `pip_progress.py`
beside it. On Linux, PyPI's torch is the build for CUDA, which brings gigabytes of NVIDIA's
libraries; PyTorch's own index has the build for CPUs. Where that index is out of reach, pip takes
what it finds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_SECONDS = 5  # for the index to answer: one out of reach must not delay the installation
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")


def main() -> None:
    """Install torch unless it is there, saying which build and how much is loaded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("constraints", type=Path, help="has a line torch==VERSION")
    parser.add_argument("--cpu-index", default=CPU_INDEX, help="where CPU builds are")
    arguments = parser.parse_args()
    wanted, gpu = pinned(arguments.constraints), has_nvidia_gpu()
    if installed(wanted) is None:
        install(wanted, None if gpu else arguments.cpu_index)
    found = installed(wanted)
    say(f"torch {found} is installed")
    if gpu and found and found.endswith("+cpu"):
        say("this build can't use the NVIDIA GPU; pip uninstall torch, then install one for CUDA")


def install(version: str, cpu_index: str | None) -> None:
    """Install a version of torch: the CPU build of an index if one is given and answers."""
    if cpu_index is None:
        say("an NVIDIA GPU is here: torch for CUDA, 4 to 5 GB with NVIDIA's libraries")
    elif answers(cpu_index):
        say(f"no NVIDIA GPU: torch for CPUs, some 200 MB, from {cpu_index}")
        pip_install(version, "--no-deps", "--index-url", cpu_index)
    else:
        say(
            f"{cpu_index} can't be reached: torch comes from pip's own index (from PyPI it is the "
            "build for CUDA, 4 to 5 GB; a mirror may have the smaller one)"
        )
    if failed := pip_install(version):  # all of it, or what it needs beside
        sys.exit(failed)


def pinned(constraints: Path) -> str:
    """Return torch's version in a constraints file."""
    found = re.search(r"^torch==(\S+)$", constraints.read_text(), re.MULTILINE)
    return found[1] if found else sys.exit(f"{constraints} has no line torch==VERSION")


def installed(wanted: str) -> str | None:
    """Return torch's version with its build; None if none is here, or another version."""
    importlib.invalidate_caches()
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if version.partition("+")[0] == wanted else None


def has_nvidia_gpu() -> bool:
    """Tell whether NVIDIA's driver knows a GPU, by /proc or, where that is hidden, its own tool."""
    if DRIVER_GPUS.is_dir() and any(DRIVER_GPUS.iterdir()):
        return True
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and "GPU 0" in done.stdout


def answers(index: str) -> bool:
    """Tell whether an index lists torch."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=INDEX_SECONDS):  # noqa: S310
            return True
    except OSError:
        return False


def pip_install(version: str, *options: str) -> int:
    """Let pip install torch, its progress in sight; return its exit code."""
    program = Path(__file__).with_name("pip_progress.py")
    command = [sys.executable, str(program), *options, f"torch=={version}"]
    return subprocess.run(command, check=False).returncode


def say(text: str) -> None:
    """Print a line before what pip prints next."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
