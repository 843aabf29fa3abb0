"""Checkpoints and results on their way between a gang's machines and the access point.

A package is a tar file in the folder `gang` of the trial. Its name has the generation and a number
within it: what a rank sends that was thought lost belongs to a generation that is over.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

CHECKPOINT, RESULT = "checkpoint", "result"  # kinds
_NAME = re.compile(r"(checkpoint|result)\.(\d{6})\.(\d{6})\.tar")
# The contract's names in a sandbox; `trialfleet.nodes` has them once more.
_IN_CHECKPOINT = ("checkpoint", "progress.jsonl")
IN_RESULT = ("result.json", "progress.jsonl")
MODEL = "model"  # in a result of a full training

_MOST_MEMBERS = 100_000  # files and folders of a package
_LONGEST_NAME = 1 << 14  # bytes of a member's name that has a header of its own
_PAX_PATH = re.compile(rb"\d+ path=([^\n]*)\n")  # agents of earlier releases name long ones so
_BLOCK = 1 << 20  # bytes


class DamagedPackageError(OSError):
    """A package is damaged, or holds what doesn't belong into one."""


class Package(NamedTuple):
    """A package by its name; of one kind, the later is the greater.

    Attributes:
        kind: what it holds.
        generation: in which it was made.
        number: of a checkpoint, counted in its generation; of a result, the job's proc.
    """

    kind: str
    generation: int
    number: int

    @property
    def name(self) -> str:
        """The file's."""
        return f"{self.kind}.{self.generation:06}.{self.number:06}.tar"

    @property
    def part(self) -> str:
        """The file's name before it is whole."""
        return f"{self.name}.part"


def package_of(name: str) -> Package | None:
    """Return the package that a file is; None where it is none."""
    found = _NAME.fullmatch(name)
    return Package(found[1], int(found[2]), int(found[3])) if found else None


def pack(kind: str, sandbox: Path, to: Path) -> None:
    """Make a package of what lies in a sandbox."""
    names = [*(_IN_CHECKPOINT if kind == CHECKPOINT else IN_RESULT)]
    if kind == RESULT and _mode(sandbox) == "final":
        names.append(MODEL)
    with tarfile.open(to, "w", format=tarfile.GNU_FORMAT, dereference=True) as tar:
        for name in names:
            _add(tar, sandbox / name, name, ())


def _add(tar: tarfile.TarFile, path: Path, name: str, above: tuple[str, ...]) -> None:
    """Add a file, or a folder with all that is in it; a link is what it leads to."""
    real = os.path.realpath(path)
    if path.is_file():
        tar.add(path, name, recursive=False)
    elif path.is_dir() and real not in above:
        tar.add(path, name, recursive=False)
        for each in sorted(path.iterdir()):
            _add(tar, each, f"{name}/{each.name}", (*above, real))


def _mode(sandbox: Path) -> str:
    try:
        return str(json.loads((sandbox / "trial.json").read_text(encoding="utf-8")).get("mode"))
    except (OSError, ValueError, AttributeError):
        return ""


def state_of(sandbox: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what tells one checkpoint of a sandbox from the next."""
    stats = ((path, path.stat()) for path in sorted((sandbox / "checkpoint").rglob("*")))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def begin_anew(sandbox: Path) -> None:
    """Remove what a generation left in a sandbox: the next begins with its checkpoint alone."""
    for folder in ("checkpoint", "model"):
        shutil.rmtree(sandbox / folder, ignore_errors=True)
        (sandbox / folder).mkdir(exist_ok=True)
    for file in ("result.json", "progress.jsonl"):
        (sandbox / file).write_bytes(b"")


def unpack(package: Path, into: Path) -> None:
    """Put what a package holds into a folder, over what is there.

    Raises:
        DamagedPackageError: it can't be used.
        OSError: it could not be read, or there is no room.
    """
    with package.open("rb") as file:
        unpack_from(file, into)


def unpack_from(package: BinaryIO, into: Path, most: float = math.inf) -> None:
    """Put what a package holds into a folder, over what is there.

    Whoever made it may be hostile: files and folders below `into` come of it, and nothing else.
    `tarfile` reads single headers here; neither its extraction nor its filters take part.

    Args:
        package: the file, at its beginning.
        into: the folder.
        most: bytes that its files may have together.

    Raises:
        DamagedPackageError: it can't be used.
        OSError: it could not be read, or there is no room.
    """
    try:
        for count, (name, header) in enumerate(_members(package)):
            most -= header.size
            if most < 0 or count >= _MOST_MEMBERS:
                raise DamagedPackageError("it is too large")
            _take(package, header, into / _checked(name))
    except (tarfile.TarError, ValueError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedPackageError(str(error)) from error


def _members(package: BinaryIO) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield each file and folder by its name; whoever asks for the next has read its content."""
    long_name = ""
    while (block := _read(package, tarfile.BLOCKSIZE)).strip(b"\0"):
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if header.type in {tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE}:
            if header.size > _LONGEST_NAME:
                raise DamagedPackageError("a name is too long")
            text = _read(package, header.size)
            _read(package, -header.size % tarfile.BLOCKSIZE)
            pax = _PAX_PATH.search(text)
            is_gnu = header.type == tarfile.GNUTYPE_LONGNAME
            long_name = (text.rstrip(b"\0") if is_gnu else pax[1] if pax else b"").decode()
            continue
        yield long_name or header.name, header
        long_name = ""


def _take(package: BinaryIO, header: tarfile.TarInfo, to: Path) -> None:
    """Make a member's file or folder."""
    if header.type == tarfile.DIRTYPE:
        to.mkdir(parents=True, exist_ok=True)
        return
    if header.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
        raise DamagedPackageError(f"{header.name!r} is no file and no folder")
    to.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    mode = 0o755 if header.mode & 0o100 else 0o644
    with os.fdopen(os.open(to, flags, mode), "wb") as file:
        left = header.size
        while left:
            left -= file.write(_read(package, min(left, _BLOCK)))
    _read(package, -header.size % tarfile.BLOCKSIZE)


def _read(package: BinaryIO, size: int) -> bytes:
    """Read so many bytes."""
    content = package.read(size)
    if len(content) < size:
        raise DamagedPackageError("it breaks off")
    return content


def _checked(name: str) -> str:
    """A member's name, if it stays below the folder that it comes into."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise DamagedPackageError(f"{name!r} leads out of its folder")
    return name
