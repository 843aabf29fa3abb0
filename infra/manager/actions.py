"""Changes to a machine. Those that can't simply be repeated have a test whether they are made."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.files import write_atomic
from trialfleet.infra.pool.htcondor_installation import Progress
from trialfleet.infra.pool.processes import run_captured

Run = Callable[[list[str]], str]  # runs a command and returns what it prints, or raises PoolError
FILE_MODE = 0o644


@dataclass(frozen=True)
class Action:
    """One change to a machine: `says` describes it in the imperative, and `perform` makes it.

    `perform` raises PoolError or OSError if the change fails. A change without `is_done` is made
    each time.
    """

    says: str
    perform: Callable[[], object]
    is_done: Callable[[], bool] = lambda: False


def perform_all(actions: Iterable[Action], progress: Progress, *, dry_run: bool) -> None:
    """Perform the actions that are not done yet, in order. With `dry_run` only report them.

    PoolError if an action fails. The actions can then be performed again.
    """
    for action in actions:
        if action.is_done():
            progress(f"already done: {action.says}")
        elif dry_run:
            progress(f"would {action.says}")
        else:
            progress(action.says)
            try:
                action.perform()
            except OSError as error:
                raise PoolError(f"couldn't {action.says}: {error}") from error


def file(path: Path, content: str) -> Action:
    """Return the action to write a file that everybody may read."""

    def is_done() -> bool:
        try:
            mode = path.stat().st_mode & 0o7777
            return path.read_bytes() == content.encode() and mode == FILE_MODE
        except OSError:
            return False

    return Action(f"write {path} ({FILE_MODE:04o})", lambda: write(path, content), is_done)


def write(path: Path, content: str | bytes) -> None:
    """Write a file that everybody may read, whatever this process's umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    path.chmod(FILE_MODE)


def folder(path: Path, *, mode: int, group: int) -> Action:
    """Return the action to make a folder with this mode and group id."""

    def make() -> None:
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, -1, group)
        path.chmod(mode)

    return Action(f"make the folder {path} ({mode:04o}, group {group})", make)


def command(arguments: list[str], run: Run) -> Action:
    """Return the action to run a command that does no harm if it is run again."""
    return Action(f"run {shlex.join(arguments)}", lambda: run(arguments))


def run_command(arguments: list[str]) -> str:
    """Run a command and return its output. If the command is apt's, it asks no questions.

    PoolError if the program is missing or fails. The message has the end of the output.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        done = run_captured(arguments, env=environment)
    except OSError as error:
        raise PoolError(f"{arguments[0]} can't be run: {error.strerror}") from error
    if done.returncode != 0:
        output = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise PoolError(f"{shlex.join(arguments)} exited with code {done.returncode}:\n{output}")
    return done.stdout
