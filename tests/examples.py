"""The trainer examples, and what this machine lacks to run some of them."""

from __future__ import annotations

import shutil
import subprocess

TRAINERS = ["sklearn", "lightgbm", "r", "shell"]


def _lacking() -> dict[str, str]:
    if shutil.which("Rscript") is None:
        return {"r": "R is not installed: apt-get install r-base-core r-cran-jsonlite"}
    asked = subprocess.run(["Rscript", "-e", "library(jsonlite)"], capture_output=True)
    return {} if asked.returncode == 0 else {"r": "R's jsonlite is not installed"}


LACKING = _lacking()
