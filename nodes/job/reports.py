"""What a running trial reports, on its way to the access point, and the order to stop it.

    the trial's folder      the job's folder on the access point
    progress.jsonl    →     words/reports.jsonl; of the last line, attributes of the job
    stop.json         ←     words/stop.json, if it names this trial

Whatever fails is tried again at the next turn, and the trainer never waits for it.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.nodes import PROGRESS, REPORTS, STOP, WORDS

if TYPE_CHECKING:
    from trialfleet.nodes.job.chirp import Chirp

MOST_BYTES = 1 << 18  # that one turn sends: the proxy serves others too
NEWS_SECONDS = 5.0  # between two that HTCondor carries: it looks as often at a job
_LARGEST_STEP = 1 << 62


class Reports:
    """What of one trial's reports was sent so far.

    Args:
        folder: the trial's.
        chirp: the way to the access point.
        trial: its name.
        metric: the objective's, which the job's attributes tell.
    """

    def __init__(self, folder: Path, chirp: Chirp, trial: str, metric: str | None) -> None:
        self._folder, self._chirp, self._trial, self._metric = folder, chirp, trial, metric
        self._sent = 0  # bytes of the progress that are on the access point
        self._begun = False
        self._last = b""  # the last line that was sent
        self._news_at = 0.0

    def send(self) -> None:
        """Send the whole lines that are new; at first in place of what is there.

        Raises:
            OSError: the proxy or the access point is out of reach, for now.
        """
        progress = self._folder / PROGRESS
        size = progress.stat().st_size if progress.exists() else 0
        if size < self._sent:  # cut to where a checkpoint was: from there it is told again
            self._begun, self._sent = False, 0
        if size != self._sent or not self._begun:
            self._send_new(progress)
        self._tell_news()

    def tell_trial(self) -> None:
        """Give the job's ad this trial, and no step yet; nothing is lost where that fails."""
        with suppress(OSError):
            self._chirp.set_attribute("ChirpTrialfleetTrial", json.dumps(self._trial))
            for name in ("Step", "Value"):
                self._chirp.set_attribute(f"ChirpTrialfleet{name}", "undefined")

    def _send_new(self, progress: Path) -> None:
        with suppress(FileNotFoundError), progress.open("rb") as file:
            file.seek(self._sent)
            new = file.read(MOST_BYTES)
            whole = new[: new.rfind(b"\n") + 1] or (new if len(new) == MOST_BYTES else b"")
            if whole or not self._begun:
                self._chirp.write_at(f"{WORDS}/{REPORTS}", whole, self._sent)
                self._begun, self._sent = True, self._sent + len(whole)
                self._last = whole.rstrip().rpartition(b"\n")[2] or self._last

    def _tell_news(self) -> None:
        """Give the job's ad the last step and its value, for `trialfleet status`."""
        now = time.monotonic()
        if not self._last or now < self._news_at:
            return
        self._news_at, line, self._last = now + NEWS_SECONDS, self._last, b""
        if (step := step_of(line, self._metric)) is not None:
            self._chirp.set_attribute("ChirpTrialfleetStep", step[0])
            self._chirp.set_attribute("ChirpTrialfleetValue", step[1])

    def order_to_stop(self) -> bytes:
        """Return the order to stop this trial, as it is; empty while there is none.

        Raises:
            OSError: as for `send`.
        """
        text = self._chirp.read(f"{WORDS}/{STOP}") or b""
        try:
            return text if json.loads(text or b"{}").get("trial") == self._trial else b""
        except (ValueError, AttributeError):
            return b""

    def place(self, order: bytes) -> None:
        """Give the order to the trainer, whole or not at all."""
        beside = self._folder / f".{STOP}.tmp"
        beside.write_bytes(order)
        beside.replace(self._folder / STOP)


def step_of(line: bytes, metric: str | None) -> tuple[str, str] | None:
    """Return the step of a report and the metric's value there, as expressions of an ad."""
    try:
        plain = json.loads(line)
        step, value = int(plain["step"]), plain["metrics"].get(metric)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if abs(step) > _LARGEST_STEP:
        return None
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return str(step), repr(float(value)) if is_number else "undefined"
