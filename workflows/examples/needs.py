"""Programs and packages that an example needs and this machine lacks, with install commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from trialfleet.files import shell_quoted
from trialfleet.workflows.status.missing_modules import (
    find_packages,
    missing_modules,
    top_level_imports,
)

_R = "apt-get install r-base-core r-cran-jsonlite"
_HAS_JSONLITE = ["Rscript", "-e", 'quit(status = !requireNamespace("jsonlite", quietly = TRUE))']
_SECONDS = 20.0


def lines_on_needs(folder: Path) -> list[str]:
    """Return lines about what an example needs and this machine lacks: Python packages, or R."""
    lines = [_line(find_packages(lacking))] if (lacking := _modules(folder)) else []
    if any(folder.glob("*.R")) and not _has_r():
        lines.append(f"the example needs R with jsonlite, which is not installed here: {_R}")
    return lines


def _modules(folder: Path) -> tuple[str, ...]:
    needed = top_level_imports(sorted(folder.glob("train*.py")))
    if any(folder.glob("*.ipynb")):
        needed += ["ipykernel"]
    return missing_modules(sys.executable, tuple(needed))


def _line(packages: list[str]) -> str:
    python = shell_quoted(Path(sys.executable))
    names = ["notebook" if name == "ipykernel" else name for name in packages]
    return (
        f"the example needs {', '.join(names)}, which {python} lacks: {python} -m pip install "
        f"{' '.join(names)} (trials on other machines use their machine's Python)"
    )


def _has_r() -> bool:
    if shutil.which("Rscript") is None:
        return False
    try:
        done = subprocess.run(_HAS_JSONLITE, capture_output=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
