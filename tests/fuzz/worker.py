"""A share of the generated cases, in a process of its own: a hang or a crash is the parent's news.

`python -m tests.fuzz.worker KIND SEED FIRST COUNT FOLDER` prints a JSON line before each case, and
one with the traceback for each that failed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import traceback
import warnings
from pathlib import Path

from tests.fuzz.check import keep_inside, run_case

HANGS_AFTER = 120  # seconds, on a machine with other work
LARGEST_FILE = 200_000_000  # bytes
LARGEST_MEMORY = 16_000_000_000  # bytes of addresses; torch alone maps several


def main(kind: str, seed: int, first: int, count: int, folder: Path) -> None:
    """Run the cases one by one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY, LARGEST_MEMORY))
    warnings.simplefilter("error")
    keep_inside()
    for number in range(first, first + count):
        _say(case=number)
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            run_case(kind, seed, number, folder / f"{kind}-{number}")
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
            _say(failed=number, traceback=traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()


def _say(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    kind, seed, first, count, folder = sys.argv[1:]
    main(kind, int(seed), int(first), int(count), Path(folder))
