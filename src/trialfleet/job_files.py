"""Files that a job may have left or replaced: hostile input, opened in one way.

A job writes into its trial's folder on the access point. A name there may be a link, a device, a
pipe, or a file of any size. So a file is read only if it is a regular one that no link leads to,
and no more of it than its kind may have. Nothing here waits for a writer.

What can't be read or written is an OSError; a thing of another kind, or a larger one, than a job of
ours leaves a JobFileError, which is one, too.

`within` names the folder from which on a job may have replaced a part of the path; the default is
the file's own folder.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from trialfleet.files import as_json, checked_record, write_atomic

MOST_RESULT = 1_000_000  # bytes of result.json; hundreds of metrics are a hundredth of it
MOST_ORDER = 100_000  # … of stop.json; ours has about 200
MOST_AGENT = 4_096  # … of what a gang's agent says; a line
MOST_NOTES = 16 << 20  # … of what we note in a trial's folder
MOST_REPORTS = 16 << 20  # … of the reports that are read: about 200,000
MOST_LOSSES = 256 << 20  # … of a gate's losses: about 13 million rows
MOST_NAMES = 10_000  # files of a folder

_FOLDER = os.O_PATH | os.O_DIRECTORY
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class JobFileError(OSError):
    """A job left something else than a regular file of a bounded size."""


@contextmanager
def opened(path: Path, within: Path | None = None) -> Iterator[BinaryIO]:
    """Give a regular file, to which no link leads, for reading."""
    with os.fdopen(_open(path, within, _FILE), "rb") as file:
        yield file


def _open(path: Path, within: Path | None, flags: int) -> int:
    """Return a descriptor of a regular file, or raise as `opened` does."""
    with _folder_of(path, within) as folder:
        try:
            descriptor = os.open(path.name, flags, dir_fd=folder)
        except OSError as error:
            raise _refused(path, folder) or error from error
    if (kind := stat.S_IFMT(os.fstat(descriptor).st_mode)) != stat.S_IFREG:
        os.close(descriptor)
        raise JobFileError(f"{path.name} is {KINDS.get(kind, 'no regular file')}")
    return descriptor


@contextmanager
def _folder_of(path: Path, within: Path | None) -> Iterator[int]:
    """Give a descriptor of a file's folder; below `within` no link is followed."""
    begin = within or path.parent
    folder = os.open(begin, _FOLDER)
    try:
        for part in path.parent.relative_to(begin).parts:
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                raise _refused(Path(part), folder) or error from error
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _refused(path: Path, folder: int) -> JobFileError | None:
    """The error of what can't be opened for what it is; None where it can't for another reason."""
    with suppress(OSError):
        kind = stat.S_IFMT(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        if kind in KINDS and kind != stat.S_IFDIR:
            return JobFileError(f"{path.name} is {KINDS[kind]}")
    return None


def read_bytes(path: Path, most: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file of at most `most` bytes."""
    with opened(path, within) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise JobFileError(f"{path.name} is larger than {most:,} bytes")
    return content


def read_json(path: Path, most: int, within: Path | None = None) -> Any:
    """Return the JSON value in a file, as `read_bytes` and `parsed` have it."""
    return parsed(read_bytes(path, most, within))


def parsed(content: bytes) -> Any:
    """Return the JSON value of a text; ValueError: it is not JSON, or not UTF-8."""
    try:
        return json.loads(content.decode())
    except RecursionError as error:
        raise ValueError("it is too deep") from error


def read_record(
    path: Path, *keys: str, shape: Any = None, most: int = MOST_NOTES
) -> dict[str, Any]:
    """Return the JSON object of a file, as `files.read_record` does, with its errors."""
    return checked_record(path, lambda: read_bytes(path, most), keys, shape)


def tail(path: Path, most: int) -> tuple[bytes, int]:
    """Return the end of a file, and how many bytes lie before it; nothing of any other thing."""
    try:
        with opened(path) as file:
            begin = max(0, os.fstat(file.fileno()).st_size - most)
            file.seek(begin)
            return file.read(most), begin
    except OSError:
        return b"", 0


def size_of(path: Path) -> int:
    """Return a file's size; 0 if it is not a regular file."""
    return stamp_of(path)[0]


def stamp_of(path: Path) -> tuple[int, int]:
    """Return size and time of a file; zeros if it is not a regular file."""
    try:
        found = os.lstat(path)  # Path's own takes twice the time
    except OSError:
        return 0, 0
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (0, 0)


def is_folder(path: Path) -> bool:
    """Return whether a folder is there, and no link to one."""
    return stat.S_ISDIR(_kind(path))


def _kind(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def has_files(folder: Path) -> bool:
    """Return whether anything is in a folder that is one."""
    return is_folder(folder) and any(folder.iterdir())


def sizes_in(folder: Path) -> dict[str, int]:
    """Return the names in a folder with their sizes; the size is 0 unless it is a regular file."""
    found: dict[str, int] = {}
    with (
        _folder_of(folder / "any", folder.parent) as descriptor,
        os.scandir(f"/proc/self/fd/{descriptor}") as entries,
    ):
        for entry in entries:
            found[entry.name] = size_of(Path(entry.path))
            if len(found) > MOST_NAMES:
                raise JobFileError(f"{folder.name} has more than {MOST_NAMES:,} files")
    return found


def write(
    path: Path,
    content: str | bytes,
    *,
    mode: int = 0o644,
    within: Path | None = None,
    durable: bool = True,
) -> None:
    """Replace what lies under a name by a file of ours, as `files.write_atomic` does."""
    with _folder_of(path, within) as folder:
        place = Path(f"/proc/self/fd/{folder}") / path.name  # its folder, wherever that is now
        try:
            if is_folder(place):
                shutil.rmtree(place)
            write_atomic(place, content, mode=mode, durable=durable)
        except OSError as error:
            error.filename = str(path)
            raise


def append(path: Path, content: bytes) -> None:
    """Append to a regular file, in one write: another program may append to it at the same time."""
    descriptor = _open(path, None, _FILE & ~os.O_ACCMODE | os.O_WRONLY | os.O_APPEND)
    try:
        if os.write(descriptor, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def write_json(
    path: Path,
    value: Any,
    *,
    mode: int = 0o644,
    within: Path | None = None,
    durable: bool = True,
) -> None:
    """Replace what lies under a name by a value as JSON, as `files.write_json` does."""
    write(path, as_json(value), mode=mode, within=within, durable=durable)


def tree_of(folder: Path) -> list[Path]:
    """Return what is in a folder that came of a job, at any depth: files and folders, no links."""
    found = sorted(folder.rglob("*"))
    for path in (folder, *found):
        kind = stat.S_IFMT(_kind(path))
        if kind != stat.S_IFDIR and (kind != stat.S_IFREG or path is folder):
            raise JobFileError(f"{str(path)!r} is {KINDS.get(kind, 'no file and no folder')}")
    return found


def copy_tree(source: Path, to: Path, copy: Callable[[Path, Path], object] | None = None) -> None:
    """Copy a folder that came of a job to a place that is free, or to an empty folder.

    By default `copy` makes of each file one with the same bytes that its owner alone may write.
    """
    to.mkdir(mode=0o755, exist_ok=True)
    for path in tree_of(source):
        new = to / path.relative_to(source)
        if is_folder(path):
            new.mkdir(mode=0o755)
        else:
            (copy or _copy)(path, new)


def share(source: Path, to: Path) -> None:
    """Give a regular file a second name, or copy it where the file system has none to give."""
    with opened(source):
        try:
            os.link(source, to, follow_symlinks=False)
        except OSError:
            _copy(source, to)


def _copy(source: Path, to: Path) -> None:
    with opened(source) as file:
        mode = 0o755 if os.fstat(file.fileno()).st_mode & 0o100 else 0o644
        descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as new:
            shutil.copyfileobj(file, new)
            new.flush()
            os.fsync(new.fileno())


def remove(path: Path) -> None:
    """Remove what a job left under a name: a folder with all that is in it, or a link itself."""
    with suppress(FileNotFoundError):
        if is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()


def make_empty(folder: Path) -> None:
    """Make a folder that is empty, whatever a job left under its name."""
    remove(folder)
    folder.mkdir(mode=0o755)
