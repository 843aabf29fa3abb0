"""Starts a trainer and carries between it and the access point, by HTCondor's chirp.

    python3 -I -S courier.py GRACE_SECONDS COMMAND…

is the first process of a trial's job in a study with early stopping; RUN/start begins it in the
sandbox. It takes the job's channel, so that the trainer has none, and runs the command as its
child: signals go to the trainer, and the trainer's end is its own. The trainer knows nothing of it:
it adds lines to `progress.jsonl`, and may look whether `stop.json` is more than an empty file.
It travels with `channel.py` and `chirp.py`, and needs the standard library alone.

    sandbox                 the trial's folder on the access point
    progress.jsonl    →     words/reports.jsonl
    stop.json         ←     words/stop.json

No port is open on the node: chirp's proxy is HTCondor's starter, which talks to the job's shadow by
the connection that there is. Whatever fails is tried again at the next turn, and the trainer never
waits for it.

A trainer that has not ended GRACE_SECONDS after it was told gets SIGTERM, and SIGKILL in the end.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from trialfleet.nodes.channel import Channel
elif "channel" not in sys.modules:  # in a trial's sandbox: these very files, and nothing like them
    for _name in ("chirp", "channel"):
        sys.modules[_name] = ModuleType(_name)
        _source = Path(__file__).with_name(f"{_name}.py").read_bytes()
        exec(compile(_source, f"{_name}.py", "exec"), sys.modules[_name].__dict__)  # noqa: S102
    from channel import Channel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

    from trialfleet.nodes.chirp import Chirp

SECONDS = 2.0  # between two turns
KILL_SECONDS = 15.0  # between SIGTERM and SIGKILL
MOST_BYTES = 1 << 18  # that one turn sends: the proxy serves others too
PROGRESS, STOP = "progress.jsonl", "stop.json"  # in the sandbox
WORDS = "words"  # the folder on the access point
REPORTS = "reports.jsonl"  # in that folder, as is STOP
EXIT_CHECKPOINTED = 85
_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Ignored by Python; a program that it starts must not inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Run the trainer, carry until it has ended, and end as it did."""
    grace, command = float(sys.argv[1]), sys.argv[2:]
    channel = None
    try:
        channel = Channel.take()
    except OSError as error:
        print(f"no early stopping of this trial: {error}", file=sys.stderr)
    trainer = Trainer(command)
    if channel:
        courier = Courier(Path(), channel.chirp())
        threading.Thread(target=carry, args=(courier, trainer, grace), daemon=True).start()
    status = trainer.wait()
    if channel and os.waitstatus_to_exitcode(status) == EXIT_CHECKPOINTED:
        with suppress(OSError):
            channel.give_back()
    leave(status)


def carry(courier: Courier, trainer: Trainer, grace: float) -> None:
    """Carry until the trainer has ended; end one that stays after it was told to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # they are the main thread's
    while not trainer.has_ended(SECONDS):
        with suppress(OSError):
            if courier.turn():
                break
    for seconds, number in ((grace, signal.SIGTERM), (KILL_SECONDS, signal.SIGKILL)):
        if trainer.has_ended(seconds):
            return
        trainer.send(number)


def leave(status: int) -> NoReturn:
    """End as a process with this status did, as waitpid gives it."""
    code = os.waitstatus_to_exitcode(status)
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


class Trainer:
    """A command that runs as this process's child, in its place for signals and output.

    The shell runs it, as RUN/start would: a program that is missing is exit code 127.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._pid: int | None = None
        self._early: list[int] = []  # signals that came before it was there
        self._over = threading.Event()
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        words = ("/bin/sh", "-c", 'exec "$@"', "sh", *command)
        self._pid = os.posix_spawn(words[0], words, os.environ, setsigdef=_IGNORED)
        while self._early:
            self.send(self._early.pop())

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._pid is None:
            self._early.append(number)
        else:
            self.send(number)

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._pid is not None and not self._over.is_set():
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def has_ended(self, seconds: float) -> bool:
        """Wait for its end for a number of seconds at most; return whether it has come."""
        return self._over.wait(seconds)

    def wait(self) -> int:
        """Wait for its end, and reap the orphans that it leaves; return its status."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._pid:
                self._over.set()
                return status


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
        self.send_reports()
        order = self._chirp.read(f"{WORDS}/{STOP}")
        if not order:
            return False
        self._place(order)
        return True

    def send_reports(self) -> None:
        """Send the whole lines that are new.

        Raises:
            OSError: as for `turn`.
        """
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
            self._chirp.write_at(f"{WORDS}/{REPORTS}", whole, self._sent)
            self._begun, self._sent = True, self._sent + len(whole)

    def _place(self, order: bytes) -> None:
        """Give the order to the trainer, whole or not at all."""
        beside = self._sandbox / f".{STOP}.tmp"
        beside.write_bytes(order)
        beside.replace(self._sandbox / STOP)


if __name__ == "__main__":
    main()
