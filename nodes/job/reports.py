"""What a running trial reports, on its way to the access point, and the order to stop it.

    the trial's folder      the job's folder on the access point
    progress.jsonl    →     words/reports.jsonl
    stop.json         ←     words/stop.json, if it names this trial

Whatever fails is tried again at the next turn, and the trainer never waits for it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import PROGRESS, REPORTS, STOP, WORDS

if TYPE_CHECKING:
    from trialfleet.nodes.job.chirp import Chirp

MOST_BYTES = 1 << 18  # that one turn sends: the proxy serves others too


class Reports:
    """What of one trial's reports was sent so far; where the access point is away: OSError."""

    def __init__(self, folder: Path, chirp: Chirp, trial: str) -> None:
        self._folder, self._chirp, self._trial = folder, chirp, trial
        self._sent = 0  # bytes of the progress that are on the access point
        self._begun = False

    def send(self) -> None:
        """Send the whole lines that are new; at first in place of what is there."""
        progress = self._folder / PROGRESS
        size = progress.stat().st_size if progress.exists() else 0
        if size < self._sent:  # cut to where a checkpoint was: from there it is told again
            self._begun, self._sent = False, 0
        if size != self._sent or not self._begun:
            self._send_new(progress)

    def tell_trial(self) -> None:
        """Give the job's ad this trial; nothing is lost where that fails."""
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
        """Give the trainer the order to stop this trial, whole, if there is one; tell whether."""
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
