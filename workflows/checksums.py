"""States of files and checksums of their content; each file is read once per state.

A file's content is unchanged as long as its inode, size and both times are: programs can't set the
time of an inode's last change. So a checksum is valid for the state that the file had both before
and after it was read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trialfleet.files import open_lock

Entries = list[dict[str, Any]]

READS = 3  # of a file that changes while it is read


def read_copy(path: Path) -> dict[str, Any]:
    """Return the content of a frozen study's JSON copy, which is stored next to its file.

    Raises one of `files.DAMAGED` if there is no copy of the present file.
    """
    copy = json.loads(path.with_suffix(".json").read_bytes())
    if copy["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
        raise ValueError(f"{path} was written since its copy was made")
    frozen: dict[str, Any] = copy["frozen"]
    return frozen


class FileState(NamedTuple):
    """The state of a file at one moment."""

    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def of_file(path: Path) -> FileState:
        """Return the state of the file at `path`."""
        found = path.stat()
        return FileState(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Checksums:
    """SHA-256 of files. Several processes may use one cache; one of them reads at a time."""

    def __init__(self, cache: Path, most: float = math.inf) -> None:
        """Take the cache, which is read with the first file.

        Args:
            cache: a file of JSON lines, made when the first file is read.
            most: bytes that may be read in all; larger files then have no checksum.
        """
        self._cache, self._left = cache, most
        self._known: dict[tuple[str, FileState], str] = {}
        self._seen = 0  # bytes of the cache

    def entry(self, path: Path) -> dict[str, Any]:
        """Return a file's path, state and `sha256`.

        `sha256` is None for a file that is too large, or that changed each time it was read.

        Raises:
            OSError: the file can't be read.
        """
        for _ in range(READS):
            state = FileState.of_file(path)
            checksum = self.checksum(path, state)
            if checksum or state.bytes > self._left:
                break
        return {"path": str(path), **state._asdict(), "sha256": checksum}

    def checksum(self, path: Path, state: FileState) -> str | None:
        """Return the checksum of a file in a state; None if it is too large or in another state.

        Raises:
            OSError: the file can't be read.
        """
        key = (str(path), state)
        if key not in self._known and state.bytes <= self._left:
            with open_lock(self._cache) as cache:
                fcntl.flock(cache, fcntl.LOCK_EX)
                self._catch_up(cache)
                if key not in self._known:
                    self._read(path, state, cache)
        return self._known.get(key)

    def _read(self, path: Path, state: FileState, cache: BinaryIO) -> None:
        if FileState.of_file(path) != state:
            return
        self._left -= state.bytes
        checksum = sha256_of(path)
        if FileState.of_file(path) != state:
            return
        self._known[str(path), state] = checksum
        line = json.dumps({"path": str(path), **state._asdict(), "sha256": checksum})
        with suppress(OSError):  # a line that a crash cut short ends where the next begins
            cache.seek(0, os.SEEK_END)
            cache.write(f"\n{line}".encode())

    def _catch_up(self, cache: BinaryIO) -> None:
        cache.seek(self._seen)
        for line in cache.read().decode(errors="replace").splitlines():
            with suppress(ValueError, TypeError, AttributeError, KeyError):
                entry = json.loads(line)
                path, checksum = entry.pop("path"), entry.pop("sha256")
                self._known[path, FileState(**entry)] = checksum
        self._seen = cache.tell()


def files_of(place: Path) -> list[Path]:
    """Return the file at a path, or all files in the folder at that path."""
    return sorted(p for p in place.rglob("*") if p.is_file()) if place.is_dir() else [place]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
