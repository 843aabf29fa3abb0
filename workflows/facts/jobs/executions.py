"""The executions of a job, from its event log: their slots, their times, and how each ended."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from trialfleet import untrusted_files
from trialfleet.classads import plain_attributes
from trialfleet.workflows.facts.jobs.trial_marks import EVENT_ENDS, Mark, MarkKind

if TYPE_CHECKING:
    from htcondor2 import JobEvent

# Events that end an execution. HTCondor may write several; only the first one counts.
_ENDS = frozenset(
    {"JOB_EVICTED", "JOB_TERMINATED", "SHADOW_EXCEPTION", "JOB_RECONNECT_FAILED", "JOB_HELD",
     "JOB_ABORTED"}
)  # fmt: skip
# Events that end an execution but not the attempt: HTCondor starts the job again.
_CUTS = frozenset({"JOB_EVICTED", "SHADOW_EXCEPTION", "JOB_RECONNECT_FAILED"})
_INPUT = frozenset({1, 2, 3})  # FileTransferEventType: input is queued, starts, finishes
_ONE_CUT_SECONDS = 2.0  # between two events of one interruption, at most
_KEPT_LOGS = 256  # cached event logs: a snapshot of a run reads them twice
_READING = Lock()  # several threads of a server read; the bindings read one log at a time
_COMPARED = 256  # last bytes of the part that was read; they identify the log
_PIECE = 16 << 20  # bytes that are read at once
# An event that trialfleet has written: cluster, proc, time, text.
_GENERIC = re.compile(rb"008 \((\d+)\.(\d+)\.\d+\) (\d{4}-\S+ \S+) (trialfleet: [^\n]*)")
# Also in the midst of a line: a crash or a full disk may have cut the event before.
_EVENT_BEGINS = re.compile(rb"(?=\d{3} \(-?\d+\.-?\d+\.-?\d+\) \d{4}-\d\d-\d\d \d\d:)")
_CPU_TIME = re.compile(r"(\d+) (\d+):(\d+):(\d+)")  # days, hours, minutes, seconds
# For example, the job's shadow was killed.
UNTOLD = "its shadow process on the access point exited without logging an end"


class ExecutionEnd(StrEnum):
    """The end of an execution in a slot."""

    DONE = "done"  # the execution led to a result
    FAILED = "failed"  # the attempt led to no result
    EVICTED = "evicted"  # interrupted; the attempt continued elsewhere, from its checkpoint
    RUNNING = "running"

    @property
    def is_lost(self) -> bool:
        """True if the execution failed or was interrupted, so that it may have lost work."""
        return self == "failed" or self == "evicted"  # `in` would be slower


class Execution(NamedTuple):
    """One execution of a job in a slot.

    Attributes:
        slot: HTCondor's name of the slot, `slot1_1@host`; empty if the job did not execute.
        began: when the execution began, in Unix seconds, like all times here.
        ended: when the execution ended; while the job executes, the time of its last event.
        proc: the job's number in its gang (jobs that train one trial together); 0 without a gang.
        properties: attributes of the slot and its machine.
        saved: when the last checkpoint or result arrived on the access point; None if none did.
        result_time: when the last result arrived; None if no result arrived.
        memory_mb: the trial's maximum memory, as its agent measured it; None if unknown.
        ended_by: HTCondor's name of the ending event, such as JOB_EVICTED; empty if there is none.
    """

    slot: str
    began: float
    ended: float
    cpu_seconds: float = 0.0
    proc: int = 0
    is_over: bool = False
    end: ExecutionEnd = ExecutionEnd.RUNNING
    properties: Mapping[str, Any] = MappingProxyType({})
    saved: float | None = None
    result_time: float | None = None
    memory_mb: float | None = None
    ended_by: str = ""
    reason: str = ""

    @property
    def seconds(self) -> float:
        """The duration in seconds; never negative, even if the clock was set back."""
        return max(0.0, self.ended - self.began)

    @property
    def saved_seconds(self) -> float:
        """The seconds from the start until work was last saved; 0 if no work was saved."""
        return 0.0 if self.saved is None else max(0.0, self.saved - self.began)

    @property
    def machine(self) -> str:
        """The host of the slot."""
        return self.slot.rpartition("@")[2]


class Event(NamedTuple):
    """An event of a job's log.

    Attributes:
        kind: HTCondor's name of the event's type, such as EXECUTE.
        time: in Unix seconds.
        attributes: the event's ClassAd; empty for an event that trialfleet has written.
        mark: what trialfleet has written about a trial; None for other events.
    """

    kind: str
    cluster: int
    proc: int
    time: float
    attributes: Mapping[str, Any] = MappingProxyType({})
    mark: Mark | None = None

    def get(self, name: str) -> Any:
        """Return an attribute of the event; None if it is missing."""
        return self.attributes.get(name)


def read_events(log: Path) -> tuple[Event, ...]:
    """Return the events of a job's log; empty if the log can't be read.

    Unreadable events and events of an unknown type are left out. Repeated calls read only the new
    part of the log.
    """
    return _get_reader(log).events()


def split_events(content: bytes) -> list[bytes]:
    """Return the texts of a log's events, without an event that is still being written.

    If a crash cut an event short, its beginning is a text of its own.
    """
    texts = content.split(EVENT_ENDS)[:-1]
    return [part for text in texts for part in _EVENT_BEGINS.split(text) if part]


class _Reader:
    """A reader of a growing event log; a replaced log is read from its beginning."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin()

    def _begin(self) -> None:
        self._stamp, self._last, self._at = (0, 0), b"", 0
        self._events: tuple[Event, ...] = ()

    def events(self) -> tuple[Event, ...]:
        if untrusted_files.file_stamp(self._log) == self._stamp:
            return self._events
        try:
            with _READING, untrusted_files.open_regular(self._log) as file:
                found = os.fstat(file.fileno())
                stamp = found.st_size, found.st_mtime_ns
                if stamp != self._stamp:
                    if self._read_end(file, self._stamp[0]) != self._last:
                        self._begin()
                    self._read_new_events(file)
                    self._stamp, self._last = stamp, self._read_end(file, stamp[0])
                return self._events
        except OSError:
            return ()

    def _read_end(self, file: BinaryIO, size: int) -> bytes:
        file.seek(max(0, size - _COMPARED))
        return file.read(min(size, _COMPARED))

    def _read_new_events(self, file: BinaryIO) -> None:
        new = b""
        file.seek(self._at)
        while piece := file.read(_PIECE):
            new += piece
            if EVENT_ENDS not in piece:
                break  # the end of the log; or no log, because events are shorter
        new = new[: new.rfind(EVENT_ENDS) + len(EVENT_ENDS)] if EVENT_ENDS in new else b""
        self._at += len(new)
        texts = split_events(new)
        ours = list(map(_parse_ours, texts))
        others = [text for text, event in zip(texts, ours, strict=True) if event is None]
        parsed = iter(_parse_others(others))
        events = [event or next(parsed) for event in ours]
        self._events = (*self._events, *filter(None, events))


_get_reader = lru_cache(maxsize=_KEPT_LOGS)(_Reader)


def _parse_ours(text: bytes) -> Event | None:
    """Return the event in a text if trialfleet has written it; else None."""
    found = _GENERIC.match(text)
    if found is None:
        return None
    cluster, proc, time, info = (part.decode(errors="replace") for part in found.groups())
    mark = Mark.from_text(info)
    with suppress(ValueError):  # a damaged time
        return Event("GENERIC", int(cluster), int(proc), _unix_seconds(time), mark=mark)
    return None


def _parse_others(texts: list[bytes]) -> list[Event | None]:
    found = list(_events_before_unreadable(texts)) if texts else []
    if len(found) == len(texts):
        return found
    return [next(_events_before_unreadable([text]), None) for text in texts]


def _events_before_unreadable(texts: list[bytes]) -> Iterator[Event | None]:
    import htcondor2

    with os.fdopen(os.memfd_create("events"), "wb") as file:
        file.write(EVENT_ENDS.join([*texts, b""]))
        file.flush()
        try:
            with htcondor2.JobEventLog(f"/proc/self/fd/{file.fileno()}") as log:
                yield from map(_convert, log.events(stop_after=0))
        except (htcondor2.HTCondorException, UnicodeDecodeError):
            return


def _convert(event: JobEvent) -> Event | None:
    with suppress(ValueError):  # a newer HTCondor's type, or a damaged time
        time = _unix_seconds(str(event["EventTime"]))
        return Event(event.type.name, event.cluster, event.proc, time, event)
    return None


def submissions(events: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each submission of a job or gang; [[]] if there are no events."""
    parts: list[list[Event]] = [[]]
    submitted: set[tuple[int, int]] = set()
    for event in events:
        if event.kind == "SUBMIT":
            job = (event.cluster, event.proc)
            if job in submitted or {cluster for cluster, _ in submitted} != {event.cluster}:
                parts.append([])
                submitted = set()
            submitted.add(job)
        parts[-1].append(event)
    return parts


def without_marks(events: Iterable[Event]) -> list[Event]:
    """Return the events, but only the last of successive marks.

    The last mark shows until when the execution was alive.
    """
    neighbours = pairwise([*events, None])
    return [e for e, after in neighbours if e and not (e.mark and after and after.mark)]


def parse_executions(events: Iterable[Event]) -> list[Execution]:
    """Return the executions in the events of one submission, oldest first."""
    found: list[Execution] = []
    latest: dict[int, int] = {}  # by proc: the index of its last execution in `found`
    for event in events:
        now, kind, proc = event.time, event.kind, event.proc
        if kind == "EXECUTE":
            if proc in latest and not (last := found[latest[proc]]).is_over:
                found[latest[proc]] = last._replace(
                    is_over=True, end=ExecutionEnd.EVICTED, reason=UNTOLD
                )
            slot = str(event.get("SlotName") or event.get("ExecuteHost"))
            latest[proc] = len(found)
            properties = slot_properties(event)
            found.append(Execution(slot, now, now, proc=proc, properties=properties))
        elif proc in latest and not (kind == "FILE_TRANSFER" and event.get("Type") in _INPUT):
            last = found[latest[proc]]
            if kind == "GENERIC":
                last = _apply_mark(last, event)
                found[latest[proc]] = last if last.is_over else last._replace(ended=now)
            elif not last.is_over:
                found[latest[proc]] = _apply_event(last, event)
    return found


def _apply_event(execution: Execution, event: Event) -> Execution:
    kind = event.kind
    is_over = kind in _ENDS
    return execution._replace(
        ended=event.time,
        cpu_seconds=_cpu_seconds(str(event.get("RunRemoteUsage"))),
        is_over=is_over,
        end=_end(event),
        ended_by=kind if is_over else "",
        reason=_reason(event) if is_over else "",
    )


def _apply_mark(execution: Execution, event: Event) -> Execution:
    """Return `execution` with the time of the checkpoint or result that `event` reports, if any."""
    if event.mark is None or event.mark.kind is MarkKind.BEGINS:
        return execution
    until = execution.ended if execution.is_over else math.inf
    when = min(event.time, until)
    result_time = when if event.mark.kind is MarkKind.ENDS else execution.result_time
    return execution._replace(saved=when, result_time=result_time)


def interrupted_starts(events: Iterable[Event]) -> list[Execution]:
    """Return the starts of a job that were interrupted before the job executed."""
    found: list[Execution] = []
    executing: set[int] = set()
    ended: dict[int, float] = {}
    for event in events:
        kind, proc, now = event.kind, event.proc, event.time
        if kind == "EXECUTE":
            executing.add(proc)
        elif kind in _CUTS:
            if proc not in executing and now - ended.get(proc, -math.inf) > _ONE_CUT_SECONDS:
                evicted = Execution("", now, now, proc=proc, is_over=True, ended_by=kind)
                found.append(evicted._replace(end=ExecutionEnd.EVICTED, reason=_reason(event)))
            executing.discard(proc)
            ended[proc] = now
    return found


def _reason(event: Event) -> str:
    if event.get("TerminatedAndRequeued"):  # HTCondor's reason is the submit file's expression
        if (signal := event.get("TerminatedBySignal")) is not None:
            return f"signal {signal} killed its agent"
        return f"its agent exited with code {event.get('ReturnValue')}"
    words = event.get("Reason") or event.get("HoldReason") or event.get("Message") or ""
    code = event.get("ReasonCode")
    return " ".join(str(words).split()) or (f"code {code}" if code else "")


def slot_properties(event: Event) -> Mapping[str, Any]:
    """Return those attributes of the slot and machine in `event` that are numbers or texts."""
    found = event.get("ExecuteProps")
    values = plain_attributes(found) if isinstance(found, Mapping) else {}
    return {name: each for name, each in values.items() if isinstance(each, str | int | float)}


def _end(event: Event) -> ExecutionEnd:
    kind = event.kind
    if kind in _CUTS:
        return ExecutionEnd.EVICTED
    if kind == "JOB_TERMINATED" and event.get("ReturnValue") == 0:
        return ExecutionEnd.DONE
    return ExecutionEnd.FAILED if kind in _ENDS else ExecutionEnd.RUNNING


def _unix_seconds(written: str) -> float:
    return datetime.fromisoformat(written).timestamp()


def _cpu_seconds(usage: str) -> float:
    """Return the total of user and system time, from text like `Usr 0 00:01:05, Sys 0 00:00:02`."""
    return float(
        sum(
            86400 * int(days) + 3600 * int(hours) + 60 * int(minutes) + int(seconds)
            for days, hours, minutes, seconds in _CPU_TIME.findall(usage)
        )
    )
