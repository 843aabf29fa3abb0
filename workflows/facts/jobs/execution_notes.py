"""Summaries of jobs' event logs. A summary (note) is read several times as fast as the log.

A note is written next to its log once the job is over. It contains the log's stamp: the log's size
and modification time. A note is valid if it isn't damaged and the log still has the same stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trialfleet import untrusted_files
from trialfleet.files import checker, unless_damaged
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.run_folder.folder import note_path

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


# A note has two lines: its log's stamp with the fields of the executions, and the whole job; and
# the job's parts.
_Stamp = tuple[int, int]
_Head = tuple[_Stamp, tuple[str, ...], WholeJob]


def write_note(log: Path, whole: WholeJob, parts: JobParts) -> None:
    """Write the note of the event log `log`, with the job's executions as a whole and by trial."""
    head = (untrusted_files.file_stamp(log), Execution._fields, whole)
    lines = (checker(_Head).dump_json(head), checker(JobParts).dump_json(parts), b"")
    untrusted_files.write(note_path(log), b"\n".join(lines), durable=False)


def noted_whole(log: Path, stamp: _Stamp) -> WholeJob | None:
    """Return a job's executions from the note of its log; None if there is no valid note.

    `stamp` is the log's present stamp.
    """
    return unless_damaged(lambda: _read_note(log, stamp)[0], None)


def noted_parts(log: Path, stamp: _Stamp) -> JobParts | None:
    """Return a job's executions by trial from the note of its log; None if there is no valid note.

    `stamp` is the log's present stamp.
    """
    return unless_damaged(lambda: checker(JobParts).validate_json(_read_note(log, stamp)[1]), None)


def _read_note(log: Path, stamp: _Stamp) -> tuple[WholeJob, bytes]:
    """Return the whole job, and the line of its parts. ValueError if the note has another stamp."""
    head, _, parts = untrusted_files.read_bytes(note_path(log), _MOST).partition(b"\n")
    of, fields, whole = checker(_Head).validate_json(head)
    if (of, fields) != (stamp, Execution._fields):
        raise ValueError("the event log has changed since this note was written")
    return whole, parts
