"""A process that lives long and an update of trialfleet beneath it: it goes on as the new release.

One that went on with the code in its memory would speak to jobs, scripts and templates of another.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

SECONDS = 5.0  # between two looks; a change counts once two of them have found the same

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]  # inode, bytes, time of the last change in ns


class Updates:
    """Looks at the files of the modules that are loaded. Make it when the process starts."""

    def __init__(self) -> None:
        self._began = self._before = _stamps()
        self._next = time.monotonic() + SECONDS

    def follow(self) -> None:
        """Once an update has come, replace this process by one started in the same way.

        It keeps its id and arguments. May be called often: the files are looked at every `SECONDS`.
        """
        if self._have_come():
            log.info("trialfleet was updated: beginning anew")
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - its own command line

    def _have_come(self) -> bool:
        """Whether a file is another than it was, and none of them changes just now."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + SECONDS
        stamps = _stamps()
        self._began = stamps | self._began  # what was loaded since is as it was then
        is_whole = stamps == self._before
        self._before = stamps
        return is_whole and stamps != self._began and any(stamps.values())


def _stamps() -> dict[str, _Stamp | None]:
    """What shows of each file whether it was replaced or written."""
    own = [m for name, m in sys.modules.items() if name.split(".")[0] in {__package__, "__main__"}]
    return {file: _stamp(Path(file)) for module in own if (file := getattr(module, "__file__", ""))}


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
