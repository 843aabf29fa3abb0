"""Sends a running trial's reports to the access point, and fetches an order to stop the trial.

    the trial's folder      the job's folder on the access point
    progress.jsonl    →     words/reports.jsonl
    out, err          →     words/printed.out, words/printed.err
    stop.json         ←     words/stop.json, if it names this trial

A failed transfer is retried at the next call. The trainer never waits for a transfer.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import PRINTED, PROGRESS, REPORTS, STOP, WORDS
from trialfleet.nodes.job.messages import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from trialfleet.nodes.job.chirp import Chirp
    from trialfleet.nodes.job.messages import Messages

MOST_BYTES = 1 << 18  # maximum sent in one turn: HTCondor's proxy also serves other requests
# Seconds between transfers: CARRY, or SLOW_CARRY if the trial can't be stopped early and has
# trained for SLOW_AFTER seconds.
CARRY, SLOW_CARRY, SLOW_AFTER = 2.0, 10.0, 60.0
MOST_PRINTED = 1 << 22  # maximum bytes of each output that are sent before the trial's end


class Reports:
    """The transfer of one trial's reports.

    Methods raise OSError if the access point is unreachable, except `tell_trial`.
    """

    def __init__(self, folder: Path, chirp: Chirp, trial: str) -> None:
        self._folder, self._chirp, self._trial = folder, chirp, trial
        self._sent = 0  # bytes of the progress on the access point
        self._begun = False
        self._printed = [
            _Printed(folder / name, chirp, f"{WORDS}/{there}", f"{trial}\n".encode())
            for name, there in PRINTED.items()
        ]

    def send(self) -> None:
        """Send new complete lines of progress.jsonl.

        The first call replaces `words/reports.jsonl`.
        """
        progress = self._folder / PROGRESS
        size = progress.stat().st_size if progress.exists() else 0
        if size < self._sent:  # truncated to a checkpoint: send it again from the beginning
            self._begun, self._sent = False, 0
        if size != self._sent or not self._begun:
            self._send_new(progress)

    def send_printed(self) -> None:
        """Send the trial's new output. The first line of each remote file is the trial's name."""
        for printed in self._printed:
            printed.send()

    def tell_trial(self) -> None:
        """Write this trial's name into the job's ClassAd. A failure is ignored."""
        with suppress(OSError):
            self._chirp.set_attribute("ChirpTrialfleetTrial", json.dumps(self._trial))

    def _send_new(self, progress: Path) -> None:
        with suppress(FileNotFoundError), progress.open("rb") as file:
            file.seek(self._sent)
            new = file.read(MOST_BYTES)
            whole = new[: new.rfind(b"\n") + 1] or (new if len(new) == MOST_BYTES else b"")
            if whole or not self._begun:
                self._chirp.write_at(f"{WORDS}/{REPORTS}", whole, self._sent)
                self._begun, self._sent = True, self._sent + len(whole)

    def take_order(self) -> bool:
        """Return whether an order says to stop this trial. If so, copy it to the trial's folder."""
        text = self._chirp.read(f"{WORDS}/{STOP}")
        if text is None or parse_object(text).get("trial") != self._trial:
            return False
        beside = self._folder / f".{STOP}.tmp"
        beside.write_bytes(text)
        beside.replace(self._folder / STOP)
        return True


class _Printed:
    """Sends a trial's output `file` to the remote file `there`, which begins with `head`."""

    def __init__(self, file: Path, chirp: Chirp, there: str, head: bytes) -> None:
        self._file, self._chirp, self._there, self._head = file, chirp, there, head
        self._sent = 0

    def send(self) -> None:
        size = min(self._file.stat().st_size, MOST_PRINTED)
        if size < self._sent:  # truncated to a checkpoint
            self._sent = 0
        if size == self._sent:
            return
        with self._file.open("rb") as file:
            file.seek(self._sent)
            new = file.read(min(size - self._sent, MOST_BYTES))
        if self._sent:
            self._chirp.write_at(self._there, new, len(self._head) + self._sent)
        else:
            self._chirp.write_at(self._there, self._head + new, 0)
        self._sent += len(new)


class Exchange:
    """Transfers reports and orders while a trial trains, at each call of `turn`.

    The first call also calls `at_first`, for work that can wait until the trial trains. If
    `is_stoppable` is False, orders are not fetched.
    """

    def __init__(
        self, reports: Reports, words: Messages, at_first: Callable[[], None], *, is_stoppable: bool
    ) -> None:
        self._reports, self._words, self._at_first = reports, words, at_first
        self._is_stoppable, self._is_begun = is_stoppable, False
        self._slow_at = math.inf if is_stoppable else time.monotonic() + SLOW_AFTER
        self._is_to_stop = False

    def turn(self) -> tuple[bool, float]:
        """Transfer what is new. Return whether the trial must stop, and when to call again.

        The time is by `time.monotonic`.
        """
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
        """Fetch a new order, and return whether the trial in `folder` must stop."""
        with suppress(OSError):
            self._fetch_order()
        with suppress(OSError):
            return (folder / STOP).stat().st_size > 0
        return False

    def _fetch_order(self) -> None:
        if self._is_stoppable and not self._is_to_stop:
            self._is_to_stop = self._reports.take_order()
