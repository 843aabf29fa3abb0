"""The ClassAds of this job and its slot, as HTCondor wrote them at the job's start."""

from __future__ import annotations

import os
import re
from pathlib import Path


def text(variable: str) -> str:
    """Return the ClassAd in the file that an environment variable names, or "" on failure."""
    try:
        return Path(os.environ[variable]).read_text(encoding="utf-8", errors="replace")
    except (KeyError, OSError):
        return ""


def numbers(*names: str) -> list[int]:
    """Return these whole-number attributes of this job's ClassAd, with 0 for missing ones."""
    ad = text("_CONDOR_JOB_AD")
    found = [re.search(rf"^{name}\s*=\s*(\d+)", ad, re.MULTILINE) for name in names]
    return [int(each[1]) if each else 0 for each in found]
