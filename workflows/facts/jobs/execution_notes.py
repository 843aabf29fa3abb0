"""Summaries of jobs' event logs. A summary (note) is read five times as fast as the log.

A note is written next to its log once the job is over. It contains the log's stamp: the log's size
and modification time. A note is valid if it isn't damaged and the log still has the same stamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialfleet import untrusted_files
from trialfleet.files import unless_damaged
from trialfleet.workflows.facts.jobs.executions import Execution, ExecutionEnd
from trialfleet.workflows.facts.run_folder.folder import note_path

_ENDS = {str(end): end for end in ExecutionEnd}
_END, _SLOT = (Execution._fields.index(name) for name in ("end", "properties"))
_MOST = 64 << 20  # bytes of a note; for a log with thousands of marks 1 MB is enough


class WholeJob(NamedTuple):
    """A job's executions by attempt.

    `ends` contains "best" if the job ran a full training, and "gate" if it ran a gate.
    """

    attempts: Sequence[Sequence[Execution]]
    ends: frozenset[str]


class JobParts(NamedTuple):
    """The executions of a job of several trials, divided by trial.

    `trials` has the parts of executions in which a trial was trained, by trial and attempt.
    `between` has the parts in which no trial was trained.
    """

    trials: dict[str, list[list[Execution]]]
    between: list[Execution]


def write_note(log: Path, whole: WholeJob, parts: JobParts) -> None:
    """Write the note of the event log `log`, with the job's executions as a whole and by trial."""
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
    head |= {"of": untrusted_files.file_stamp(log), "fields": Execution._fields, "slots": slots}
    untrusted_files.write(
        note_path(log), f"{json.dumps(head)}\n{json.dumps(divided)}\n", durable=False
    )


def noted_whole(log: Path, stamp: tuple[int, int]) -> WholeJob | None:
    """Return a job's executions from the note of its log; None if there is no valid note.

    `stamp` is the log's present stamp.
    """

    def read() -> WholeJob | None:
        head, _ = _lines(log)
        slots = _read_slots(head, stamp)
        return WholeJob(_attempts(head["attempts"], slots), frozenset(head["ends"]))

    return unless_damaged(read, None)


def noted_parts(log: Path, stamp: tuple[int, int]) -> JobParts | None:
    """Return a job's executions by trial from the note of its log; None if there is no valid note.

    `stamp` is the log's present stamp.
    """

    def read() -> JobParts | None:
        head, divided = _lines(log)
        slots, parts = _read_slots(head, stamp), untrusted_files.parse_json(divided)
        trials = {name: _attempts(rows, slots) for name, rows in parts["trials"].items()}
        return JobParts(trials, _attempts([parts["between"]], slots)[0])

    return unless_damaged(read, None)


def _lines(log: Path) -> tuple[Any, bytes]:
    head, _, divided = untrusted_files.read_bytes(note_path(log), _MOST).partition(b"\n")
    return untrusted_files.parse_json(head), divided


def _read_slots(head: Any, stamp: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the attributes of the slots in a note; `head` is the content of its first line.

    Raises ValueError if the note has another stamp, or other fields than `Execution`.
    """
    if tuple(head["of"]) != stamp or tuple(head["fields"]) != Execution._fields:
        raise ValueError("the event log has changed since this note was written")
    slots: list[dict[str, Any]] = head["slots"]
    return slots


def _attempts(rows: Any, slots: Sequence[dict[str, Any]]) -> list[list[Execution]]:
    return [[_read_execution(row, slots) for row in attempt] for attempt in rows]


def _read_execution(row: list[Any], slots: Sequence[dict[str, Any]]) -> Execution:
    row[_END], row[_SLOT] = _ENDS[row[_END]], slots[row[_SLOT]]
    return Execution(*row)
