"""Files that are replaced atomically, and locks on files.

Functions raise OSError if a folder is missing or not writable, or if the disk is full. The file is
then unchanged. PyPI's `atomicwrites`, which does the same, is not maintained.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from datetime import date
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar

from trialfleet.errors import InputError

if TYPE_CHECKING:
    from pydantic import ValidationError

_TICK = 1_000_000_000  # nanoseconds within which two changes of a folder may get the same time
_FEW = 16  # files that are synced one by one
T = TypeVar("T")
U = TypeVar("U")


def write_atomic(
    path: Path, content: str | bytes, *, mode: int = 0o644, durable: bool = True
) -> None:
    """Replace `path` atomically by a file with this content.

    Without `durable`, nothing is synced to the disk, so a power failure may lose the file.
    """
    with _temporary_file(path, mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replace_file(path: Path, *, mode: int = 0o666) -> Iterator[TextIO]:
    """Yield a text file that replaces `path` if the block succeeds."""
    with _temporary_file(path, mode) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.detach()  # flushes, and leaves the file open for the fsync


@contextmanager
def _temporary_file(path: Path, mode: int, *, durable: bool = True) -> Iterator[BinaryIO]:
    # Not the name plus an ending, because a name may already have the maximum of 255 bytes.
    beside = path.with_name(f".{os.urandom(6).hex()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        error.filename = str(path)  # the name that the caller knows
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def exists(path: Path) -> bool:
    """Return whether a path exists; False if it can't, such as a name too long for a file."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists() raises OSError for such a name


def open_lock(path: Path) -> BinaryIO:
    """Open or create a lock file that only its owner can read, so that others can't lock it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(PermissionError):  # another account's file, which we may write
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "r+b")


def close_to_others() -> int:
    """Let only this account write to files that this process creates. Return the old umask."""
    before = os.umask(0o077)
    os.umask(before | 0o022)
    return before


@contextmanager
def closed_to_others() -> Iterator[None]:
    """During the block, let only this account write to files that this process creates."""
    before = close_to_others()
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def lock_file(lock: Path, *, wait: bool) -> Iterator[bool]:
    """Lock the file `lock` during the block. Yield whether this process has the lock.

    If another process has the lock, wait for it, or yield False if `wait` is False. A missing lock
    file is created. The kernel releases the lock if this process dies.
    """
    with open_lock(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def folder_stamp(folder: Path) -> int:
    """Return the time in ns when an entry of `folder` was last created, renamed or removed.

    The result is 0 for a missing folder. It is also 0 if the last change is less than a second old,
    because another change may still get the same time.
    """
    try:
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - it takes half the time
    except OSError:
        return 0
    return changed if time.time_ns() - changed > _TICK else 0


def sync(path: Path) -> None:
    """Make a file's content, or the renames inside a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[Path]) -> None:
    """Make files and folders of one filesystem survive a power failure.

    For more than 16 paths, sync the whole filesystem once, because each fsync takes milliseconds.
    """
    if len(paths) <= _FEW:
        for path in paths:
            sync(path)
        return
    descriptor = os.open(paths[0], os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(paths[0]))
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder and everything in it survive a power failure."""
    sync_all([*folder.rglob("*"), folder])


def write_json(path: Path, value: Any) -> None:
    """Replace `path` atomically by `value` as indented JSON."""
    write_atomic(path, json_text(value))


def json_text(value: Any) -> str:
    """Return `value` as indented JSON. ValueError if it contains NaN or an infinity."""
    options: Any = {"indent": 1, "ensure_ascii": False, "allow_nan": False}
    return json.dumps(value, default=plain_data, **options) + "\n"


def plain_data(value: Any) -> Any:
    """Return a dataclass as a dict, a time in ISO 8601, and all else as text, for JSON."""
    if is_dataclass(value):
        return vars(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`. ValueError if the file is not JSON in UTF-8."""
    return parse_json(read_regular(path).decode())


def parse_json(text: str) -> Any:
    """Return the JSON value in `text`. ValueError if it is not JSON."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. OSError for any other kind, such as a pipe."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # doesn't wait for a pipe's writer


# What reading a damaged file raises.
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError)


def unless_damaged(read: Callable[[], T], default: U) -> T | U:
    """Return what `read` reads from a file, or `default` if the file is missing or damaged."""
    try:
        return read()
    except DAMAGED:
        return default


def object_or_empty(read: Callable[[], Any]) -> dict[str, Any]:
    """Return the JSON object that `read` reads from a file, or {} if it is missing or damaged."""
    found = unless_damaged(read, None)
    return found if isinstance(found, dict) else {}


def read_record(
    path: Path, *keys: str, shape: Any = None, if_missing: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a file's JSON object, which must have `keys`.

    If `shape` is given, the object must also be of this type. If the file does not exist, return
    `if_missing`. InputError if the file can't be read or is damaged, or if it does not exist and
    `if_missing` is None.
    """
    return checked_record(path, lambda: read_regular(path), keys, shape, if_missing)


def checked_record(
    path: Path,
    read: Callable[[], bytes],
    keys: Sequence[str],
    shape: Any,
    if_missing: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the JSON object in the bytes from `read`, checked as in `read_record`.

    The errors name `path`.
    """
    try:
        text = read().decode()
        found = parse_json(text) if text.strip() else None
    except OSError as error:
        if if_missing is not None and isinstance(error, FileNotFoundError | NotADirectoryError):
            return if_missing
        raise InputError(f"{str(path)!r} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged: it is not JSON: {error}") from error
    if not text.strip():
        raise InputError(f"{str(path)!r} is damaged: it is empty")
    if not isinstance(found, dict):
        raise InputError(f"{str(path)!r} is damaged: it is not a JSON object")
    if missing := [key for key in keys if key not in found]:
        raise InputError(f"{str(path)!r} is damaged: it lacks {', '.join(missing)}")
    if shape is not None and (wrong := _shape_error(shape, text)):
        raise InputError(f"{str(path)!r} is damaged: {wrong}")
    return found


def _shape_error(shape: Any, text: str) -> str:
    from pydantic import ValidationError

    try:
        checker(shape).validate_json(text, strict=True)
    except ValidationError as error:
        return first_error(error)
    return ""


def first_error(error: ValidationError) -> str:
    """Return the text of pydantic's first error, which begins with the place of the wrong value."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])


@cache
def checker(shape: Any) -> Any:
    """Return pydantic's validator of the type `shape`."""
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def shell_quoted(path: Path) -> str:
    """Return a path quoted for a shell, relative to the working directory if that is shorter."""
    near = os.path.relpath(path)
    return shlex.quote(near if len(near) < len(str(path)) else str(path))


def shell_quoted_anywhere(path: Path) -> str:
    """Return an absolute path, quoted for a shell."""
    return shlex.quote(str(path.absolute()))
