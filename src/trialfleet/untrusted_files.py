"""Safe reads and writes of untrusted files, which a job may have left or replaced.

A job may leave a link, a device, a pipe, or a file of any size in its trial's folder on the access
point. So only regular files are read, up to a maximum size and without following links. Nothing
here waits until a program writes to a pipe. Functions raise OSError if a file can't be read or
written. They raise JobFileError, an OSError, if a file is too large or not regular.

`root` is a folder that no job can replace. Below `root`, a job may have replaced any folder by a
link. By default, `root` is the file's own folder.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from trialfleet import files
from trialfleet.files import checked_record, json_text, write_atomic

MOST_RESULT = 1_000_000  # bytes of result.json; hundreds of metrics take about 10,000
MOST_ORDER = 100_000  # … of stop.json; ours has about 200
MOST_AGENT = 4_096  # … of a message of a gang's agent, one line
MOST_NOTES = 16 << 20  # … of our notes in a trial's folder
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
    """A job left something other than a regular file of limited size."""


@contextmanager
def open_regular(path: Path, root: Path | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without following links below `root`."""
    with os.fdopen(_open(path, root, _FILE), "rb") as file:
        yield file


def _open(path: Path, root: Path | None, flags: int) -> int:
    with _open_folder(path, root) as folder:
        try:
            descriptor = os.open(path.name, flags, dir_fd=folder)
        except OSError as error:
            raise _file_error(path, folder) or error from error
    if (kind := stat.S_IFMT(os.fstat(descriptor).st_mode)) != stat.S_IFREG:
        os.close(descriptor)
        raise JobFileError(f"{path.name} is {KINDS.get(kind, 'not a regular file')}")
    return descriptor


@contextmanager
def _open_folder(path: Path, root: Path | None) -> Iterator[int]:
    """Open a descriptor of a file's folder, without following links below `root`."""
    begin = root or path.parent
    folder = os.open(begin, _FOLDER)
    try:
        for part in path.parent.relative_to(begin).parts:
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                raise _file_error(Path(part), folder) or error from error
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _file_error(path: Path, folder: int) -> JobFileError | None:
    """Return an error if `path` is a link, pipe, socket or device, else None.

    `folder` is the descriptor of the folder that contains `path`.
    """
    with suppress(OSError):
        kind = stat.S_IFMT(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        if kind in KINDS and kind != stat.S_IFDIR:
            return JobFileError(f"{path.name} is {KINDS[kind]}")
    return None


def read_bytes(path: Path, max_bytes: int, root: Path | None = None) -> bytes:
    """Return the content of a regular file of at most `max_bytes` bytes."""
    with open_regular(path, root) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise JobFileError(f"{path.name} is larger than {max_bytes:,} bytes")
    return content


def read_json(path: Path, max_bytes: int, root: Path | None = None) -> Any:
    """Return the JSON value in a file of at most `max_bytes`. ValueError if it is not JSON."""
    return parse_json(read_bytes(path, max_bytes, root))


def parse_json(content: bytes) -> Any:
    """Return the JSON value in `content`. ValueError if it is not JSON in UTF-8."""
    return files.parse_json(content.decode("utf-8-sig"))


def read_record(
    path: Path, *keys: str, shape: Any = None, if_missing: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON object in a file, like `files.read_record`, with the same errors."""
    return checked_record(path, lambda: read_bytes(path, MOST_NOTES), keys, shape, if_missing)


def tail(path: Path, max_bytes: int, head: bytes = b"") -> tuple[bytes, int]:
    """Return the last `max_bytes` bytes after `head`, and the number of bytes between.

    If the file can't be read or does not begin with `head`, the result is b"" and 0.
    """
    try:
        with open_regular(path) as file:
            if file.read(len(head)) != head:
                return b"", 0
            begin = max(0, os.fstat(file.fileno()).st_size - len(head) - max_bytes)
            file.seek(len(head) + begin)
            return file.read(max_bytes), begin
    except OSError:
        return b"", 0


def file_size(path: Path) -> int:
    """Return a file's size in bytes, or 0 if it is not a regular file."""
    return file_stamp(path)[0]


def file_stamp(path: Path) -> tuple[int, int]:
    """Return a regular file's size in bytes and its mtime in ns. Both are 0 for anything else."""
    try:
        found = os.lstat(path)  # Path's own takes twice the time
    except OSError:
        return 0, 0
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (0, 0)


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder itself, not a link to a folder."""
    return stat.S_ISDIR(_kind(path))


def _kind(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def has_files(folder: Path) -> bool:
    """Return whether `folder` contains regular files at any depth. False for a link to a folder."""
    return is_folder(folder) and any(stat.S_ISREG(_kind(path)) for path in folder.rglob("*"))


def folder_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each regular file in a folder, and 0 for other entries, by name.

    JobFileError if there are more than MOST_NAMES entries.
    """
    found: dict[str, int] = {}
    with (
        _open_folder(folder / "any", folder.parent) as descriptor,
        os.scandir(f"/proc/self/fd/{descriptor}") as entries,
    ):
        for entry in entries:
            found[entry.name] = file_size(Path(entry.path))
            if len(found) > MOST_NAMES:
                raise JobFileError(f"{folder.name} has more than {MOST_NAMES:,} files")
    return found


def write(
    path: Path,
    content: str | bytes,
    *,
    mode: int = 0o644,
    root: Path | None = None,
    durable: bool = True,
) -> None:
    """Replace whatever a job left at `path` by a new file, as `files.write_atomic` does."""
    with _open_folder(path, root) as folder:
        place = Path(f"/proc/self/fd/{folder}") / path.name  # even if the folder has moved
        try:
            if is_folder(place):
                shutil.rmtree(place)
            write_atomic(place, content, mode=mode, durable=durable)
        except OSError as error:
            error.filename = str(path)
            raise


def append(path: Path, content: bytes) -> None:
    """Append `content` in one write, because other programs may append to the same file.

    If the disk has room for only a part, remove the part and raise OSError.
    """
    descriptor = _open(path, None, _FILE & ~os.O_ACCMODE | os.O_WRONLY | os.O_APPEND)
    try:
        if (written := os.write(descriptor, content)) < len(content):
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
            if end == os.fstat(descriptor).st_size:  # otherwise another program has appended
                os.ftruncate(descriptor, end - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def write_json(
    path: Path,
    value: Any,
    *,
    mode: int = 0o644,
    root: Path | None = None,
    durable: bool = True,
) -> None:
    """Replace whatever a job left at `path` by `value` as JSON, as `files.write_json` does."""
    write(path, json_text(value), mode=mode, root=root, durable=durable)


def list_tree(folder: Path) -> list[Path]:
    """Return all files and folders below `folder`. JobFileError for a link, device or pipe."""
    found = sorted(folder.rglob("*"))
    for path in (folder, *found):
        kind = stat.S_IFMT(_kind(path))
        if kind != stat.S_IFDIR and (kind != stat.S_IFREG or path is folder):
            other = "not a folder" if path is folder else "neither a file nor a folder"
            raise JobFileError(f"{str(path)!r} is {KINDS.get(kind, other)}")
    return found


def copy_tree(
    source: Path, target: Path, copy: Callable[[Path, Path], object] | None = None
) -> None:
    """Copy `source`, a folder that a job left, to a new path or into an empty folder.

    `copy` copies one file. By default, only its owner may write to the new file.
    """
    target.mkdir(mode=0o755, exist_ok=True)
    for path in list_tree(source):
        new = target / path.relative_to(source)
        if is_folder(path):
            new.mkdir(mode=0o755)
        else:
            (copy or _copy)(path, new)


def share(source: Path, target: Path) -> None:
    """Make `target` a hard link to the regular file `source`, or a copy if no link is possible."""
    with open_regular(source):
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    with open_regular(source) as file:
        mode = 0o755 if os.fstat(file.fileno()).st_mode & 0o100 else 0o644
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as new:
            shutil.copyfileobj(file, new)
            new.flush()
            os.fsync(new.fileno())


def remove(path: Path) -> None:
    """Remove whatever a job left at `path`, including a folder's content. Links aren't followed."""
    with suppress(FileNotFoundError):
        if is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()


def make_empty(folder: Path) -> None:
    """Make an empty folder in place of whatever a job left at the path `folder`."""
    remove(folder)
    folder.mkdir(mode=0o755)
