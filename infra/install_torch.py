"""Install torch in the version that a file pins, in the build that suits this machine.

    python infra/install_torch.py constraints.txt

Torch is installed into the environment of that `python`, which must have uv and pip. uv takes a
build from PyTorch's own index: the build for the NVIDIA driver here, or without a driver the build
for CPUs. If uv fails, for example because that index is unreachable, pip installs torch from its
usual index. PyPI has the build for CUDA.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ANSWER_SECONDS = "5"  # an unreachable index must not delay the installation


def main() -> None:
    """Install torch, and exit with the installer's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("constraints", type=Path, help="the file with the line torch==VERSION")
    torch = torch_requirement(parser.parse_args().constraints)
    by_uv = ["uv", "pip", "install", "--python", sys.executable, "--torch-backend", "auto", torch]
    if fault := find_fault(by_uv):
        print(
            f"uv can't install torch from PyTorch's index ({fault}), so pip installs torch from "
            "pip's own index (PyPI has the build for CUDA, 4 to 5 GB; a mirror may have a smaller "
            "one)",
            flush=True,
        )
    sys.exit(run(["pip", "install", torch] if fault else by_uv).returncode)


def torch_requirement(constraints: Path) -> str:
    """Return the requirement torch==VERSION from a file of constraints. Exit if it has none."""
    found = re.search(r"^torch==\S+$", constraints.read_text(), re.MULTILINE)
    return found[0] if found else sys.exit(f"{constraints} has no line torch==VERSION: add it")


def find_fault(by_uv: list[str]) -> str:
    """Try the command `by_uv` without installing. Return why the command fails, or ""."""
    patience = {"UV_HTTP_TIMEOUT": ANSWER_SECONDS, "UV_HTTP_RETRIES": "0"}
    tried = run([*by_uv, "--dry-run", "--quiet"], stderr=subprocess.PIPE, **patience)
    lines = tried.stderr.decode(errors="replace").strip().splitlines()
    return "" if tried.returncode == 0 else lines[-1].strip() if lines else "no answer"


def run(
    module: list[str], stderr: int | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m` with the words `module`, and with the additional variables `environment`."""
    command = [sys.executable, "-m", *module]
    variables = {**os.environ, **environment}
    return subprocess.run(command, check=False, env=variables, stderr=stderr)


if __name__ == "__main__":
    main()
