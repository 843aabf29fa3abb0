"""Notes of an event log's executions, written next to it once the job is over.

That is read in a fifth of the time that the log takes. The log stays the source: a note that isn't
of the log as it is, or is damaged, is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialfleet import job_files
from trialfleet.files import unless_damaged
from trialfleet.workflows.facts.jobs.cost import End
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.run_folder.folder import note_of

_ENDS = {str(end): end for end in End}
_END, _SLOT = (Execution._fields.index(name) for name in ("end", "properties"))
_MOST = 64 << 20  # bytes of a note; of a log with thousands of marks a megabyte


class WholeJob(NamedTuple):
    """A job's executions, with or without trials.

    Attributes:
        attempts: those of each attempt, oldest first.
        ends: which of a full training and a gate a shared job had.
    """

    attempts: Sequence[Sequence[Execution]]
    ends: frozenset[str]


class JobParts(NamedTuple):
    """A shared job's executions, divided by trial.

    Attributes:
        trials: of each trial, by name, the parts of each of its attempts.
        between: the job's own time, oldest first; it is neither lost nor a trial's.
    """

    trials: dict[str, list[list[Execution]]]
    between: list[Execution]


def write_note(log: Path, whole: WholeJob, parts: JobParts) -> None:
    """Write a log's note: a line for the job, and one for its parts, which few readers need."""
    slots: list[Any] = []

    def row(execution: Execution) -> list[Any]:
        properties = dict(execution.properties)
        if properties not in slots:
            slots.append(properties)
        return list(execution._replace(properties=slots.index(properties)))  # type: ignore[arg-type]

    def rows(attempts: Iterable[Iterable[Execution]]) -> list[list[list[Any]]]:
        return [[row(execution) for execution in attempt] for attempt in attempts]

    head: dict[str, Any] = {"attempts": rows(whole.attempts), "ends": sorted(whole.ends)}
    divided = {
        "trials": {name: rows(attempts) for name, attempts in parts.trials.items()},
        "between": rows([parts.between])[0],
    }
    head |= {"of": job_files.stamp_of(log), "fields": Execution._fields, "slots": slots}
    job_files.write(note_of(log), f"{json.dumps(head)}\n{json.dumps(divided)}\n", durable=False)


def noted_whole(log: Path, stamp: tuple[int, int]) -> WholeJob | None:
    """Return a job's noted executions; None if the log, with this stamp, has to be read."""

    def read() -> WholeJob | None:
        head, _ = _lines(log)
        slots = _slots(head, stamp)
        return WholeJob(_attempts(head["attempts"], slots), frozenset(head["ends"]))

    return unless_damaged(read, None)


def noted_parts(log: Path, stamp: tuple[int, int]) -> JobParts | None:
    """Return a shared job's noted parts; None likewise."""

    def read() -> JobParts | None:
        head, divided = _lines(log)
        slots, parts = _slots(head, stamp), json.loads(divided)
        trials = {name: _attempts(rows, slots) for name, rows in parts["trials"].items()}
        return JobParts(trials, _attempts([parts["between"]], slots)[0])

    return unless_damaged(read, None)


def _lines(log: Path) -> tuple[Any, bytes]:
    """Return the first line of a log's note, and the text of the second."""
    head, _, divided = job_files.read_bytes(note_of(log), _MOST).partition(b"\n")
    return json.loads(head), divided


def _slots(head: Any, stamp: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the slots' attributes in a note; ValueError: it is of another log or release."""
    if tuple(head["of"]) != stamp or tuple(head["fields"]) != Execution._fields:
        raise ValueError("the log has changed since")
    slots: list[dict[str, Any]] = head["slots"]
    return slots


def _attempts(rows: Any, slots: Sequence[dict[str, Any]]) -> list[list[Execution]]:
    return [[_execution(row, slots) for row in attempt] for attempt in rows]


def _execution(row: list[Any], slots: Sequence[dict[str, Any]]) -> Execution:
    row[_END], row[_SLOT] = _ENDS[row[_END]], slots[row[_SLOT]]
    return Execution(*row)
