"""What HTCondor tells a job of itself: numbers of its ad, as they were when it started here."""

from __future__ import annotations

import os
import re
from pathlib import Path


def numbers(*names: str) -> list[int]:
    """Return attributes of this job's ad, 0 for each that HTCondor doesn't tell."""
    try:
        ad = Path(os.environ["_CONDOR_JOB_AD"]).read_text(encoding="utf-8", errors="replace")
    except (KeyError, OSError):
        ad = ""
    found = [re.search(rf"^{name}\s*=\s*(\d+)", ad, re.MULTILINE) for name in names]
    return [int(each[1]) if each else 0 for each in found]
