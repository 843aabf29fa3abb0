"""The machine that the bootstrap works on: its files below a root, its programs by name."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = os.environ.get("TRIALFLEET_NODE_ROOT") or "/"  # moved by tests
HOME = "/opt/trialfleet"
LONGEST = 1_200  # seconds that one program may take: a driver is compiled in some minutes

KILLED = 5.0  # seconds that a killed program gets to vanish


class StepError(Exception):
    """A step can't be done; the message says why, for the node's log."""


@dataclass(frozen=True)
class Host:
    """Where files lie, and how programs are called."""

    root: Path = Path(ROOT)  # what paths such as `/etc` are below
    say: Callable[[str], None] = lambda _line: None  # takes a line for the node's log

    def place(self, path: str) -> Path:
        """Return where an absolute path lies on this machine."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return a file's text; nothing where there is none."""
        try:
            return self.place(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def write(self, path: str, text: str, mode: int = 0o644) -> bool:
        """Make a file have this text and mode, whole or not at all; True if it was changed."""
        file = self.place(path)
        if self.read(path) == text and file.exists() and file.stat().st_mode & 0o777 == mode:
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{secrets.token_hex(6)}.tmp")
        # Created with its mode: a secret is at no time readable by others.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())  # or a machine that loses power may find it empty
        beside.chmod(mode)
        beside.replace(file)
        return True

    def has(self, program: str) -> bool:
        """Say whether a program is on PATH."""
        return shutil.which(program) is not None

    def run(self, *command: str, seconds: float = LONGEST) -> str:
        """Run a program and return what it printed; StepError if it fails or takes too long."""
        done = self._call(command, seconds)
        if done.returncode != 0:
            output = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = "; ".join(output[-3:]) or f"exit status {done.returncode}"
            raise StepError(f"`{' '.join(command)}`: {reason}")
        return done.stdout

    def succeeds(self, *command: str, seconds: float = LONGEST) -> bool:
        """Run a program and say whether it went well; if not, the log has its words."""
        try:
            self.run(*command, seconds=seconds)
        except StepError as error:
            self.say(str(error))
            return False
        return True

    def ask(self, *command: str) -> str | None:
        """Run a program and return what it printed; None if it can't be run or fails."""
        try:
            return self.run(*command, seconds=60)
        except StepError:
            return None

    def _call(self, command: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str]:
        # Programs that would ask a person something take their defaults instead.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        # Into files: a pipe is read until its last holder has ended, which a daemon never does.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise StepError(f"there is no program {command[0]}") from error
            except OSError as error:
                raise StepError(f"`{' '.join(command)}` can't be run: {error}") from error
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired as error:
                end(process)
                raise StepError(f"`{' '.join(command)}`: no end after {seconds:.0f} s") from error
            return subprocess.CompletedProcess(command, code, text_of(out), text_of(err))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it has started; one that hangs inside a driver stays behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=KILLED)


def text_of(file: IO[bytes]) -> str:
    """Return what a file holds, as text."""
    file.seek(0)
    return file.read().decode(errors="replace")
