"""Transfers a gang's checkpoints by S3. The access point only gets their sizes and hashes.

The gang's keeper, a process on the access point, writes presigned URLs, so nodes need neither AWS
keys nor boto3. A package (tar file) that can't be uploaded is sent to the access point.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError

from trialfleet.nodes.job.chirp import TransferError
from trialfleet.nodes.job.messages import parse_object

LINKS = "links.json"  # in the folder `gang`
TIMEOUT = 5.0  # seconds for a block, because a rank that is silent for 10 seconds counts as lost
_BLOCK = 1 << 20  # bytes
MOST_OF_POINTER = 200  # maximum bytes of a pointer; packages are larger, and begin with a file name
_MARK = b'{"s3"'

Meanwhile = Callable[[], None]  # called between blocks


class StoreError(TransferError):
    """S3 refused a request, is unreachable, or returned other content than was uploaded."""


def find_link(text: bytes | None, kind: str, name: str) -> str | None:
    """Return the presigned URL to "put" or "get" the package `name`, valid for some hours.

    `text` is the content of LINKS. Return None if it is missing, invalid or lacks the URL.
    """
    links = parse_object(text).get(kind)
    return links.get(name) if isinstance(links, dict) else None


class Pointer(NamedTuple):
    """The size and the hash of a package in S3, which the agent sends instead of the package."""

    size: int
    sha256: str

    def to_bytes(self) -> bytes:
        """Return the content of the pointer's file."""
        return json.dumps({"s3": True, **self._asdict()}).encode()


def parse_pointer(text: bytes) -> Pointer | None:
    """Return the pointer in a file's first block, or None if the file is a package itself."""
    if len(text) > MOST_OF_POINTER or not text.startswith(_MARK):
        return None
    plain = parse_object(text)
    try:
        return Pointer(int(plain["size"]), str(plain["sha256"]))
    except (ValueError, KeyError, TypeError):
        return None


def upload(local: Path, address: str, meanwhile: Meanwhile) -> Pointer:
    """Upload a file to the presigned URL `address`. Raise StoreError if S3 fails."""
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
    with _store_errors(), urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310
        return Pointer(size, digest.hexdigest())


@contextmanager
def _store_errors() -> Iterator[None]:
    """Raise StoreError in place of an error of the connection."""
    try:
        yield
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # its body repeats the code in XML
        raise StoreError(f"S3: {error}") from error


def download(pointer: Pointer, address: str | None, local: Path, meanwhile: Meanwhile) -> None:
    """Download a package from the URL `address` into the file `local`.

    Raise StoreError if `address` is None, S3 fails, or the package differs from `pointer`. Raise
    OSError if the disk fails.
    """
    if address is None:
        raise StoreError("the gang's keeper has not yet written this package's URL")
    size, digest = 0, hashlib.sha256()
    with _store_errors():
        answer = urllib.request.urlopen(address, timeout=TIMEOUT)  # noqa: S310
    with answer, local.open("wb") as file:
        while True:
            with _store_errors():
                block = answer.read(_BLOCK)
            if not block:
                break
            file.write(block)
            digest.update(block)
            size += len(block)
            meanwhile()
    if Pointer(size, digest.hexdigest()) != pointer:
        raise StoreError(
            f"S3: the downloaded package ({size} bytes) differs from the uploaded package "
            f"({pointer.size} bytes)"
        )
