"""The wall clock of a storm: wrong for its processes alone, although a machine has only one.

A library that is preloaded into all programs in the storm's namespace adds an offset to the time of
day (`wrong_clock.c`). libfaketime would do that, too. But Debian 12's 0.9.10 breaks each
`time.sleep` of Python 3.11 or newer if the monotonic clock is to stay right, and its semaphores
outlive processes that are killed.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).parent / "wrong_clock.c"
FILE = "TRIALFLEET_STORM_CLOCK"  # the variable that names the file by which the clock is set
SETTINGS = 4096  # that the file has room for, as in wrong_clock.c
_COUNT, _SETTING = struct.Struct("q"), struct.Struct("qq")
_PLACE = Path("/dev/shm")


def enter_own_time() -> None:
    """Restart this program with a separate wall clock; call this in a mount namespace.

    Nothing happens if there is no C compiler, or the namespace does not allow it.
    """
    if FILE in os.environ:
        return
    try:
        file = _furnished()
    except (OSError, subprocess.CalledProcessError):
        return
    os.environ[FILE] = str(file)
    os.execv(sys.executable, [sys.executable, "-m", "tests.storm", *sys.argv[1:]])  # noqa: S606


def _furnished() -> Path:
    """Preload the library, and return the file that sets the clock of programs started later."""
    _run("mount", "-t", "tmpfs", "trialfleet-storm", str(_PLACE))
    file, library = _PLACE / "clock", _PLACE / "wrong_clock.so"
    make(file, library)
    _preload(library)
    return file


def make(file: Path, library: Path) -> None:
    """Make the file of a clock that goes right, and the library that makes programs use it.

    Args:
        file: sets the clock.
        library: to be preloaded.

    Raises:
        OSError: there is no C compiler.
        CalledProcessError: the compiler fails.
    """
    file.write_bytes(bytes(_COUNT.size + SETTINGS * _SETTING.size))
    define = f'-DCLOCK_FILE="{file}"'
    _run("cc", "-shared", "-fPIC", "-O2", define, "-o", str(library), str(SOURCE))


def _preload(library: Path) -> None:
    """Have the dynamic linker load `library` into each program that is started from now on.

    This uses the linker's file and not a variable, because HTCondor gives jobs another environment.
    """
    before = Path("/etc/ld.so.preload")
    text = before.read_text() if before.exists() else ""
    folders = {name: _PLACE / name for name in ("upper", "work")}
    for folder in folders.values():
        folder.mkdir()
    (folders["upper"] / before.name).write_text(f"{text}{library}\n")
    options = "".join(f",{name}dir={folder}" for name, folder in folders.items())
    _run("mount", "-t", "overlay", "-o", f"lowerdir=/etc{options}", "trialfleet-storm", "/etc")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Clock:
    """The clock that `enter_own_time` gave this program and all programs that it starts."""

    def __init__(self) -> None:
        file = os.environ.get(FILE)
        self._file = Path(file) if file else None
        self._count = 0
        self.wrong = 0

    @property
    def can_be_set(self) -> bool:
        """True if there is such a clock, and its file has room for two more settings."""
        return self._file is not None and self._count + 2 <= SETTINGS

    def set(self, wrong: int) -> None:
        """Set the clock `wrong` seconds ahead of the right time, or behind it if negative."""
        assert self._file is not None, "there is no clock of our own"
        right = int(time.time()) - self.wrong
        with self._file.open("r+b", buffering=0) as file:
            file.seek(_COUNT.size + self._count * _SETTING.size)
            file.write(_SETTING.pack(right, wrong))
            self._count += 1
            file.seek(0)
            file.write(_COUNT.pack(self._count))
        self.wrong = wrong
