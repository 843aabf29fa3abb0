"""Records of failing PRE and POST scripts: the last error of each script.

A record is removed when the script succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trialfleet.errors import TrialfleetError
from trialfleet.files import DAMAGED, checker, read_json, read_regular, unless_damaged, write_json
from trialfleet.optimizer.service_client import TROUBLE
from trialfleet.workflows.facts.run_folder.folder import RunFolder

Cause = Literal["error", "storage", "space"]
DATA_UNREADABLE = "the data can't be read"  # the beginning of an error that a person must fix
_LONGEST = 1000  # characters of an error
_CLOCK = 1.0  # seconds; a smaller difference between two files' times proves no order


@dataclass(frozen=True, kw_only=True)
class FailingScript:
    """A DAG node's script whose last run failed.

    `cause` is "storage" if the trial database failed, "space" if a disk is full, and otherwise
    "error".
    """

    node: str
    script: str  # what it does, such as `ask`, which prepares a job
    error: str
    cause: Cause
    times: int  # failures in a row with this cause
    since: datetime  # the first failure after the last success

    def __str__(self) -> str:
        what = self.node if self.node == self.script else f"{self.script} of {self.node}"
        return f"{what} fails: {self.error}; it will be retried"


def one_line_message(error: BaseException) -> str:
    """Return an error's message as one line of at most 1,000 characters."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        words = f"{error.filename2 or error.filename}: {error.strerror}"  # of a renaming: filename2
    elif isinstance(error, TrialfleetError):
        words = str(error)
    else:
        words = f"{type(error).__name__}: {error}"
    return " ".join(words.split())[:_LONGEST]


def note_failure(file: Path, node: str, script: str, error: str, cause: Cause = "error") -> int:
    """Record in `file` (failing.json) that a DAG node's script failed.

    Return how often this script has now failed in a row with this cause. An error while writing
    `file` is ignored.
    """
    noted = _read(file)
    before, now = noted.get(node), datetime.now(UTC)
    times, since = (before.times, before.since) if before and before.script == script else (0, now)
    if before and before.cause != cause:
        times = 0  # a wait for storage doesn't count as an error of the script
    found = FailingScript(
        node=node, script=script, error=error, cause=cause, times=times + 1, since=since
    )
    with suppress(OSError):  # other sources report a full disk
        write_json(file, noted | {node: found})
    return found.times


def note_success(file: Path, node: str) -> None:
    """Remove a DAG node's error from `file` (failing.json)."""
    noted = _read(file)
    if noted.pop(node, None):
        with suppress(OSError):
            write_json(file, noted)


@contextmanager
def note_result(file: Path, node: str) -> Iterator[None]:
    """Record an error of the `with` block in `file` (failing.json), and raise it again.

    If the block succeeds, remove the DAG node's error from `file`.
    """
    try:
        yield
    except Exception as error:
        note_failure(file, node, node, one_line_message(error))
        raise
    note_success(file, node)


def failing_scripts(file: Path) -> tuple[FailingScript, ...]:
    """Return the failing scripts in `file` (failing.json); empty if it can't be read."""
    return tuple(_read(file).values())


def _read(file: Path) -> dict[str, FailingScript]:
    """Return the failing scripts in `file`, by DAG node; empty if it can't be read."""
    shape = dict[str, FailingScript]
    return unless_damaged(lambda: checker(shape).validate_json(read_regular(file), strict=True), {})


def service_trouble(folder: RunFolder) -> str:
    """Return why the optimiser's service doesn't answer PRE and POST scripts; empty if it does.

    A script that gets no answer writes the reason to a file.
    """
    try:
        noted = read_json(folder.root / TROUBLE)
        error, time, is_waiting = str(noted["error"]), float(noted["time"]), bool(noted["waiting"])
        # A service that has written to its log since then works again.
        if is_waiting and folder.service_log.stat().st_mtime > time + _CLOCK:
            return ""
    except DAMAGED:
        return ""
    what, _, log = error.partition("; the end of ")  # the log's last line says the most
    lines = [line for line in log.splitlines()[1:] if line.strip()]
    return f"{what}: {lines[-1].strip()}" if lines else what
