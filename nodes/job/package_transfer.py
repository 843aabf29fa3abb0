"""Transfers a trial's input, checkpoints and result between its job and the access point."""

from __future__ import annotations

import os
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
    """Fetches and sends the packages of a job's trials."""

    def __init__(self, chirp: Chirp, events: Events) -> None:
        self._chirp, self._events = chirp, events
        # The maximum size of a package.
        self._most_bytes = float(job_ad.numbers("RequestDisk")[0] * 1024 or "inf")

    def take_input(self, order: Order, folder: Path) -> bool:
        """Fetch the trial's input and checkpoint into `folder`. Return whether the input is usable.

        The reason for unusable input is written to the trial's standard error. A damaged checkpoint
        is ignored.
        """
        given = GIVEN_PACKAGE.format(order.name)
        if order.given and (fault := self._fetch(given, folder)):
            (folder / ERR).write_text(f"the package {given} {fault}\n", encoding="utf-8")
            return False
        checkpoint = CHECKPOINT_PACKAGE.format(order.name)
        if (fault := self._fetch(checkpoint, folder)) and fault != _MISSING:
            words = f"the trial starts from the beginning, because {checkpoint} {fault}"
            print(words, file=sys.stderr)
            shutil.rmtree(folder / CHECKPOINT)
            (folder / CHECKPOINT).mkdir()
            (folder / PROGRESS).write_bytes(b"")
        return True

    def _fetch(self, package: str, folder: Path) -> str | None:
        """Unpack a package from the access point into `folder`, with retries.

        Return None on success, or what is wrong with the package, such as "is missing". Raise
        OSError if the disk fails, for example because it is full.
        """

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
        """Send the files `names` of `folder` as `package`, and retry until it has arrived.

        The package begins with the files in `first`. The trainer can't forge the package's first
        file, because the trainer's files come later. Raise UnsendableError if the files can't be
        sent, for example because they are too large. Raise WantedBackError if the job must end
        before the package has arrived. Raise OSError if the disk fails.
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
                words = "the agent leaves its slot: HTCondor has removed the job's files"
                print(words, file=sys.stderr)
                raise WantedBackError
            self._chirp.rename(part, f"{WORDS}/{package}")
        except ChirpError as error:
            if self._events.is_wanted_back and error.code in {REFUSED, MISSING}:
                raise WantedBackError from error  # the job's folder is gone: no one waits for it
            raise

    def _is_removed(self, names: Iterable[str], folder: Path, before: list[str]) -> bool:
        """Return whether HTCondor is removing this job's files.

        HTCondor does this after its own restart. `before` has the names of the files to pack. If
        one of them is missing, the trainer may have removed it. So this method waits, and then
        checks whether the job's other files still exist.
        """
        packed = {RESULT, *before} if RESULT in names else {*before}
        if all(os.path.lexists(folder / name) for name in packed) and job_ad.text("_CONDOR_JOB_AD"):
            return False
        self._events.wait(REMOVED_SECONDS)  # the trainer may have removed its files or its folder
        return not (folder.parent.is_dir() and job_ad.text("_CONDOR_JOB_AD"))
