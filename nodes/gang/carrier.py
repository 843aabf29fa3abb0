"""Transfers a gang's checkpoints and results to and from the access point, directly or by S3."""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import GANG, WORDS
from trialfleet.nodes.gang import s3_checkpoints
from trialfleet.nodes.job.chirp import TransferError
from trialfleet.nodes.job.pack_and_unpack import pack, unpack_blocks, unpack_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trialfleet.nodes.gang.packages import Package
    from trialfleet.nodes.gang.s3_checkpoints import Pointer
    from trialfleet.nodes.job.chirp import Chirp

REMOTE = f"{WORDS}/{GANG}"  # the folder on the access point


class Carrier:
    """Sends and fetches packages, which are tar files.

    `proc` is the job's number in its cluster. `bring` accepts files of at most `most_bytes` in
    total. During a transfer, `meanwhile` is called after each block, so that the agent can send
    heartbeats. It may use the same connection.
    """

    def __init__(
        self,
        chirp: Chirp,
        sandbox: Path,
        proc: int,
        most_bytes: float,
        meanwhile: Callable[[], None],
    ) -> None:
        self._chirp, self._sandbox = chirp, sandbox
        # one file for all packages, so that packages that can't be sent do not add up
        self._part = f"{REMOTE}/package.{proc:06}.part"
        self._most_bytes, self._meanwhile = most_bytes, meanwhile

    def fetch(self, name: str, folder: Path) -> None:
        """Fetch the package `name` and unpack it into `folder`.

        Raise TransferError if the package can't be fetched, and DamagedPackageError if it is
        damaged. Raise another OSError if the disk fails.
        """
        with closing(self._chirp.blocks(f"{REMOTE}/{name}")) as blocks:
            first = next(blocks, b"")
            pointer = s3_checkpoints.parse_pointer(first)
            if pointer is None:
                unpack_blocks(self._beating(chain([first], blocks)), folder)
                return
        local = self._sandbox / f".{name}"
        try:
            s3_checkpoints.download(pointer, self._link("get", name), local, self._meanwhile)
            with local.open("rb") as file:
                unpack_file(file, folder)
        finally:
            local.unlink(missing_ok=True)

    def _beating(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            yield block
            self._meanwhile()

    def bring(
        self,
        package: Package,
        names: Sequence[str],
        folder: Path,
        first: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Send the files `names` of `folder` as `package`, and return whether it has arrived.

        The package begins with the files in `first`. Raise UnsendableError if the files can't be
        sent, for example because they are too large for a package. Raise OSError if the disk fails.
        """

        def pack_to(write: Callable[[bytes], object]) -> None:
            pack(names, folder, write, self._most_bytes, first)

        try:
            pointer = self._upload_to_s3(package.name, pack_to)
            with self._chirp.open_upload(self._part) as send:

                def write(block: bytes) -> None:
                    send(block)
                    self._meanwhile()

                if pointer:
                    send(pointer.to_bytes())
                else:
                    pack_to(write)
            self._chirp.rename(self._part, f"{REMOTE}/{package.name}")
        except TransferError as error:
            print(f"gang: {package.name} can't be sent: {error}", file=sys.stderr)
            return False
        return True

    def _upload_to_s3(self, name: str, pack_to: Callable[..., None]) -> Pointer | None:
        """Upload a package to S3. Return None if it has no presigned URL, or if S3 fails.

        S3 must know the size in advance, so the package is first written to a file.
        """
        address = self._link("put", name)
        if address is None:
            return None
        local = self._sandbox / f".{name}"
        try:
            with local.open("wb") as file:
                pack_to(file.write)
            return s3_checkpoints.upload(local, address, self._meanwhile)
        except s3_checkpoints.StoreError as error:
            words = f"{name} is sent to the access point instead of S3, after this error"
            print(f"gang: {words}: {error}", file=sys.stderr)
            return None
        finally:
            local.unlink(missing_ok=True)

    def _link(self, kind: str, name: str) -> str | None:
        text = self._chirp.read(f"{REMOTE}/{s3_checkpoints.LINKS}")
        return s3_checkpoints.find_link(text, kind, name)
