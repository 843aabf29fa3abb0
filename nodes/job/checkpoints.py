"""Finds out whether a trainer has saved a new checkpoint.

A trainer that exits with code 85 asks to be restarted from the checkpoint that it has saved.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trialfleet.nodes import CHECKPOINT, PROGRESS
from trialfleet.nodes.job.folder import ERR, OUT
from trialfleet.nodes.job.pack_and_unpack import find_files

EXIT_CHECKPOINTED = 85
SAVED = (CHECKPOINT, PROGRESS, OUT, ERR)  # with the output so far, to which later output is added
UNSAVED = (
    "the trainer exited with 85, but saved no new checkpoint: no file of checkpoint/ changed\n"
)


def state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the names, times and sizes of the checkpoint's files in a trial's folder."""
    found = []
    for path, name in find_files([CHECKPOINT], folder):
        with suppress(FileNotFoundError):  # a trainer may remove it meanwhile
            stat = path.stat()
            found.append((name, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def has_saved(folder: Path, before: object) -> bool:
    """Return whether the trainer has saved a new checkpoint.

    `before` is the result of `state` at the trainer's start. Without a new checkpoint, a message is
    added to the trial's standard error. The caller then treats exit code 85 as a failure, because a
    restarted trainer would repeat the same work for ever.
    """
    if state(folder) != before:
        return True
    note(folder, UNSAVED)
    return False


def note(folder: Path, message: str) -> None:
    """Add a message to the trial's standard error. A failure is ignored."""
    with suppress(OSError), (folder / ERR).open("a", encoding="utf-8") as err:
        err.write(message)
