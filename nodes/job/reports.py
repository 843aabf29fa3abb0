"""Transfer of a running trial's reports to the access point, and of an order to stop the trial.

    the trial's folder      the job's folder on the access point
    progress.jsonl    →     words/reports.jsonl
    out, err          →     words/printed.out, words/printed.err
    stop.json         ←     words/stop.json, if it names this trial

A failed transfer is retried at the next call. The trainer never waits for a transfer.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import PRINTED, PROGRESS, REPORTS, STOP, WORDS

if TYPE_CHECKING:
    from trialfleet.nodes.job.chirp import Chirp

MOST_BYTES = 1 << 18  # maximum sent in one turn, because the proxy also serves others
MOST_PRINTED = 1 << 22  # maximum of each stream sent while the trial runs; its result has all


class Reports:
    """The transfer of one trial's reports; OSError if the access point is unreachable."""

    def __init__(self, folder: Path, chirp: Chirp, trial: str) -> None:
        self._folder, self._chirp, self._trial = folder, chirp, trial
        self._sent = 0  # bytes of the progress on the access point
        self._begun = False
        self._printed = [
            _Printed(folder / name, chirp, f"{WORDS}/{there}", f"{trial}\n".encode())
            for name, there in PRINTED.items()
        ]

    def send(self) -> None:
        """Send new whole lines of progress.jsonl; the first call replaces the receiving file."""
        progress = self._folder / PROGRESS
        size = progress.stat().st_size if progress.exists() else 0
        if size < self._sent:  # truncated to a checkpoint: send it again from the beginning
            self._begun, self._sent = False, 0
        if size != self._sent or not self._begun:
            self._send_new(progress)

    def send_printed(self) -> None:
        """Send the trial's new output; the receiving files begin with the trial's name."""
        for printed in self._printed:
            printed.send()

    def tell_trial(self) -> None:
        """Write this trial's name into the job's ClassAd; ignore a failure."""
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
        """Fetch an order to stop this trial into its folder; return whether there is one."""
        text = self._chirp.read(f"{WORDS}/{STOP}") or b"{}"
        try:
            if json.loads(text).get("trial") != self._trial:
                return False
        except (ValueError, AttributeError):
            return False
        beside = self._folder / f".{STOP}.tmp"
        beside.write_bytes(text)
        beside.replace(self._folder / STOP)
        return True


class _Printed:
    """The transfer of an output stream to the file `there`, which then begins with `head`."""

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
