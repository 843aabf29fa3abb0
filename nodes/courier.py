"""Carries a trial's reports to the access point, and the word to stop back, by HTCondor's chirp.

    python3 -I -S courier.py PID GRACE_SECONDS

runs beside a trainer, the process PID, in the trial's sandbox; RUN/start begins it where the study
has early stopping. The trainer knows nothing of it: it adds lines to `progress.jsonl` as ever, and
may look whether `stop.json` is more than an empty file. One file, standard library only: it
travels alone.

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
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path

SECONDS = 2.0  # between two turns
TIMEOUT_SECONDS = 10.0  # for an answer; the shadow may be away for a moment
KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
MOST_BYTES = 1 << 18  # that one turn sends: the proxy serves others too
LARGEST_ORDER = 1 << 16  # bytes
PROGRESS, REPORTS, STOP = "progress.jsonl", "reports.jsonl", "stop.json"


def main() -> None:
    """Carry until the trainer has ended."""
    pid, grace = int(sys.argv[1]), float(sys.argv[2])
    proxy = os.environ.get("_CONDOR_CHIRP_CONFIG")
    if proxy is None:
        return
    try:
        trainer = os.pidfd_open(pid)
    except OSError:  # it has ended; or this kernel is older than 5.3
        return
    courier = Courier(Path(), Path(proxy))
    while not _ended(trainer, SECONDS):
        with suppress(OSError, ValueError):
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
        proxy: the file in which HTCondor says where its proxy is.
    """

    def __init__(self, sandbox: Path, proxy: Path) -> None:
        self._sandbox = sandbox
        self._proxy = proxy
        self._sent = 0  # bytes of the progress that are on the access point
        self._begun = False

    def turn(self) -> bool:
        """Send what is new, and return whether the trial is to stop.

        Raises:
            OSError: the proxy or the access point is out of reach, for now.
            ValueError: it answered something else than chirp.
        """
        with closing(Chirp(self._proxy)) as chirp:
            self._send(chirp)
            order = chirp.fetch(STOP)
        if not order:
            return False
        self._place(order)
        return True

    def _send(self, chirp: Chirp) -> None:
        progress = self._sandbox / PROGRESS
        if not progress.exists():
            return
        size = progress.stat().st_size
        if size < self._sent:  # cut to where a checkpoint was: from there it is told again
            self._begun = False
        if size == self._sent and self._begun:
            return
        if not self._begun:
            chirp.write(REPORTS, b"", 0, "wct")
            self._begun, self._sent = True, 0
        with progress.open("rb") as file:
            file.seek(self._sent)
            new = file.read(MOST_BYTES)
        whole = new[: new.rfind(b"\n") + 1] or (new if len(new) == MOST_BYTES else b"")
        if whole:
            chirp.write(REPORTS, whole, self._sent, "wc")
            self._sent += len(whole)

    def _place(self, order: bytes) -> None:
        """Give the order to the trainer, whole or not at all."""
        beside = self._sandbox / f".{STOP}.tmp"
        beside.write_bytes(order)
        beside.replace(self._sandbox / STOP)


class Chirp:
    """A connection to chirp's proxy, of which this needs two things.

    htcondor2.htchirp can do more, and never ends where a connection does in the midst of a file.
    """

    def __init__(self, proxy: Path) -> None:
        host, port, cookie = proxy.read_text(encoding="utf-8").split()
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self._stream = self._socket.makefile("rwb")
        try:
            self._ask(f"cookie {cookie}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._stream.close()
        self._socket.close()

    def write(self, name: str, content: bytes, offset: int, flags: str) -> None:
        """Write to a place of a file on the access point; names are relative to the job's folder.

        Raises:
            OSError: it can't be written.
        """
        descriptor = self._ask(f"open {name} {flags} {0o644}")
        self._stream.readline()  # what the file is: HTCondor adds it
        if content:
            written = self._ask(f"pwrite {descriptor} {len(content)} {offset}", content)
            if written < len(content):  # its disk is full
                raise OSError(f"{name}: {written} of {len(content)} bytes were written")
        self._ask(f"close {descriptor}")

    def fetch(self, name: str) -> bytes:
        """Return a small file of the access point.

        Raises:
            OSError: it can't be read.
        """
        length = self._ask(f"getfile {name}")
        if length > LARGEST_ORDER:
            raise ValueError(f"{name} has {length} bytes")
        content = self._stream.read(length)
        if len(content) < length:
            raise OSError(f"the connection ended within {name}")
        return content

    def _ask(self, line: str, content: bytes = b"") -> int:
        self._stream.write(line.encode() + b"\n" + content)
        self._stream.flush()
        answer = int(self._stream.readline())
        if answer < 0:
            raise OSError(f"{line.split(maxsplit=1)[0]}: chirp's error {answer}")
        return answer


if __name__ == "__main__":
    main()
