"""Marks of the start and end of each trial, in the event log of the trial's job.

HTCondor's log has a job's executions, but not the job's trials. So the access point adds a generic
event, the mark, when the job's agent reports that a trial began, saved a checkpoint or ended:

    008 (012.000.000) 2026-11-25 09:18:36.842 trialfleet: A.l1.t02 ends code=0 cpu=11.9 memory=231.0
    ...
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from trialfleet import untrusted_files
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

if TYPE_CHECKING:
    from trialfleet.workflows.facts.jobs.agent_messages import ReportedEnd

_MOST_LOG = 64 << 20  # last bytes of a log that are read; a trial's marks need some hundreds
_WORD = "trialfleet:"
_MARK = re.compile(
    _WORD + r" (?P<trial>\S+) (?P<kind>begins|saved|ends)"
    r"(?: code=(?P<code>-?\d+))?"
    r"(?: cpu=(?P<cpu>\d+(\.\d*)?))?(?: memory=(?P<memory>\d+(\.\d*)?))?"
)
EVENT_ENDS = b"\n...\n"
_CUT = b" (incomplete)" + EVENT_ENDS  # after half an event, as a full disk may leave one
_SUBMITTED, _EXECUTES, _GENERIC = b"000 (", b"001 (", b"008 ("


class MarkKind(StrEnum):
    """The event that a mark reports: its trial began, saved a checkpoint or ended."""

    BEGINS = "begins"
    SAVED = "saved"
    ENDS = "ends"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An event of a trial.

    `code` is the exit code of an ended trial, or minus the number of the signal that killed it.
    """

    trial: str
    kind: MarkKind
    code: int | None = None
    cpu_seconds: float | None = None
    memory_mb: float | None = None

    @classmethod
    def from_text(cls, words: str) -> Self | None:
        """Return the mark in an event's text; None if the text is not a mark."""
        found = _MARK.fullmatch(words.strip())
        if found is None:
            return None
        code, cpu, memory = found["code"], found["cpu"], found["memory"]
        return cls(
            trial=found["trial"],
            kind=MarkKind(found["kind"]),
            code=None if code is None else int(code),
            cpu_seconds=None if cpu is None else float(cpu),
            memory_mb=None if memory is None else float(memory),
        )

    def __str__(self) -> str:
        figures = {"code": self.code, "cpu": self.cpu_seconds, "memory": self.memory_mb}
        known = [f" {name}={value}" for name, value in figures.items() if value is not None]
        return f"{_WORD} {self.trial} {self.kind}{''.join(known)}"


def note(
    place: TrialFolder, job: str, when: float, kind: MarkKind, ended: ReportedEnd | None = None
) -> None:
    """Write into a job's log that a trial began or continued, saved a checkpoint, or ended.

    `job` is an id such as `12.0`, and `when` is in Unix seconds. `ended` says how the trial ended.
    Nothing is written if the log was removed, or if the trial's last start or end in the present
    execution of the job is of the same kind. Raises OSError if writing fails.
    """
    trial = place.root.name
    cluster, proc = map(int, job.split("."))
    if kind is not MarkKind.SAVED and _last_kind(place, trial, cluster) is kind:
        return
    mark = Mark(trial=trial, kind=kind)
    if ended:
        cpu, memory = ended.cpu_seconds, ended.memory_mb
        mark = replace(
            mark,
            code=ended.code,
            cpu_seconds=None if cpu is None else round(cpu, 3),
            memory_mb=None if memory is None else round(memory, 1),
        )
    at = datetime.fromtimestamp(when).isoformat(" ", "milliseconds")  # local, as HTCondor's
    event = f"008 ({cluster:03}.{proc:03}.000) {at} {mark}".encode() + EVENT_ENDS
    end, _ = untrusted_files.tail(place.log, len(EVENT_ENDS))
    with suppress(FileNotFoundError):  # without the log, trials continue
        untrusted_files.append(place.log, event if end in {b"", EVENT_ENDS} else _CUT + event)


def _last_kind(place: TrialFolder, trial: str, cluster: int) -> MarkKind | None:
    """Return whether a trial's last mark in the job's present execution is BEGINS or ENDS.

    Return None if there is neither. For a gang, all marks since the submission count, because the
    trial continues while one job starts again.
    """
    content, _ = untrusted_files.tail(place.log, _MOST_LOG)
    is_gang = b"%s%03d.001." % (_SUBMITTED, cluster) in content
    since = max(content.rfind(b"\n" + (_SUBMITTED if is_gang else _EXECUTES)), 0)
    for line in reversed(content[since:].split(b"\n")[:-1]):  # without half a line
        if line.startswith(_GENERIC) and (word := line.find(_WORD.encode())) > 0:
            mark = Mark.from_text(line[word:].decode(errors="replace"))
            if mark and mark.trial == trial and mark.kind is not MarkKind.SAVED:
                return mark.kind
    return None
