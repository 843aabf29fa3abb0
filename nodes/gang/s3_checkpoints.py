"""Transfers a gang's checkpoints by S3. The access point only gets their sizes and hashes.

The gang's keeper, a process on the access point, writes presigned URLs, so nodes need neither AWS
keys nor boto3. A package (tar file) that can't be uploaded is sent to the access point.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple, cast
from urllib.error import HTTPError

from trialfleet.nodes.job.chirp import TransferError

LINKS = "links.json"  # in the folder `gang`
TIMEOUT = 5.0  # seconds for a block, because a rank that is silent for 10 seconds counts as lost
_BLOCK = 1 << 20  # bytes
MOST_OF_POINTER = 200  # maximum bytes of a pointer; packages are larger, and begin with a file name
_MARK = b'{"s3"'

Meanwhile = Callable[[], None]  # called between blocks


class StoreError(TransferError):
    """S3 refused a request, is unreachable, or returned other content than was uploaded."""


@dataclass(frozen=True)
class Links:
    """Presigned URLs of packages in S3, valid for some hours."""

    # URLs for uploads and for downloads, by the packages' names.
    put: Mapping[str, str] = field(default_factory=dict)
    get: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(text: bytes | None) -> Links:
        """Return the URLs in `text`, or no URLs if `text` is missing or invalid."""
        try:
            plain = json.loads(text or b"{}")
            return Links(dict(plain.get("put", {})), dict(plain.get("get", {})))
        except (ValueError, AttributeError, TypeError):
            return Links()


class Pointer(NamedTuple):
    """The size and the hash of a package in S3, which the agent sends instead of the package."""

    size: int
    sha256: str

    def to_bytes(self) -> bytes:
        """Return the content of the pointer's file."""
        return json.dumps({"s3": True, **self._asdict()}).encode()


def read_pointer(file: Path) -> Pointer | None:
    """Return the pointer in a file, or None if the file is a package itself."""
    with file.open("rb") as opened:
        return parse_pointer(opened.read(MOST_OF_POINTER + 1))


def parse_pointer(text: bytes) -> Pointer | None:
    """Return the pointer in a file's first bytes, or None if the file is a package itself."""
    if len(text) > MOST_OF_POINTER or not text.startswith(_MARK):
        return None
    try:
        plain = json.loads(text)
        return Pointer(int(plain["size"]), str(plain["sha256"]))
    except (ValueError, KeyError, TypeError):
        return None


def upload(local: Path, address: str, meanwhile: Meanwhile) -> Pointer:
    """Upload a file to the presigned URL `address`, and return the file's size and hash.

    `meanwhile` is called after each block. Raise StoreError if S3 fails.
    """
    size, digest = local.stat().st_size, hashlib.sha256()

    def blocks() -> Iterator[bytes]:
        with local.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                yield block
                meanwhile()

    headers = {"Content-Length": str(size), "Content-Type": "application/x-tar"}
    request = urllib.request.Request(  # noqa: S310 - the keeper's own URL
        address, data=blocks(), headers=headers, method="PUT"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310
            return Pointer(size, digest.hexdigest())
    except (OSError, HTTPException) as error:
        raise _store_error(error) from error


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, HTTPError):
        error.close()  # its body repeats the code in XML
    return StoreError(f"S3: {error}")


def _open(address: str) -> IO[bytes]:
    try:
        return cast("IO[bytes]", urllib.request.urlopen(address, timeout=TIMEOUT))  # noqa: S310
    except (OSError, HTTPException) as error:
        raise _store_error(error) from error


def _read(answer: IO[bytes]) -> bytes:
    try:
        return answer.read(_BLOCK)
    except (OSError, HTTPException) as error:  # such as a reset connection
        raise _store_error(error) from error


def download(pointer: Pointer, address: str | None, local: Path, meanwhile: Meanwhile) -> None:
    """Download a package from the URL `address` into the file `local`.

    Raise StoreError if `address` is None, S3 fails, or the package differs from `pointer`. Raise
    OSError if the disk fails.
    """
    if address is None:
        raise StoreError("the gang's keeper has not yet written this package's URL")
    size, digest = 0, hashlib.sha256()
    with _open(address) as answer, local.open("wb") as file:
        while block := _read(answer):
            file.write(block)
            digest.update(block)
            size += len(block)
            meanwhile()
    if Pointer(size, digest.hexdigest()) != pointer:
        raise StoreError(
            f"S3: the downloaded package ({size} bytes) differs from the uploaded package "
            f"({pointer.size} bytes)"
        )
