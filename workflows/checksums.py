"""SHA-256 checksums of files, with a cache, so that an unchanged file is read only once.

A file counts as unchanged while its inode, size, mtime and ctime stay the same. Programs can set
the mtime, but not the ctime. A checksum is valid if these four values were the same before and
after the file was read.
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

READS = 3  # attempts to read a file that changes meanwhile


class FileState(NamedTuple):
    """The state of a file, by which a change of its content is recognised."""

    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def from_file(path: Path) -> FileState:
        """Return the present state of a file."""
        found = path.stat()
        return FileState(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Checksums:
    """SHA-256 checksums of files, with a cache file that several processes may share."""

    def __init__(self, cache: Path, max_bytes: float = math.inf) -> None:
        """Use the cache file `cache`, and read at most `max_bytes` bytes of files in total."""
        self._cache, self._left = cache, max_bytes
        self._known: dict[tuple[str, FileState], str] = {}
        self._seen = 0  # bytes of the cache that were read

    def entry(self, path: Path) -> dict[str, Any]:
        """Return a file's path, state and `sha256`; OSError if the file can't be read.

        `sha256` is None if the file has more bytes than `max_bytes` still allows, or if the file
        changed during every attempt to read it.
        """
        for _ in range(READS):
            state = FileState.from_file(path)
            checksum = self.checksum(path, state)
            if checksum or state.bytes > self._left:
                break
        return {"path": str(path), **state._asdict(), "sha256": checksum}

    def checksum(self, path: Path, state: FileState) -> str | None:
        """Return the checksum of a file in the state `state`, from the cache or from the file.

        The cache stays locked while the file is read. OSError if the file can't be read. The result
        is None in two cases:

        - The cache has no checksum, and the file is no longer in this state.
        - The file has more bytes than `max_bytes` still allows, and this object has not read its
          checksum before.
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
        if FileState.from_file(path) != state:
            return
        self._left -= state.bytes
        checksum = compute_sha256(path)
        if FileState.from_file(path) != state:
            return
        self._known[str(path), state] = checksum
        line = json.dumps({"path": str(path), **state._asdict(), "sha256": checksum})
        with suppress(OSError):  # "\n" first: a crash may have cut the last line short
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


def list_files(place: Path) -> list[Path]:
    """Return all files below a folder, sorted; if `place` is a file, return only this file."""
    return sorted(p for p in place.rglob("*") if p.is_file()) if place.is_dir() else [place]


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
