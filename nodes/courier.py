"""Carries a trial's reports to the access point, and the word to stop back, by HTCondor's chirp.

    python3 -I -S courier.py PID GRACE_SECONDS

runs beside a trainer, the process PID, in the trial's sandbox; RUN/start begins it where the study
has early stopping. The trainer knows nothing of it: it adds lines to `progress.jsonl` as ever, and
may look whether `stop.json` is more than an empty file. It travels with `chirp.py`, and needs the
standard library alone.

    sandbox                 the trial's folder on the access point
    progress.jsonl    →     reports.jsonl
    stop.json         ←     stop.json

No port is open on the node: chirp's proxy is HTCondor's starter, which talks to the job's shadow by
the connection that there is. Whatever fails is tried again at the next turn, and the trainer never
waits for it.

A trainer that has not ended GRACE_SECONDS after it was told gets SIGTERM, and SIGKILL in the end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from trialfleet.nodes.chirp import Chirp
else:  # in a trial's sandbox; as the last folder, so that no file there hides a module of Python's
    sys.path.append(str(Path(__file__).parent))
    from chirp import Chirp

SECONDS = 2.0  # between two turns
KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
MOST_BYTES = 1 << 18  # that one turn sends: the proxy serves others too
PROGRESS, REPORTS, STOP = "progress.jsonl", "reports.jsonl", "stop.json"


def main() -> None:
    """Carry until the trainer has ended."""
    pid, grace = int(sys.argv[1]), float(sys.argv[2])
    try:
        chirp = Chirp.of_this_job()
        trainer = os.pidfd_open(pid)
    except OSError:  # no job; or it has ended, or this kernel is older than 5.3
        return
    courier = Courier(Path(), chirp)
    while not _ended(trainer, SECONDS):
        with suppress(OSError):
            if courier.turn():
                break
    end(trainer, grace)


def end(trainer: int, grace: float) -> None:
    """Give a trainer that was told to stop so many seconds, then end it."""
    for seconds, number in ((grace, signal.SIGTERM), (KILL_SECONDS, signal.SIGKILL)):
        if _ended(trainer, seconds):
            return
        with suppress(OSError):
            signal.pidfd_send_signal(trainer, number)


def _ended(trainer: int, seconds: float) -> bool:
    """Wait for a process's end, so long at most; returns whether it has come."""
    return bool(select.select([trainer], [], [], seconds)[0])


class Courier:
    """What one trial's courier has sent so far.

    Args:
        sandbox: where the trainer works.
        chirp: the way to the access point.
    """

    def __init__(self, sandbox: Path, chirp: Chirp) -> None:
        self._sandbox = sandbox
        self._chirp = chirp
        self._sent = 0  # bytes of the progress that are on the access point
        self._begun = False

    def turn(self) -> bool:
        """Send what is new, and return whether the trial is to stop.

        Raises:
            OSError: the proxy or the access point is out of reach, for now.
        """
        self._send()
        order = self._chirp.read(STOP)
        if not order:
            return False
        self._place(order)
        return True

    def _send(self) -> None:
        progress = self._sandbox / PROGRESS
        if not progress.exists():
            return
        size = progress.stat().st_size
        if size < self._sent:  # cut to where a checkpoint was: from there it is told again
            self._begun, self._sent = False, 0
        if size == self._sent and self._begun:
            return
        with progress.open("rb") as file:
            file.seek(self._sent)
            new = file.read(MOST_BYTES)
        whole = new[: new.rfind(b"\n") + 1] or (new if len(new) == MOST_BYTES else b"")
        if whole or not self._begun:  # at first in place of what another machine sent
            self._chirp.write_at(REPORTS, whole, self._sent)
            self._begun, self._sent = True, self._sent + len(whole)

    def _place(self, order: bytes) -> None:
        """Give the order to the trainer, whole or not at all."""
        beside = self._sandbox / f".{STOP}.tmp"
        beside.write_bytes(order)
        beside.replace(self._sandbox / STOP)


if __name__ == "__main__":
    main()
