"""Transfer of a trial's input, checkpoints and result between its job and the access point."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import CHECKPOINT, CHECKPOINT_PACKAGE, GIVEN_PACKAGE, PROGRESS, RESULT, WORDS
from trialfleet.nodes.job import job_ad, pack_and_unpack
from trialfleet.nodes.job.chirp import MISSING, REFUSED, ChirpError
from trialfleet.nodes.job.events import WantedBackError, until_done
from trialfleet.nodes.job.folder import ERR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trialfleet.nodes.job.chirp import Chirp
    from trialfleet.nodes.job.events import Events
    from trialfleet.nodes.job.messages import Order

_MISSING = "is missing"  # the fault of a package that the access point doesn't have
REMOVED_SECONDS = 1.0  # time in which HTCondor removes a job's files


class PackageTransfer:
    """Transfer of the packages of a job's trials."""

    def __init__(self, chirp: Chirp, events: Events) -> None:
        self._chirp, self._events = chirp, events
        # The maximum size of a package.
        self._most_bytes = float(job_ad.numbers("RequestDisk")[0] * 1024 or "inf")

    def take_input(self, order: Order, folder: Path) -> bool:
        """Unpack the trial's packages; False, and an error in its output, if its input can't be."""
        given = GIVEN_PACKAGE.format(order.name)
        if order.given and (fault := self._fetch(given, folder)):
            (folder / ERR).write_text(f"the package {given} {fault}\n", encoding="utf-8")
            return False
        checkpoint = CHECKPOINT_PACKAGE.format(order.name)
        if (fault := self._fetch(checkpoint, folder)) and fault != _MISSING:
            print(f"starting from the beginning, {checkpoint} {fault}", file=sys.stderr)
            shutil.rmtree(folder / CHECKPOINT)
            (folder / CHECKPOINT).mkdir()
            (folder / PROGRESS).write_bytes(b"")
        return True

    def _fetch(self, package: str, folder: Path) -> str | None:
        """Unpack a package from the access point, with retries; return its fault or None."""

        def fetch() -> str | None:
            try:
                with closing(self._chirp.blocks(f"{WORDS}/{package}")) as blocks:
                    pack_and_unpack.unpack_blocks(blocks, folder)
            except pack_and_unpack.DamagedPackageError as error:
                return f"is damaged: {error}"
            except ChirpError as error:
                if error.code != MISSING:
                    raise
                return _MISSING
            return None

        return until_done(fetch, self._events, self._events.is_free)

    def bring(
        self, package: str, names: Iterable[str], folder: Path, first: Mapping[str, bytes] = {}
    ) -> None:
        """Send a package of files, with retries; TooLargeError or WantedBackError on failure.

        The package begins with the files in `first`, which the trainer can't forge: they do not
        come from the trial's folder.
        """
        put = partial(self._put, package, names, folder, first)
        until_done(put, self._events, self._events.has_time)

    def _put(
        self, package: str, names: Iterable[str], folder: Path, first: Mapping[str, bytes]
    ) -> None:
        part = f"{WORDS}/{package}.part"
        before = [name for _, name in pack_and_unpack.find_files(names, folder)]
        try:
            with self._chirp.open_upload(part) as send:

                def write(block: bytes) -> None:
                    self._events.check()
                    send(block)

                pack_and_unpack.pack(names, folder, write, self._most_bytes, first)
            if self._is_removed(names, folder, before):
                print("leaves: HTCondor has removed its files", file=sys.stderr)
                raise WantedBackError
            self._chirp.rename(part, f"{WORDS}/{package}")
        except ChirpError as error:
            if self._events.is_wanted_back and error.code in {REFUSED, MISSING}:
                raise WantedBackError from error  # its folder is gone: no one waits for the job
            raise

    def _is_removed(self, names: Iterable[str], folder: Path, before: list[str]) -> bool:
        """Return whether HTCondor is removing this job's files, as a restarted startd may do."""
        packed = {RESULT, *before} if RESULT in names else {*before}
        if all((folder / name).exists() for name in packed) and job_ad.text("_CONDOR_JOB_AD"):
            return False
        self._events.wait(REMOVED_SECONDS)  # the trainer may have removed its files or its folder
        return not (folder.parent.is_dir() and job_ad.text("_CONDOR_JOB_AD"))
