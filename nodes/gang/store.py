"""Checkpoints that travel by S3: on the access point then lies a pointer in a package's place.

The keeper signs the addresses and writes them beside the roster, so nodes need neither keys nor
more than the standard library. Where there are none, or S3 refuses, the package itself goes by the
access point.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError

LINKS = "links.json"  # in the folder `gang`
TIMEOUT = 5.0  # seconds that a block may take: a rank that is silent for 10 is taken for lost
_BLOCK = 1 << 20  # bytes
MOST_OF_POINTER = 200  # bytes; a package is larger, and begins with a file's name
_MARK = b'{"s3"'

Meanwhile = Callable[[], None]  # called between blocks


class StoreError(OSError):
    """S3 refuses, is out of reach, or has something else than what was put there."""


@dataclass(frozen=True)
class Links:
    """Signed addresses, good for some hours."""

    # Where packages may be put, by their names.
    put: Mapping[str, str] = field(default_factory=dict)
    get: Mapping[str, str] = field(default_factory=dict)  # where packages may be had

    @staticmethod
    def of(text: bytes | None) -> Links:
        """Return what the keeper's file holds; none where it can't be read."""
        try:
            plain = json.loads(text or b"{}")
            return Links(dict(plain.get("put", {})), dict(plain.get("get", {})))
        except (ValueError, AttributeError, TypeError):
            return Links()


class Pointer(NamedTuple):
    """What is to be found in S3 under a package's name."""

    size: int
    sha256: str

    def as_bytes(self) -> bytes:
        """Return the file's content."""
        return json.dumps({"s3": True, **self._asdict()}).encode()


def pointer_of(file: Path) -> Pointer | None:
    """Return the pointer that a file is; None where it is a package itself."""
    with file.open("rb") as opened:
        return pointer_in(opened.read(MOST_OF_POINTER + 1))


def pointer_in(text: bytes) -> Pointer | None:
    """Return the pointer of a file's beginning; None where it is a package itself."""
    if len(text) > MOST_OF_POINTER or not text.startswith(_MARK):
        return None
    try:
        plain = json.loads(text)
        return Pointer(int(plain["size"]), str(plain["sha256"]))
    except (ValueError, KeyError, TypeError):
        return None


def upload(local: Path, address: str, meanwhile: Meanwhile) -> Pointer:
    """Put a file there; return what points to it. StoreError where S3 refuses or is away."""
    size, digest = local.stat().st_size, hashlib.sha256()

    def blocks() -> Iterator[bytes]:
        with local.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                yield block
                meanwhile()

    headers = {"Content-Length": str(size), "Content-Type": "application/x-tar"}
    request = urllib.request.Request(  # noqa: S310 - the keeper's own address
        address, data=blocks(), headers=headers, method="PUT"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310
            return Pointer(size, digest.hexdigest())
    except (OSError, HTTPException) as error:
        raise _refused(error) from error


def _refused(error: Exception) -> StoreError:
    if isinstance(error, HTTPError):
        error.close()  # its body says in XML what the code says
    return StoreError(f"S3: {error}")


def download(pointer: Pointer, address: str | None, local: Path, meanwhile: Meanwhile) -> None:
    """Fetch what a pointer stands for into a file; address None: nobody has signed one yet.

    Raises:
        StoreError: S3 refuses, is out of reach, or has something else there.
        OSError: the file can't be written.
    """
    if address is None:
        raise StoreError("S3: the keeper has signed no address for it yet")
    size, digest = 0, hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(address, timeout=TIMEOUT) as answer,  # noqa: S310
            local.open("wb") as file,
        ):
            while block := answer.read(_BLOCK):
                file.write(block)
                digest.update(block)
                size += len(block)
                meanwhile()
    except (URLError, HTTPException) as error:
        raise _refused(error) from error
    if Pointer(size, digest.hexdigest()) != pointer:
        raise StoreError(f"S3: of {pointer.size} bytes {size} came, or others than were put there")
