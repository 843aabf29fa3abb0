"""Packs a trial's files into one tar file (a package), and unpacks packages.

A package may be hostile. So `tarfile` only reads and writes single headers, and extracts no files.
"""

from __future__ import annotations

import errno
import io
import math
import os
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from trialfleet.nodes import MODEL

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_MEMBERS = 100_000  # files and folders of a package
_LONGEST_NAME = 1 << 14  # bytes of a long member's name, which has a separate header
_BLOCK = 1 << 20  # bytes
# Errors of a file name that is too long, or that contradicts another name of the package.
_WRONG_NAME = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}


class DamagedPackageError(OSError):
    """A package is damaged, or has forbidden content."""


class UnsendableError(Exception):
    """A trial's files can't be sent, now or later."""


class TooLargeError(UnsendableError):
    """The files for a package are too large (`limit` is "disk") or too many ("files")."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


def pack(
    names: Iterable[str],
    folder: Path,
    write: Callable[[bytes], object],
    max_bytes: float = math.inf,
    first: Mapping[str, bytes] | None = None,
) -> None:
    """Pack the files and folders `names` of a folder into a package.

    `write` gets the package in blocks of at most 1 MiB. The package begins with the small files
    `first`. Links are followed. Missing files are left out. Unreadable files are reported on
    stderr and left out, except in the folder `model` (see `find_files`).

    Raise TooLargeError if the files have more than `max_bytes` in total, or if there are more than
    MOST_MEMBERS files and folders. Raise UnsendableError if a file is shorter than its size. Raise
    OSError if the disk or `write` fails.
    """
    members = [*find_files(names, folder)]
    if len(first or {}) + len(members) > MOST_MEMBERS:
        raise TooLargeError("files", f"more than {MOST_MEMBERS:,} files and folders")
    gathered = bytearray()

    def gather(block: bytes) -> None:
        gathered.extend(block)
        while len(gathered) >= _BLOCK:
            write(bytes(gathered[:_BLOCK]))
            del gathered[:_BLOCK]

    for name, content in (first or {}).items():
        info = tarfile.TarInfo(name)
        info.size = len(content)
        gather(_header(info) + content + tarfile.NUL * (-info.size % tarfile.BLOCKSIZE))
    for path, name in members:
        max_bytes -= _add(path, name, gather, max_bytes)
    gather(tarfile.NUL * 2 * tarfile.BLOCKSIZE)
    if gathered:
        write(bytes(gathered))


def find_files(names: Iterable[str], folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file and folder that `pack` would pack, as its path and its name in the package.

    Unreadable folders and links to missing files are left out. But in the folder `model`, `pack`
    writes a device file in their place. Unpacking refuses a package with a device file, so an
    incomplete model is never unpacked.
    """
    ways: list[tuple[Path, str, tuple[str, ...]]]
    ways = [(folder / name, name, ()) for name in reversed([*names])]
    while ways:
        path, name, above = ways.pop()
        if _is_readable_folder(path):
            if (real := os.path.realpath(path)) in above:
                continue
            yield path, name
            inside = sorted(_entries(path), reverse=True)
            ways += [(each, f"{name}/{each.name}", (*above, real)) for each in inside]
        elif _is_file(path) or (name.startswith(f"{MODEL}/") and os.path.lexists(path)):
            yield path, name


def _is_readable_folder(path: Path) -> bool:
    # Path.is_dir raises PermissionError for a link into a folder that this account can't read.
    return os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK)  # noqa: PTH112


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - as above


def _entries(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):  # it was removed meanwhile
        return []


def _add(path: Path, name: str, write: Callable[[bytes], object], max_bytes: float) -> int:
    info = tarfile.TarInfo(name)
    if _is_readable_folder(path):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        write(_header(info))
        return 0
    try:
        file = _open(path)
    except OSError as error:
        print(f"{name} can't be sent: {error}", file=sys.stderr)
        if name.startswith(f"{MODEL}/"):
            info.type = tarfile.CHRTYPE
            write(_header(info))
        return 0
    with file:
        stat = os.fstat(file.fileno())
        info.size, info.mode = stat.st_size, stat.st_mode & 0o777
        if info.size > max_bytes:
            raise TooLargeError(
                "disk",
                f"more data than resources.disk allows; the limit was exceeded at the file {name}",
            )
        write(_header(info))
        left = info.size
        while left:
            if not (block := file.read(min(left, _BLOCK))):
                raise UnsendableError(f"{name} can't be sent: it became shorter while it was read")
            write(block)
            left -= len(block)
    write(tarfile.NUL * (-info.size % tarfile.BLOCKSIZE))
    return info.size


def _open(path: Path) -> io.FileIO:
    if not _is_file(path):  # such as a pipe, where opening would wait
        raise OSError("it is neither a file nor a readable folder")
    return path.open("rb", buffering=0)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def unpack_file(package: BinaryIO, into: Path, max_bytes: float = math.inf) -> None:
    """Unpack a package, which may be hostile, into the folder `into`.

    Existing files are replaced.

    Raises:
        DamagedPackageError: the package is damaged or too large, or a name leads out of `into` or
            through a link.
        OSError: the package can't be read, or the disk fails, for example because it is full.
    """
    size = 0
    try:
        for count, (name, header) in enumerate(_read_members(package)):
            size += header.size
            if size > max_bytes:
                raise DamagedPackageError(f"the files have more than {max_bytes:,} bytes in total")
            if count >= MOST_MEMBERS:
                raise DamagedPackageError(
                    f"there are more than {MOST_MEMBERS:,} files and folders; put them into fewer "
                    "files, such as an archive"
                )
            _take(package, header, _find_target(name, into))
    except UnicodeDecodeError as error:
        raise DamagedPackageError(f"the file name {error.object!r} is not UTF-8") from error
    except (tarfile.TarError, ValueError) as error:
        raise DamagedPackageError(str(error)) from error
    except OSError as error:
        if error.errno in _WRONG_NAME:
            raise DamagedPackageError(str(error)) from error
        raise


def unpack_blocks(blocks: Iterator[bytes], into: Path) -> None:
    """Unpack a package, given as blocks, into the folder `into`, like `unpack_file`."""
    unpack_file(cast("BinaryIO", io.BufferedReader(_Blocks(blocks), _BLOCK)), into)
    for _ in blocks:  # read the data after the package's end, too
        pass


def read_first(blocks: Iterator[bytes], name: str) -> bytes | None:
    """Return the content of a package's first file, which must have the name `name`.

    Return None if the file has another name, or if the package is damaged.
    """
    file = cast("BinaryIO", io.BufferedReader(_Blocks(blocks), _BLOCK))
    try:
        found, header = next(_read_members(file), ("", None))
        return _read(file, header.size) if header and found == name else None
    except (tarfile.TarError, ValueError, DamagedPackageError):
        return None


class _Blocks(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: WriteableBuffer) -> int:
        view = memoryview(into)
        self._rest = self._rest or next(self._blocks, b"")
        part, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(part)] = part
        return len(part)


def _read_members(package: BinaryIO) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield the name and header of each file and folder.

    The caller must read a file's content before it takes the next header.
    """
    long_name = ""
    while (block := _read(package, tarfile.BLOCKSIZE)).strip(b"\0"):
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if header.size < 0:
            raise DamagedPackageError("the size of a file is negative")
        if header.type == tarfile.GNUTYPE_LONGNAME:
            if header.size > _LONGEST_NAME:
                raise DamagedPackageError("the name of a file is too long")
            long_name = _read(package, header.size).rstrip(b"\0").decode()
            _read(package, -header.size % tarfile.BLOCKSIZE)
            continue
        yield long_name or header.name, header
        long_name = ""


def _take(package: BinaryIO, header: tarfile.TarInfo, target: Path) -> None:
    if header.type == tarfile.DIRTYPE:
        target.mkdir(parents=True, exist_ok=True)
        return
    if header.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
        raise DamagedPackageError(f"{header.name!r} is not a readable file or folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    mode = 0o755 if header.mode & 0o100 else 0o644
    with os.fdopen(os.open(target, flags, mode), "wb") as file:
        left = header.size
        while left:
            left -= file.write(_read(package, min(left, _BLOCK)))
    _read(package, -header.size % tarfile.BLOCKSIZE)


def _read(package: BinaryIO, size: int) -> bytes:
    content = package.read(size)
    if len(content) < size:
        raise DamagedPackageError("it is truncated")
    return content


def _find_target(name: str, into: Path) -> Path:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise DamagedPackageError(f"{name!r} leads out of its folder")
    target = into
    for part in Path(name).parts:
        target /= part
        if target.is_symlink():  # such as a link to the job's input files
            raise DamagedPackageError(f"{str(target.relative_to(into))!r} is a link")
    return target
