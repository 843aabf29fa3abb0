"""Transfers a gang's checkpoints and results to and from the access point, directly or by S3."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import GANG, WORDS
from trialfleet.nodes.gang import s3_checkpoints
from trialfleet.nodes.job.chirp import TransferError
from trialfleet.nodes.job.pack_and_unpack import pack, unpack_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trialfleet.nodes.gang.packages import Package
    from trialfleet.nodes.job.chirp import Chirp

REMOTE = f"{WORDS}/{GANG}"  # the folder on the access point


class Carrier:
    """Sends and fetches packages, which are tar files.

    `bring` accepts files of at most `most_bytes` in total. During a transfer, `meanwhile` is called
    after each block, so that the agent can send heartbeats.
    """

    def __init__(
        self, chirp: Chirp, sandbox: Path, most_bytes: float, meanwhile: Callable[[], None]
    ) -> None:
        self._chirp, self._sandbox = chirp, sandbox
        self._most_bytes, self._meanwhile = most_bytes, meanwhile

    def fetch(self, name: str, folder: Path) -> None:
        """Fetch the package `name` and unpack it into `folder`.

        Raise TransferError if the package can't be fetched, and DamagedPackageError if it is
        damaged. Raise another OSError if the disk fails.
        """
        local = self._sandbox / f".{name}"
        try:
            self._chirp.fetch(f"{REMOTE}/{name}", local, self._meanwhile)
            if pointer := s3_checkpoints.read_pointer(local):
                s3_checkpoints.download(pointer, self._link("get", name), local, self._meanwhile)
            with local.open("rb") as file:
                unpack_file(file, folder)
        finally:
            local.unlink(missing_ok=True)

    def bring(
        self,
        package: Package,
        names: Iterable[str],
        folder: Path,
        first: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Send the files `names` of `folder` as `package`, and return whether it has arrived.

        The package begins with the files in `first`. Raise UnsendableError if the files can't be
        sent, for example because they are too large for a package. Raise OSError if the disk fails.
        """
        local, remote = self._sandbox / f".{package.name}", f"{REMOTE}/{package.name}"
        try:
            with local.open("wb") as file:
                pack(names, folder, file.write, self._most_bytes, first)
            self._send_by_s3(package, local)
            self._chirp.put(local, f"{remote}.part", self._meanwhile)
            self._chirp.rename(f"{remote}.part", remote)
        except TransferError as error:
            print(f"gang: {package.name} can't be sent: {error}", file=sys.stderr)
            return False
        finally:
            local.unlink(missing_ok=True)
        return True

    def _send_by_s3(self, package: Package, local: Path) -> None:
        """Upload the file `local` to S3, then overwrite `local` with the file's size and hash.

        If there is no presigned URL for `package`, or if S3 fails, `local` stays as it is.
        """
        address = self._link("put", package.name)
        if address is None:
            return
        try:
            pointer = s3_checkpoints.upload(local, address, self._meanwhile)
        except s3_checkpoints.StoreError as error:
            words = f"{package.name} is sent to the access point instead of S3, after this error"
            print(f"gang: {words}: {error}", file=sys.stderr)
        else:
            local.write_bytes(pointer.to_bytes())

    def _link(self, kind: str, name: str) -> str | None:
        text = self._chirp.read(f"{REMOTE}/{s3_checkpoints.LINKS}")
        return s3_checkpoints.find_link(text, kind, name)
