"""The parts of a job's executions that belong to each trial, and the time between trials.

Marks in the event log (trial_marks.py) report when a trial began and ended. A trial's part of an
execution lasts from the mark of its start to the mark of its end. If the execution ends first, the
trial's part ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from trialfleet import untrusted_files
from trialfleet.nodes.job.agent import EXIT_UNANSWERED
from trialfleet.workflows.facts.jobs.execution_notes import JobParts, noted_parts, write_note
from trialfleet.workflows.facts.jobs.executions import (
    Event,
    Execution,
    ExecutionEnd,
    parse_executions,
    read_events,
    submissions,
    without_marks,
)
from trialfleet.workflows.facts.jobs.trial_marks import Mark, MarkKind
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

KEPT_LOGS = 4096  # cached event logs: those of all running jobs of a pool


def read_attempts(place: TrialFolder) -> list[list[Execution]]:
    """Return the executions of each attempt at a trial, oldest first.

    A trial with its own job has one attempt per submission. In a job that trains several trials, an
    attempt ends when the trial ends or the job leaves the queue.
    """
    if place.is_shared:
        name = place.root.name
        return [*read_parts(place.log).trials.get(name, ())]
    executions = (parse_executions(part) for part in submissions(read_events(place.log)))
    return [found for found in executions if found]


def read_parts(log: Path) -> JobParts:
    """Return the executions of a job of several trials, divided by trial."""
    return _parts(log, untrusted_files.file_stamp(log))


@lru_cache(maxsize=KEPT_LOGS)
def _parts(log: Path, stamp: tuple[int, int]) -> JobParts:
    return noted_parts(log, stamp) or _parse_parts(read_events(log))


def note_log(log: Path) -> None:
    """Write the executions in a job's event log to a note, which is read faster than the log."""
    write_note(log, _parse_parts(read_events(log)))


def _parse_parts(events: Iterable[Event]) -> JobParts:
    trials: dict[str, list[list[Execution]]] = {}
    between: list[Execution] = []
    for part in submissions(events):
        is_gang = len({event.proc for event in part}) > 1
        division = _GangDivision(part) if is_gang else _Division(part)
        between += division.between
        for name, attempts in division.trials.items():
            trials.setdefault(name, []).extend(attempts)
    return JobParts(trials, between)


def _marks_by_execution(events: Iterable[Event]) -> list[list[tuple[float, Mark]]]:
    found: list[list[tuple[float, Mark]]] = []
    for event in events:
        if event.kind == "EXECUTE":
            found.append([])
        elif found and event.mark:
            found[-1].append((event.time, event.mark))
    return found


def _parse_executions(events: Sequence[Event]) -> list[Execution]:
    """Return the executions of one submission of a job of several trials.

    An execution whose agent got no answer doesn't count as failed: no work was lost, because the
    agent asks for a trial only after the previous trial's result has arrived.
    """
    found = parse_executions(events)
    ended = [event for event in events if event.kind == "JOB_TERMINATED"]
    if EXIT_UNANSWERED not in {event.get("ReturnValue") for event in ended}:
        return found
    return [
        each._replace(end=ExecutionEnd.DONE) if each.ended_by == "JOB_TERMINATED" else each
        for each in found
    ]


class _Division:
    def __init__(self, events: Sequence[Event]) -> None:
        self.trials: dict[str, list[list[Execution]]] = {}
        self.between: list[Execution] = []
        executions = _parse_executions(without_marks(events))
        for execution, marks in zip(executions, _marks_by_execution(events), strict=True):
            self._add(execution, marks)

    def _add(self, execution: Execution, marks: Iterable[tuple[float, Mark]]) -> None:
        rest, trial = execution._replace(saved=None, result_time=None, cpu_seconds=0.0), ""
        for time, mark in marks:
            when = min(max(time, rest.began), execution.ended)
            if mark.kind is MarkKind.BEGINS:
                self._put(trial, rest._replace(ended=when, is_over=True, end=ExecutionEnd.FAILED))
                rest, trial = rest._replace(began=when, saved=None), mark.trial
            elif mark.trial != trial:
                self._apply_late_mark(mark, when)
            elif mark.kind is MarkKind.SAVED:
                rest = rest._replace(saved=when)
            else:
                self._put(trial, _end_part(rest._replace(ended=when), mark))
                rest, trial = rest._replace(began=when, saved=None), ""
        self._put(trial, rest)

    def _put(self, trial: str, part: Execution) -> None:
        if not trial:
            if part.seconds or not part.is_over:
                end = ExecutionEnd.DONE if part.is_over else ExecutionEnd.RUNNING
                self.between.append(part._replace(end=end))
            return
        attempts = self.trials.setdefault(trial, [])
        if not attempts or attempts[-1][-1].end in {ExecutionEnd.DONE, ExecutionEnd.FAILED}:
            attempts.append([])
        attempts[-1].append(part)

    def _apply_late_mark(self, mark: Mark, when: float) -> None:
        """Update the last part of an earlier trial from a mark that was written late."""
        if (attempts := self.trials.get(mark.trial)) and not (last := attempts[-1][-1]).result_time:
            when = min(when, last.ended)
            is_end = mark.kind is MarkKind.ENDS
            attempts[-1][-1] = _end_part(last, mark) if is_end else last._replace(saved=when)


@dataclass
class _Span:
    trial: str
    began: float
    ended: float = math.inf
    mark: Mark | None = None
    parts: list[Execution] = field(default_factory=list)


class _GangDivision:
    def __init__(self, events: Sequence[Event]) -> None:
        self.between: list[Execution] = []
        self._spans: list[_Span] = []
        marks = ((event.time, event.mark) for event in events if event.mark)
        for when, mark in marks:
            last = self._spans[-1] if self._spans else _Span("", when, when)
            if mark.kind is MarkKind.BEGINS and (last.trial, last.ended) != (mark.trial, math.inf):
                last.ended = min(last.ended, when)
                self._spans.append(_Span(mark.trial, when))
            elif mark.kind is MarkKind.ENDS and last.trial == mark.trial and not last.mark:
                last.ended, last.mark = min(last.ended, when), mark
        for execution in _parse_executions(events):
            self._add(execution)

    @property
    def trials(self) -> dict[str, list[list[Execution]]]:
        found: dict[str, list[list[Execution]]] = {}
        for span in self._spans:
            if span.parts:
                found.setdefault(span.trial, []).append(span.parts)
        return found

    def _add(self, execution: Execution) -> None:
        whole = execution._replace(saved=None, result_time=None, cpu_seconds=0.0)
        rest, until = whole.began, whole.ended if whole.is_over else math.inf
        for span in self._spans:
            began, ended = max(rest, span.began), min(until, span.ended)
            if began >= ended:
                continue
            self._add_time_between_trials(whole, rest, began)
            part, rest = _cut_execution(whole, began, ended), ended
            if span.mark and ended == span.ended:
                # The CPU time of a mark is that of all ranks together.
                is_first = not any(each.result_time for each in span.parts)
                part = _end_part(part, span.mark)
                part = part if is_first else part._replace(cpu_seconds=0.0)
            span.parts.append(part)
        self._add_time_between_trials(whole, rest, until)

    def _add_time_between_trials(self, whole: Execution, began: float, ended: float) -> None:
        if began < ended:
            part = _cut_execution(whole, began, ended)
            self.between.append(
                part._replace(end=ExecutionEnd.DONE if part.is_over else ExecutionEnd.RUNNING)
            )


def _cut_execution(execution: Execution, began: float, ended: float) -> Execution:
    """Return the part from `began` to `ended`; the part still runs if `ended` is infinite."""
    if ended == math.inf:
        return execution._replace(began=began, ended=max(began, execution.ended))
    is_whole = ended == execution.ended and execution.is_over
    part = execution._replace(began=began, ended=ended)
    return part if is_whole else part._replace(is_over=True, end=ExecutionEnd.FAILED)


def _end_part(part: Execution, mark: Mark) -> Execution:
    return part._replace(
        cpu_seconds=mark.cpu_seconds or 0.0,
        memory_mb=mark.memory_mb,
        is_over=True,
        end=ExecutionEnd.FAILED if mark.code else ExecutionEnd.DONE,
        result_time=part.ended,
        ended_by="",
        reason="",
    )
