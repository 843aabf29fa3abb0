"""A trial in its job: its order, its training, the transfer of its checkpoints and its result."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import (
    CHECKPOINT,
    CHECKPOINT_PACKAGE,
    ENDED,
    GIVEN_PACKAGE,
    PROGRESS,
    RESULT,
    WORDS,
)
from trialfleet.nodes.job import folder as folders
from trialfleet.nodes.job import job_ad, pack_and_unpack
from trialfleet.nodes.job.chirp import MISSING, REFUSED, ChirpError
from trialfleet.nodes.job.events import WantedBackError, until_done
from trialfleet.nodes.job.process_tree import ProcessTree, resident_mb
from trialfleet.nodes.job.reports import Reports
from trialfleet.nodes.job.trainer_process import Trainer
from trialfleet.nodes.job.training import Training
from trialfleet.nodes.job.trial_limits import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trialfleet.nodes.job.chirp import Chirp
    from trialfleet.nodes.job.events import Events
    from trialfleet.nodes.job.messages import Order, Words

EXIT_CHECKPOINTED = 85
SAVED = (CHECKPOINT, PROGRESS, folders.OUT, folders.ERR)  # with the output, which is continued
# Seconds between transfers, at first and after SLOW_AFTER seconds of a trial that can't be stopped.
CARRY, SLOW_CARRY, SLOW_AFTER = 2.0, 10.0, 60.0
_MISSING = "is missing"  # the fault of a package that the access point doesn't have
REMOVED_SECONDS = 1.0  # time in which HTCondor removes a job's files


@dataclass
class Ended:
    """How a trial ended, and the resources that it used in this job."""

    status: int = 0  # as from waitpid
    seconds: float = 0.0  # of wall time, from the order to its end
    cpu_seconds: float = 0.0  # of all of its processes
    memory_mb: float = 0.0  # the largest total memory of its processes
    over: str | None = None  # the exceeded limit: "memory", "time", "disk" or "files"

    @property
    def code(self) -> int:
        """The exit code; minus the signal's number if a signal ended the trial."""
        return os.waitstatus_to_exitcode(self.status)

    def to_json(self) -> dict[str, object]:
        """Return how the trial ended, as JSON data."""
        return {
            "code": self.code,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "memory_mb": round(self.memory_mb, 1),
            "over": self.over,
        }


class Trials:
    """The training of one trial after another, by the trainer's command."""

    def __init__(self, command: Sequence[str], chirp: Chirp, events: Events, words: Words) -> None:
        self._command, self._chirp = command, chirp
        self._events, self._words = events, words
        self._processes = ProcessTree()
        self.folders = folders.Folders(Path.cwd())
        self._trainer: Trainer | None = None
        # The maximum size of a package.
        self._most_bytes = float(job_ad.numbers("RequestDisk")[0] * 1024 or "inf")

    def train(self, order: Order) -> Ended:
        """Train a trial and deliver its result; WantedBackError if the job must end first."""
        began, cpu = time.monotonic(), self._cpu_seconds()
        folder, ended = self.folders.make(order), Ended()

        def leave(*names: str) -> None:
            ended.seconds, ended.cpu_seconds = time.monotonic() - began, self._cpu_seconds() - cpu
            self._bring(order.package, names, folder, ended)

        try:
            if self._take_input(order, folder):
                self._train(order, folder, ended)
            else:
                ended.status = 1 << 8
            if ended.code and self._events.is_wanted_back:
                raise WantedBackError
            leave(RESULT, PROGRESS, folders.OUT, folders.ERR, *order.left)
        except pack_and_unpack.TooLargeError as error:
            print(f"{order.name}: the trial leaves {error}", file=sys.stderr)
            ended.status, ended.over = 1 << 8, error.limit
            leave()
        return ended

    def _train(self, order: Order, folder: Path, ended: Ended) -> None:
        reports = Reports(folder, self._chirp, order.name)
        carrier = _Carrier(
            reports,
            self._words,
            lambda: self.folders.prepare(folder, trainer.folder),
            is_stoppable=order.grace_seconds is not None,
        )
        until = time.monotonic() + (order.seconds or math.inf)
        while not carrier.has_order(folder):
            before = pack_and_unpack.checkpoint_state(folder)
            trainer = self._begin(folder)
            bounds = Bounds(self._processes, order.memory_mb, until)
            training = Training(trainer, self._processes, bounds, order.grace_seconds, carrier.turn)
            ended.status, ended.over = training.run(self._events), bounds.over
            seen = bounds.peak_mb or self._processes.largest_mb
            # A trainer that stays may have grown since the last check.
            ended.memory_mb = max(ended.memory_mb, seen, resident_mb(trainer.pid))
            is_large = order.memory_mb is not None and ended.memory_mb > order.memory_mb
            if is_large or not trainer.is_reusable():
                self._end()
            if ended.code != EXIT_CHECKPOINTED or ended.over:
                return
            is_leaving = self._events.is_wanted_back or carrier.has_order(folder)
            if not is_leaving and pack_and_unpack.checkpoint_state(folder) == before:
                folders.note_unsaved(folder)  # it would begin at the same point again and again
                ended.status = 1 << 8
                return
            self._bring(CHECKPOINT_PACKAGE.format(order.name), SAVED, folder)
            self._words.send("saved", trial=order.name)
            if self._events.is_wanted_back:
                raise WantedBackError
        folders.note_stopped(folder)
        ended.status = 0

    # The trainer

    def _begin(self, folder: Path) -> Trainer:
        if self._trainer is None or not self._trainer.begin(folder):
            self._end()
            with self._events.held_back():
                self._trainer = Trainer(self._command, folder, self._processes)
                self._events.pass_on = self._trainer.send
        if self._events.is_wanted_back:  # the signal came before the trainer's start
            self._trainer.send(signal.SIGTERM)
        self._processes.largest_mb = 0.0
        return self._trainer

    def _end(self) -> None:
        self._events.pass_on = lambda _number: None
        if self._trainer:
            self._trainer.close()
        self._trainer = None
        self._processes.end()

    def _cpu_seconds(self) -> float:
        return self._processes.cpu_seconds(self._trainer.pid if self._trainer else 0)

    # The access point

    def _take_input(self, order: Order, folder: Path) -> bool:
        """Unpack the trial's packages; False, and an error in its output, if its input can't be."""
        given = GIVEN_PACKAGE.format(order.name)
        if order.given and (fault := self._fetch(given, folder)):
            (folder / folders.ERR).write_text(f"the package {given} {fault}\n", encoding="utf-8")
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

    def _bring(
        self, package: str, names: Iterable[str], folder: Path, ended: Ended | None = None
    ) -> None:
        """Send a package of files, with retries; TooLargeError or WantedBackError on failure.

        A result's package begins with `ended`. The trainer can't forge this report: it does not
        come from the trial's folder.
        """
        first = {ENDED: json.dumps(ended.to_json()).encode()} if ended else {}
        put = partial(self._put, package, names, folder, first)
        until_done(put, self._events, self._events.has_time)

    def _put(
        self, package: str, names: Iterable[str], folder: Path, first: Mapping[str, bytes]
    ) -> None:
        part, before = f"{WORDS}/{package}.part", pack_and_unpack.list_names(names, folder)
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


class _Carrier:
    """Transfer of reports and orders while a trial trains, at each call of `turn`."""

    def __init__(
        self, reports: Reports, words: Words, at_first: Callable[[], None], *, is_stoppable: bool
    ) -> None:
        self._reports, self._words, self._at_first = reports, words, at_first
        self._is_stoppable, self._is_begun = is_stoppable, False
        self._slow_at = math.inf if is_stoppable else time.monotonic() + SLOW_AFTER
        self._is_to_stop = False

    def turn(self) -> tuple[bool, float]:
        if not self._is_begun:
            self._is_begun = True
            self._at_first()
            self._reports.tell_trial()
        self._words.say_again()
        with suppress(OSError):
            self._reports.send()
            self._fetch_order()
            self._reports.send_printed()
        now = time.monotonic()
        return self._is_to_stop, now + (CARRY if now < self._slow_at else SLOW_CARRY)

    def has_order(self, folder: Path) -> bool:
        with suppress(OSError):
            self._fetch_order()
        return folders.has_order_to_stop(folder)

    def _fetch_order(self) -> None:
        if self._is_stoppable and not self._is_to_stop:
            self._is_to_stop = self._reports.take_order()
