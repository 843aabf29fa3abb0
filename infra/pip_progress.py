"""pip install in one line that says how far it is, in place of hundreds.

    python infra/pip_progress.py --requirement requirements.lock

On a terminal the line is written over itself, and moves while a large package is loaded. Elsewhere
there is one every ten packages, and every 15 seconds of such a load. What pip says on standard
error is shown whole, at once.
"""

from __future__ import annotations

import itertools
import os
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TextIO

EVERY = 0.5  # seconds between two looks at the folder of packages
LINE_EVERY = 10  # packages, where a line stays
SAID_AGAIN = 15.0  # seconds of one load, where a line stays
MB = 1_000_000
_UNITS = {"B": 1, "kB": 1_000, "MB": MB, "GB": 1_000 * MB}

_ARCHIVE = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?([A-Za-z0-9_.]+?)-\d\S*"
    r"\.(?:whl|tar\.gz|zip)(?: \(([\d.]+ [kMG]?B)\))?"
)
_THERE = re.compile(r"Requirement already satisfied: ([\w.-]+)")
_INSTALLING = "Installing collected packages: "
_PINNED = re.compile(r"^[\w.-]+(?:\[[\w,]*\])?==[^\s;]+(?: ; (.*?))?(?: \\)?$", re.MULTILINE)


def main() -> None:
    """Install what the arguments say and exit as pip does."""
    options = ["--progress-bar", "off", "--no-color", *sys.argv[1:]]
    command = [sys.executable, "-u", "-m", "pip", "install", *options]
    display = Display(sys.stdout, pinned_packages(sys.argv[1:]))
    sys.exit(watched(command, Path(sysconfig.get_path("purelib")), display))


def pinned_packages(arguments: Sequence[str]) -> int:
    """Return how many packages requirement files pin for this machine; 0 where none is named."""
    named = itertools.pairwise(arguments)
    files = [Path(file) for option, file in named if option in {"-r", "--requirement"}]
    markers = [mark for file in files for mark in _PINNED.findall(file.read_text())]
    return sum(_holds(mark) for mark in markers)


def _holds(mark: str) -> bool:
    """Whether an environment marker is true here, by pip's own reader of them."""
    if not mark:
        return True
    from pip._vendor.packaging.markers import Marker

    return bool(Marker(mark).evaluate())


class Display:
    """How far pip is, by what it prints and by the packages that are in place.

    Args:
        out: where to say so.
        total: how many packages there will be; 0 where nobody knows.
    """

    def __init__(self, out: TextIO, total: int = 0) -> None:
        self._out = out
        self._on_terminal = out.isatty()
        self._total = total
        self._begun = time.monotonic()
        self._seen: dict[str, str] = {}  # archives that pip has at hand: size by package
        self._order: list[str] = []  # of what it installs
        self._now = ""
        self._shown = ""
        self._said = self._begun
        self._loaded = 0.0  # bytes of archives that are here, but for the one that comes
        self._coming = 0.0  # bytes of that one, once it is here

    def read(self, line: str) -> None:
        """Take a line of pip's standard output."""
        if found := _ARCHIVE.match(line):
            self._loading(_plain(found[1]), found[2] or "", comes="Downloading" in line)
        elif found := _THERE.match(line):
            self._seen.setdefault(_plain(found[1]), "")
        elif line.startswith(_INSTALLING):
            self._order = line.removeprefix(_INSTALLING).strip().split(", ")
            self._loaded, self._coming = self._loaded + self._coming, 0.0
            self.placed(0)

    def placed(self, count: int) -> None:
        """Say that so many of the packages that pip installs are in place."""
        if count < len(self._order):
            name = self._order[count]
            size = self._seen.get(_plain(name), "")
            self._tell("installing", count + 1, len(self._order), name, size)

    def tick(self, here: int = 0) -> None:
        """Show that time passes.

        Args:
            here: bytes of the archive that is just loaded.
        """
        if not self._now:
            return
        if self._on_terminal:
            self._write_over(self._line(here))
        elif self._coming and time.monotonic() - self._said >= SAID_AGAIN:
            self._said = time.monotonic()
            print(self._line(here), file=self._out, flush=True)

    def _line(self, here: int = 0) -> str:
        """What is done now, and how much was loaded in how long so far."""
        loaded = self._loaded + min(here, self._coming or here)
        so_far = f"{loaded / MB:.0f} MB loaded, " if loaded >= MB else ""
        return f"{self._now}; {so_far}{time.monotonic() - self._begun:.0f} s"

    def pass_on(self, line: str) -> None:
        """Show a line of pip's standard error as it is."""
        self._clear()
        print(line.rstrip("\n"), file=sys.stderr, flush=True)

    def end(self, code: int) -> None:
        """Say what came of it."""
        self._clear()
        if code == 0 and self._order:
            seconds = time.monotonic() - self._begun
            packages = "1 package" if len(self._order) == 1 else f"{len(self._order)} packages"
            loaded = self._loaded + self._coming
            size = f" ({loaded / MB:.0f} MB loaded)" if loaded >= MB else ""
            print(f"{packages} installed in {seconds:.0f} s{size}", file=self._out)
            self._out.flush()

    def _loading(self, name: str, size: str, *, comes: bool) -> None:
        self._seen[name] = size
        self._loaded += self._coming
        self._coming = _bytes(size) if comes else 0.0
        self._tell("loading", len(self._seen), self._total, name, size)

    def _tell(self, what: str, number: int, total: int, name: str, size: str) -> None:
        of = f" {number} of {total}:" if total else ""
        now = f"{what}{of} {name}" + (f" ({size})" if size else "")
        if now == self._now:
            return
        self._now = now
        if self._on_terminal:
            self._write_over(self._line())
        elif number % LINE_EVERY == 0 or number == 1:
            self._said = time.monotonic()
            print(now, file=self._out, flush=True)

    def _write_over(self, text: str) -> None:
        shown = text[: shutil.get_terminal_size().columns - 1]
        self._out.write(f"\r{shown.ljust(len(self._shown))}")
        self._out.flush()
        self._shown = shown

    def _clear(self) -> None:
        if self._shown:
            self._out.write(f"\r{' ' * len(self._shown)}\r")
            self._out.flush()
            self._shown = ""


def watched(command: Sequence[str], packages: Path, display: Display) -> int:
    """Run pip, show how far it is, and return its exit code.

    Args:
        command: what to run.
        packages: the folder that it fills.
        display: what shows it.
    """
    before = _installed(packages)
    with (
        tempfile.TemporaryDirectory(prefix="trialfleet-pip-") as loads,  # pip loads into TMPDIR
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": loads},
        ) as process,
    ):
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        try:
            for line, is_error in _lines(process.stdout, process.stderr):
                if line and is_error:
                    display.pass_on(line)
                elif line:
                    display.read(line)
                else:
                    display.placed(len(_installed(packages) - before))
                    display.tick(_newest_size(Path(loads)))
            code = process.wait()
        except KeyboardInterrupt:  # pip got it, too, and ends by itself
            code = process.wait()
    display.end(code)
    return code


def _lines(out: IO[str], err: IO[str]) -> Iterator[tuple[str, bool]]:
    """Yield the lines of two pipes as they come, True beside the second's; "" now and then."""
    lines: queue.Queue[tuple[str, bool] | None] = queue.Queue()

    def read(pipe: IO[str], is_error: bool) -> None:
        for line in pipe:
            lines.put((line, is_error))
        lines.put(None)

    for pipe, is_error in ((out, False), (err, True)):
        threading.Thread(target=read, args=(pipe, is_error), daemon=True).start()
    open_pipes = 2
    while open_pipes:
        try:
            line = lines.get(timeout=EVERY)
        except queue.Empty:
            yield "", False
            continue
        if line is None:
            open_pipes -= 1
        else:
            yield line


def _installed(packages: Path) -> set[str]:
    return {path.name for path in packages.glob("*.dist-info")}


def _newest_size(loads: Path) -> int:
    """How many bytes are here of the archive that pip loads: of the file that was written last."""
    sizes = []
    for file in loads.glob("pip-unpack-*/*"):
        try:
            found = file.stat()
        except OSError:  # pip has just removed it
            continue
        sizes.append((found.st_mtime_ns, found.st_size))
    return max(sizes, default=(0, 0))[1]


def _bytes(size: str) -> float:
    number, _, unit = size.partition(" ")
    return float(number) * _UNITS[unit] if unit in _UNITS else 0.0


def _plain(name: str) -> str:
    """A package's name as all spellings of it have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
