"""The restart of a long-lived process with the new code after an update of trialfleet.

The old code in memory would not match the new release's jobs, scripts and templates.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

SECONDS = 5.0  # between two checks; a change counts once two checks find the same files

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]  # inode, bytes, time of the last change in ns


class Updates:
    """A watch on the files of trialfleet's loaded modules. Create it when the process starts."""

    def __init__(self) -> None:
        self._began = self._before = _file_stamps()
        self._next = time.monotonic() + SECONDS

    def follow(self) -> None:
        """If trialfleet was updated, restart this process, with the same command line and pid.

        Call this often. The files are checked at most every `SECONDS` seconds.
        """
        if self._have_come():
            log.info("trialfleet was updated: restarting")
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - its own command line

    def _have_come(self) -> bool:
        """Return whether a file changed since the start, and none between the last two checks."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + SECONDS
        stamps = _file_stamps()
        self._began = stamps | self._began  # a module loaded later is compared with its first stamp
        is_whole = stamps == self._before
        self._before = stamps
        return is_whole and stamps != self._began and any(stamps.values())


def _file_stamps() -> dict[str, _Stamp | None]:
    """Return, for each file of trialfleet's loaded modules, a value that changes with the file."""
    own = [m for name, m in sys.modules.items() if name.split(".")[0] in {__package__, "__main__"}]
    return {file: _stamp(Path(file)) for module in own if (file := getattr(module, "__file__", ""))}


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
