"""The names (client tokens) of requests to EC2 Fleet.

If `fleet up` is killed and runs again, its request has the same name. So AWS returns the instances
of the first request, and starts no others. But AWS would also repeat a refusal. So the names of
refused requests are stored on this machine, and the next request gets a new name. Only refusals in
a window (a numbered period of ten minutes) count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import platformdirs

from trialfleet.files import object_or_empty, read_json, write_json


def refused_file(fleet: str) -> Path:
    """Return the file with the names of a fleet's refused requests."""
    return platformdirs.user_state_path("trialfleet") / "fleet" / f"{fleet}.refused.json"


def first_unrefused(fleet: str, window: int, parts: Sequence[str]) -> str:
    """Return a name for a request, made from `parts`, that AWS has not refused.

    Only refusals in the ten-minute period with the number `window` count.
    """
    used = read_refused(fleet, window)
    numbered = ("\n".join([*parts, f"{number}"]) for number in count(0))
    names = (hashlib.sha256(text.encode()).hexdigest() for text in numbered)
    return next(name for name in names if name not in used)


def read_refused(fleet: str, window: int) -> list[str]:
    """Return the names that AWS refused in the ten-minute period with the number `window`."""
    kept = object_or_empty(lambda: read_json(refused_file(fleet)))
    return list(kept.get("names", ())) if kept.get("window") == window else []


def note_refused(fleet: str, window: int, name: str) -> None:
    """Record a refused name, so that the next request gets another name.

    If the file can't be written, AWS repeats its refusal until the period `window` ends.
    """
    file = refused_file(fleet)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"window": window, "names": [*read_refused(fleet, window), name]})
