"""Summaries of jobs' event logs. A summary (note) is read several times as fast as the log.

A note is written next to its log once the job is over. It contains the log's stamp: the log's size
and modification time. A note is valid if it isn't damaged and the log still has the same stamp.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trialfleet import untrusted_files
from trialfleet.files import checker, unless_damaged
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.run_folder.folder import note_path

_MOST = 64 << 20  # bytes of a note; for a log with thousands of marks 1 MB is enough


class JobParts(NamedTuple):
    """The executions of a job of several trials, divided by trial.

    `trials` has the parts of executions in which a trial was trained, by trial and attempt.
    `between` has the parts in which no trial was trained.
    """

    trials: dict[str, list[list[Execution]]]
    between: list[Execution]


_Stamp = tuple[int, int]
_Note = tuple[_Stamp, tuple[str, ...], JobParts]  # with the names of an execution's fields


def write_note(log: Path, parts: JobParts) -> None:
    """Write the note of the event log `log`, with the job's executions by trial."""
    note = (untrusted_files.file_stamp(log), Execution._fields, parts)
    untrusted_files.write(note_path(log), checker(_Note).dump_json(note), durable=False)


def noted_parts(log: Path, stamp: _Stamp) -> JobParts | None:
    """Return a job's executions by trial from the note of its log; None if there is no valid note.

    `stamp` is the log's present stamp.
    """
    return unless_damaged(lambda: _read_note(log, stamp), None)


def _read_note(log: Path, stamp: _Stamp) -> JobParts:
    """Return the job's parts. ValueError if the note has another stamp."""
    text = untrusted_files.read_bytes(note_path(log), _MOST)
    of, fields, parts = checker(_Note).validate_json(text)
    if (of, fields) != (stamp, Execution._fields):
        raise ValueError("the event log has changed since this note was written")
    return JobParts(*parts)
