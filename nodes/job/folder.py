"""The folders of a job's trials in the job's sandbox, with links to the job's input files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trialfleet.nodes import AGENT, CHECKPOINT, MODEL, PROGRESS, RESULT, STOP, TRIAL
from trialfleet.nodes.job.messages import Order

TRIALS = "trials"  # the folder in the sandbox
OUT, ERR = "out", "err"  # in a trial's folder
STOPPED = {"schema": 1, "status": "stopped", "metrics": {}}  # result of a trial that never began
# Files of trialfleet and HTCondor, not of the trial.
_OURS = {TRIALS, AGENT, "agent", "condor_exec.exe"}
_BEGIN = (
    *("_condor", ".condor", ".chirp.", ".agent."),
    *(".job.ad", ".machine.ad", ".update.ad", ".exec", ".left."),
)


class Folders:
    """The folders of a job's trials. Methods raise OSError on a full disk."""

    def __init__(self, sandbox: Path) -> None:
        names = sorted({path.name for path in sandbox.iterdir()} - _OURS)
        self._inputs = [sandbox / name for name in names if not name.startswith(_BEGIN)]
        files = (file for path in self._inputs for file in _files(str(path)))
        self._states = {file: _state(file) for file in files}
        self._trials = sandbox / TRIALS
        _remove(self._trials)  # of a previous agent
        self._trials.mkdir()

    def find_changed_input(self) -> str | None:
        """Return the path of an input file that has changed since the agent began, or None."""
        return next((file for file, was in self._states.items() if _state(file) != was), None)

    def make(self, order: Order) -> Path:
        """Return a new folder for the trial of `order`, with its `trial.json`."""
        folder = self._trials / order.name
        _remove(folder)
        for name in (CHECKPOINT, MODEL):
            (folder / name).mkdir(parents=True)
        for name in (RESULT, PROGRESS, STOP, OUT, ERR):
            (folder / name).touch()
        # One value per line, so that a trainer in shell can read it with sed.
        (folder / TRIAL).write_text(json.dumps(order.trial, indent=1), encoding="utf-8")
        for path in self._inputs:
            with suppress(FileExistsError):
                (folder / path.name).symlink_to(path)
        for name in order.left:
            (folder / name).mkdir(exist_ok=True)
        return folder

    def remove_all(self, *kept: Path) -> None:
        """Remove previous trials' folders except `kept`."""
        for path in self._trials.iterdir():
            if path not in kept:
                _remove(path)


def _files(path: str) -> Iterator[str]:
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
    """Remove a folder. If this fails, rename the folder, so that its name can be used again."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".left.{os.urandom(4).hex()}"))


def note_stopped(folder: Path) -> None:
    """Write STOPPED as the trial's result, unless the trial has written a result."""
    result = folder / RESULT
    with suppress(OSError):
        if not result.stat().st_size:
            result.write_text(json.dumps(STOPPED), encoding="utf-8")
