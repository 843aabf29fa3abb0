"""What HTCondor tells a job of itself and its slot, as it was when the job started here."""

from __future__ import annotations

import os
import re
from pathlib import Path


def text(variable: str) -> str:
    """Return the ad whose file an environment variable names; empty where HTCondor tells none."""
    try:
        return Path(os.environ[variable]).read_text(encoding="utf-8", errors="replace")
    except (KeyError, OSError):
        return ""


def numbers(*names: str) -> list[int]:
    """Return attributes of this job's ad, 0 for each that HTCondor doesn't tell."""
    ad = text("_CONDOR_JOB_AD")
    found = [re.search(rf"^{name}\s*=\s*(\d+)", ad, re.MULTILINE) for name in names]
    return [int(each[1]) if each else 0 for each in found]
