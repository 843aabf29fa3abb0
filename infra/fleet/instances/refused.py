"""The requests that AWS has wholly refused, kept on this machine by their names.

AWS answers the same to the same name, also to a new process. So a request whose refusal is known
gets another name the next time; one that was killed before it was known is asked again as it was.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import platformdirs

from trialfleet.files import object_or_empty, read_json, write_json


def file_of(fleet: str) -> Path:
    """Return where this machine keeps the names of a fleet's requests that were refused."""
    return platformdirs.user_state_path("trialfleet") / "fleet" / f"{fleet}.refused.json"


def known(fleet: str, window: int) -> list[str]:
    """Return the requests of a window that were refused; AWS has forgotten those of others."""
    kept = object_or_empty(lambda: read_json(file_of(fleet)))
    return list(kept.get("names", ())) if kept.get("window") == window else []


def note(fleet: str, window: int, name: str) -> None:
    """Keep that a request was refused; without a disk for it AWS repeats itself for a window."""
    file = file_of(fleet)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"window": window, "names": [*known(fleet, window), name]})
