"""Reads and writes a node's files, and runs its programs."""

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

ROOT = os.environ.get("TRIALFLEET_NODE_ROOT") or "/"  # tests set another root
HOME = "/opt/trialfleet"
LONGEST = 1_200  # time limit of a program in seconds: compiling a driver takes some minutes

KILLED = 5.0  # seconds to wait for the end of a killed program


class StepError(Exception):
    """A step of the bootstrap, or a program, failed. The message says why, for the node's log."""


@dataclass(frozen=True)
class Host:
    """The machine's files and programs."""

    root: Path = Path(ROOT)  # the folder above paths such as `/etc`
    say: Callable[[str], None] = lambda _line: None  # writes a line to the node's log

    def place(self, path: str) -> Path:
        """Return the absolute `path` below `root`, which is `/` except in tests."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return a file's text, or "" if it can't be read."""
        try:
            return self.place(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def write(self, path: str, text: str, mode: int = 0o644) -> bool:
        """Replace a file's text and mode atomically, and return whether this changed the file."""
        file = self.place(path)
        if self.read(path) == text and file.exists() and file.stat().st_mode & 0o777 == mode:
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{secrets.token_hex(6)}.tmp")
        # The file is created with its mode, so that others can never read a secret.
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())  # otherwise the file may be empty after a power failure
        beside.chmod(mode)
        beside.replace(file)
        return True

    def has(self, program: str) -> bool:
        """Return whether a program is on PATH."""
        return shutil.which(program) is not None

    def run(self, *command: str, seconds: float = LONGEST) -> str:
        """Run a program and return its output. Raise StepError if it fails or exceeds `seconds`."""
        done = self._call(command, seconds)
        if done.returncode != 0:
            output = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = "; ".join(output[-3:]) or f"exit status {done.returncode}"
            raise StepError(f"`{' '.join(command)}`: {reason}")
        return done.stdout

    def try_run(self, *command: str, seconds: float = LONGEST) -> bool:
        """Run a program and return whether it succeeded. An error is logged."""
        try:
            self.run(*command, seconds=seconds)
        except StepError as error:
            self.say(str(error))
            return False
        return True

    def ask(self, *command: str) -> str | None:
        """Run a program and return its output, or None if it fails or exceeds a minute."""
        try:
            return self.run(*command, seconds=60)
        except StepError:
            return None

    def _call(self, command: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str]:
        # Programs must not ask questions, but must use their default answers.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        # Output goes to files, because a daemon that inherited a pipe would keep it open.
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
                text = f"`{' '.join(command)}`: timed out after {seconds:.0f} s"
                raise StepError(text) from error
            return subprocess.CompletedProcess(command, code, read_text(out), read_text(err))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children, and wait at most KILLED seconds until the program is gone.

    A program that hangs in a driver can't be killed, so it may still exist afterwards.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=KILLED)


def read_text(file: IO[bytes]) -> str:
    """Return a file's content as text."""
    file.seek(0)
    return file.read().decode(errors="replace")
