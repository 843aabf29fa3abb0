"""What identifies a region's data: the checksum of each file, read once per change.

Reading 60 GB takes minutes, and the service that hands out the full trainings answers all regions
from one thread. So files are read in a thread of their own, one at a time, and what was read is
kept in the run's folder, by the file's path, inode, size and time of change.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trialfleet.workflows.study.spec import URL_PREFIXES

Entries = list[dict[str, Any]]

PATIENCE_SECONDS = 1.0  # most data is read by then, and nobody has to come back
FRESH_SECONDS = 60.0  # what was read longer ago is looked at again
READS = 3  # of a file that changes while it is read


class FileState(NamedTuple):
    """A file as it is now: while this stays the same, so does the content."""

    path: str
    inode: int
    bytes: int
    mtime_ns: int

    @staticmethod
    def of(path: Path) -> FileState:
        """Return the state of the file at `path`."""
        found = path.stat()
        return FileState(str(path), found.st_ino, found.st_size, found.st_mtime_ns)


class DataChecksums:
    """The checksums of a run's data. To be asked from one thread."""

    def __init__(self, cache: Path) -> None:
        """Go on from what `cache` holds; it is written by one process at a time.

        Args:
            cache: a file of JSON lines, made when the first file has been read.
        """
        self._cache = cache
        self._known = _load(cache)
        self._work: queue.SimpleQueue[tuple[tuple[str, ...], Future[_Read]]] = queue.SimpleQueue()
        self._asked: dict[tuple[str, ...], Future[_Read]] = {}
        self._reader: threading.Thread | None = None

    def of(self, places: list[str]) -> Entries | None:
        """Return what identifies the data at `places` now; None while it is read: ask again.

        Returns:
            One `{"path", "sha256", "bytes"}` per file, folders walked; `{"url"}` of what is
            remote. `sha256` is None of a file that changed whenever it was read.

        Raises:
            OSError: a file is missing or can't be read; asked again, it is tried again.
        """
        key = tuple(places)
        asked = self._asked.pop(key, None)
        if asked is None or (asked.done() and not _is_fresh(asked)):
            asked = self._read(key)
        if not asked.done():
            self._asked[key] = asked
            return None
        return asked.result().entries

    def _read(self, places: tuple[str, ...]) -> Future[_Read]:
        is_busy = any(not asked.done() for asked in self._asked.values())
        future: Future[_Read] = Future()
        self._work.put((places, future))
        if self._reader is None:  # a daemon: the service's end waits for no file
            self._reader = threading.Thread(target=self._read_on, daemon=True)
            self._reader.start()
        if not is_busy:
            wait([future], PATIENCE_SECONDS)
        return future

    def _read_on(self) -> None:
        while True:
            places, future = self._work.get()
            try:
                entries = [entry for place in places for entry in self._entries(place)]
                future.set_result(_Read(entries, time.monotonic()))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                future.set_exception(error)

    def _entries(self, place: str) -> Entries:
        if place.startswith(URL_PREFIXES):
            return [{"url": place}]
        path = Path(place)
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        return [self._entry(file) for file in files]

    def _entry(self, path: Path) -> dict[str, Any]:
        checksum = None
        for _ in range(READS):
            state = FileState.of(path)
            checksum = self._known.get(state) or sha256_of(path)
            if FileState.of(path) == state:
                self._remember(state, checksum)
                break
            checksum = None
        return {"path": str(path), "sha256": checksum, "bytes": state.bytes}

    def _remember(self, state: FileState, checksum: str) -> None:
        if state in self._known:
            return
        self._known[state] = checksum
        line = json.dumps({**state._asdict(), "sha256": checksum})
        # a line that a crash or a full disk cut short ends where the next begins
        with suppress(OSError), self._cache.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}")


class _Read(NamedTuple):
    """What was read, and when."""

    entries: Entries
    at: float


def _is_fresh(asked: Future[_Read]) -> bool:
    return asked.exception() is not None or time.monotonic() - asked.result().at < FRESH_SECONDS


def _load(cache: Path) -> dict[FileState, str]:
    known = {}
    with suppress(FileNotFoundError):
        for line in cache.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError, AttributeError, KeyError):
                entry = json.loads(line)
                checksum = entry.pop("sha256")
                known[FileState(**entry)] = checksum
    return known


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
