"""Where trials of a job train: a folder for each in the sandbox, and what they read there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trialfleet.nodes import AGENT, CHECKPOINT, MODEL, PROGRESS, RESULT, STOP, TRIAL
from trialfleet.nodes.job.words import Order

TRIALS = "trials"  # the folder in the sandbox
OUT, ERR = "out", "err"  # in a trial's folder
STOPPED = {"schema": 1, "status": "stopped", "metrics": {}}  # the result of one that never began
_NEXT = ".next."  # begins the name of the folder of a trial that nobody knows yet
# Not the trial's: ours and HTCondor's own.
_OURS = {TRIALS, AGENT, "agent", "condor_exec.exe"}
_BEGIN = (
    "_condor",
    ".condor",
    ".chirp.",
    ".agent.",
    ".job.ad",
    ".machine.ad",
    ".update.ad",
    ".exec",
    ".left.",
)


class Folders:
    """The folders of a job's trials, each with links to what came with the job into its sandbox.

    A full disk, say, raises OSError.
    """

    def __init__(self, sandbox: Path) -> None:
        names = sorted({path.name for path in sandbox.iterdir()} - _OURS)
        self._inputs = [sandbox / name for name in names if not name.startswith(_BEGIN)]
        files = (file for path in self._inputs for file in _files(str(path)))
        self._states = {file: _state(file) for file in files}
        self._trials = sandbox / TRIALS
        _remove(self._trials)  # of an agent that was here before
        self._trials.mkdir()

    def changed(self) -> str | None:
        """Return a file that came with the job and is not what it was; None where all are."""
        return next((file for file, was in self._states.items() if _state(file) != was), None)

    def make(self, order: Order) -> Path:
        """Return the folder of a trial that is to begin, with nothing of another one."""
        folder = self._trials / order.name
        _remove(folder)
        (self._next() or self._prepare()).rename(folder)
        for name in order.left:
            (folder / name).mkdir(exist_ok=True)
        # A value a line: a shell's trainer reads it by sed.
        (folder / TRIAL).write_text(json.dumps(order.trial, indent=1), encoding="utf-8")
        return folder

    def tidy(self, *kept: Path) -> None:
        """Remove the folders of former trials but these, and prepare the next one's."""
        for path in self._trials.iterdir():
            if path not in kept:
                _remove(path)
        with suppress(OSError):  # no room, say
            self._prepare()

    def _next(self) -> Path | None:
        return next(self._trials.glob(f"{_NEXT}*"), None)

    def _prepare(self) -> Path:
        """Return a folder that a trial may begin with."""
        name = os.urandom(4).hex()
        folder, whole = self._trials / f".made.{name}", self._trials / f"{_NEXT}{name}"
        for name in (CHECKPOINT, MODEL):
            (folder / name).mkdir(parents=True)
        for name in (TRIAL, RESULT, PROGRESS, STOP, OUT, ERR):
            (folder / name).touch()
        for path in self._inputs:
            with suppress(FileExistsError):
                (folder / path.name).symlink_to(path)
        return folder.rename(whole)


def _files(path: str) -> Iterator[str]:
    """Yield a file, or all files below a folder."""
    if not os.path.isdir(path):  # noqa: PTH112 - there may be very many
        yield path
    for folder, _, names in os.walk(path):
        yield from (f"{folder}/{name}" for name in names)


def _state(file: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _remove(path: Path) -> None:
    """Remove a folder, or put it aside: a trial may have left what can't be removed."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".left.{os.urandom(4).hex()}"))


def has_order_to_stop(folder: Path) -> bool:
    """Tell whether the trial was told to stop."""
    with suppress(OSError):
        return (folder / STOP).stat().st_size > 0
    return False


def note_stopped(folder: Path) -> None:
    """Give a trial that was told to stop before it began a result that says so."""
    result = folder / RESULT
    with suppress(OSError):
        if not result.stat().st_size:
            result.write_text(json.dumps(STOPPED), encoding="utf-8")
