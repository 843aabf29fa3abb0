"""What HTCondor says of a trial's job, read from the job's own event log.

The log lies in the trial's folder, holds all attempts and costs no query of a daemon.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trialfleet.classads import plain
from trialfleet.workflows.costs.cost import INSTANCE, End, cost, slot_price

if TYPE_CHECKING:
    from htcondor2 import JobEvent

# Whatever ends an execution; what HTCondor writes of it after the first of them is not another.
_ENDS = frozenset(
    {"JOB_EVICTED", "JOB_TERMINATED", "SHADOW_EXCEPTION", "JOB_RECONNECT_FAILED", "JOB_HELD",
     "JOB_ABORTED"}
)  # fmt: skip
# What ends an execution, not the attempt: the job is started again by itself.
_CUTS = frozenset({"JOB_EVICTED", "SHADOW_EXCEPTION", "JOB_RECONNECT_FAILED"})
_CPU_TIME = re.compile(r"(\d+) (\d+):(\d+):(\d+)")  # days, hours, minutes, seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """What HTCondor says of the job that trained a trial; None where it wasn't recorded.

    An attempt is one submission of the job. Where a checkpoint lets it go on elsewhere, that is
    another execution of the same attempt; so is each rank of a gang.

    Attributes:
        started: when its first attempt began to execute, in Unix seconds.
        ended: when its last attempt ended, in Unix seconds.
        wall_seconds: how long it executed, over all attempts.
        last_wall_seconds: how long the last attempt executed.
        cpu_seconds: processor time in whole seconds, over all attempts; None where HTCondor says 0:
            it hadn't measured yet when the job ended.
        memory_mb: the most memory that HTCondor saw it use; what its processes share counts once
            where HTCondor measures that.
        machine: the host of the last attempt.
        slot: the slot of the last attempt, as HTCondor names it: `slot1_1@host`.
        attempts: how often it was tried; 0 if it isn't known.
        usd: what its time in slots cost, over all attempts, in USD; None if a price isn't known.
        lost_usd: the part of that which was paid for attempts that failed, and for executions that
            were cut off, whatever a checkpoint saved of them.
        ranks: of a gang, how many trained last; who keeps its roster knows, not the log.
        generations: of a gang, how often its ranks began to train.
    """

    started: float | None = None
    ended: float | None = None
    wall_seconds: float | None = None
    last_wall_seconds: float | None = None
    cpu_seconds: float | None = None
    memory_mb: float | None = None
    machine: str | None = None
    slot: str | None = None
    attempts: int = 0
    usd: float | None = None
    lost_usd: float | None = None
    ranks: int | None = None
    generations: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stay:
    """One execution of a job in a slot.

    Attributes:
        machine: the host.
        instance: the EC2 instance that this is; None on other machines.
        began: in Unix seconds.
        ended: likewise; of one that goes on, the last that was heard of it, or `now`.
        end: how it ended.
        usd: what it cost; None if the node's price isn't known.
    """

    machine: str
    instance: str | None
    began: float
    ended: float
    end: End
    usd: float | None


@dataclass(frozen=True)
class _Execution:
    """One stay in a slot; `ended` is the last that was heard of one that goes on."""

    slot: str
    began: float
    ended: float
    cpu_seconds: float = 0.0
    proc: int = 0  # of a gang's jobs, which one
    is_over: bool = False
    end: End = End.RUNNING
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it lasted: a clock that was set back must not give a negative time."""
        return max(0.0, self.ended - self.began)

    @property
    def machine(self) -> str:
        """The host."""
        return self.slot.rpartition("@")[2]


def read_job(log: Path, price: float | None = None, *, failed: bool = False) -> Job | None:
    """Return what the event log of a job says; None where it never executed.

    A log that can't be read, or breaks off, says what it says up to there.

    Args:
        log: the event log.
        price: USD per hour of a node that doesn't say its price.
        failed: what the last attempt left is no result, whatever its exit code was.
    """
    events = list(_events(log))
    attempts = [found for part in _submissions(events) if (found := _executions(part))]
    if not attempts:
        return None
    executions = [execution for attempt in attempts for execution in attempt]
    last = max(_last_of_each(attempts[-1]), key=lambda execution: execution.ended)
    stays = _stays(attempts, price, failed=failed)
    return Job(
        started=executions[0].began,
        ended=last.ended,
        wall_seconds=round(_wall_seconds(executions), 3),
        last_wall_seconds=round(_wall_seconds(attempts[-1]), 3),
        cpu_seconds=sum(execution.cpu_seconds for execution in executions) or None,
        memory_mb=_memory_mb(events),
        machine=last.machine,
        slot=last.slot,
        attempts=len(attempts),
        usd=total(stays),
        lost_usd=None if total(stays) is None else total(s for s in stays if s.end.is_lost),
    )


def job_fields(noted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a trial's notes of its job a `Job` has; other releases may note more."""
    return {field.name: noted[field.name] for field in fields(Job) if field.name in noted}


def stays_of(noted: Mapping[str, Any]) -> list[Stay]:
    """Return the executions in a trial's notes of its job; none where they weren't noted yet."""
    return [Stay(**{**stay, "end": End(stay["end"])}) for stay in noted.get("stays", ())]


def read_stays(
    log: Path, price: float | None = None, *, failed: bool = False, now: float | None = None
) -> list[Stay]:
    """Return the executions of a job, over all its attempts, oldest first.

    Args:
        log: the event log.
        price: USD per hour of a node that doesn't say its price.
        failed: what the last attempt left is no result, whatever its exit code was.
        now: the time, in Unix seconds, to which a job executes that may do so still; None: it is
            known that none does.
    """
    attempts = [found for part in _submissions(_events(log)) if (found := _executions(part))]
    if attempts and now is not None:
        last = _last_of_each(attempts[-1])
        attempts[-1] = [
            replace(each, ended=now) if each in last and not each.is_over else each
            for each in attempts[-1]
        ]
    return _stays(attempts, price, failed=failed)


def total(stays: Iterable[Stay]) -> float | None:
    """Return what some executions cost together, in USD; None if the cost of one isn't known."""
    known = [stay.usd for stay in stays]
    return None if None in known else round(sum(each or 0.0 for each in known), 9)


def read_executions(log: Path) -> list[tuple[float, float | None]]:
    """Return when the job of an event log executed: from and to, in Unix seconds, oldest first.

    Infinity is the end of one that goes on; None is an end that nobody saw, as where the access
    point lost its power.
    """
    executions = [each for part in _submissions(_events(log)) for each in _executions(part)]
    spans = [(each.began, each.ended if each.is_over else None) for each in executions]
    if spans and spans[-1][1] is None:
        spans[-1] = (spans[-1][0], math.inf)
    return spans


def read_removals(log: Path) -> list[float]:
    """Return when the job of an event log was removed, in Unix seconds, oldest first."""
    return [_time(event) for event in _events(log) if event.type.name == "JOB_ABORTED"]


def first_failure(log: Path) -> tuple[int, int] | None:
    """Return exit code and proc of a gang's first job, of its last attempt, that failed by itself.

    None where none did, as where all of them were removed.
    """
    for event in _submissions(_events(log))[-1]:
        if event.type.name == "JOB_TERMINATED" and event.get("ReturnValue"):
            return int(event["ReturnValue"]), event.proc
    return None


class LastLife(NamedTuple):
    """The last stay of a job in a slot.

    Attributes:
        how: HTCondor's name of the event that ended it, such as JOB_EVICTED; empty while it lasts.
        reason: why, in HTCondor's words.
        slot: as HTCondor names it: `slot1_1@host`.
        executing: whether it lasts.
    """

    how: str
    reason: str
    slot: str
    executing: bool


def last_life(log: Path) -> LastLife | None:
    """Return how the last stay of a job in a slot ended; None where it never executed."""
    events = _submissions(_events(log))[-1]
    executions = _executions(events)
    if not executions:
        return None
    slot = executions[-1].slot
    begun = max(i for i, event in enumerate(events) if event.type.name == "EXECUTE")
    end = next((event for event in events[begun:] if event.type.name in _ENDS), None)
    if end is None:
        return LastLife("", "", slot, executing=True)
    reason = str(end.get("Reason") or end.get("HoldReason") or end.get("Message") or "")
    return LastLife(end.type.name, " ".join(reason.split()), slot, executing=False)


def sandbox_of(log: Path, proc: int = 0) -> Path | None:
    """Return the folder, on its own machine, in which a job executes; None where it doesn't.

    Args:
        log: the event log.
        proc: of a gang's jobs, which one.
    """
    attempts = _submissions(event for event in _events(log) if event.proc == proc)
    executions = _executions(attempts[-1])
    if not executions or executions[-1].is_over:
        return None
    last = [event for event in attempts[-1] if event.type.name == "EXECUTE"][-1]
    where = _properties(last).get("CondorScratchDir")
    return Path(str(where)) if where else None


def _stays(
    attempts: Sequence[Sequence[_Execution]], price: float | None, *, failed: bool
) -> list[Stay]:
    """The executions with their costs; only the last attempt may have led to a result."""
    stays = []
    for attempt in attempts:
        in_vain = failed or attempt is not attempts[-1]
        for execution in attempt:
            was_done = execution.end in {End.DONE, End.RUNNING}
            hourly = slot_price(execution.properties, price)
            instance = execution.properties.get(INSTANCE)
            stay = Stay(
                machine=execution.machine,
                instance=instance if isinstance(instance, str) else None,
                began=execution.began,
                ended=execution.began + execution.seconds,
                end=End.FAILED if in_vain and was_done else execution.end,
                usd=None if hourly is None else cost(hourly, 1.0, execution.seconds),
            )
            stays.append(stay)
    return stays


def _events(log: Path) -> Iterator[JobEvent]:
    import htcondor2

    with suppress(htcondor2.HTCondorException):
        yield from htcondor2.JobEventLog(str(log)).events(stop_after=0)


def _last_of_each(executions: Iterable[_Execution]) -> list[_Execution]:
    """The last execution of each of an attempt's jobs."""
    return [*{execution.proc: execution for execution in executions}.values()]


def _wall_seconds(executions: Sequence[_Execution]) -> float:
    """How long any of them lasted; a gang's ranks train at the same time."""
    if len({execution.proc for execution in executions}) <= 1:
        return sum(execution.seconds for execution in executions)
    seconds, until = 0.0, -math.inf
    for each in sorted(executions, key=lambda execution: execution.began):
        seconds += max(0.0, each.ended - max(each.began, until))
        until = max(until, each.ended)
    return seconds


def _submissions(events: Iterable[JobEvent]) -> list[list[JobEvent]]:
    """The events of each attempt: of a gang, those of all its jobs."""
    parts: list[list[JobEvent]] = [[]]
    submitted: set[tuple[int, int]] = set()
    for event in events:
        if event.type.name == "SUBMIT":
            job = (event.cluster, event.proc)
            if job in submitted or {cluster for cluster, _ in submitted} != {event.cluster}:
                parts.append([])
                submitted = set()
            submitted.add(job)
        parts[-1].append(event)
    return parts


def _executions(events: Iterable[JobEvent]) -> list[_Execution]:
    """The executions of an attempt's jobs, in the order in which they began."""
    found: list[_Execution] = []
    latest: dict[int, int] = {}  # of each job, its place there
    for event in events:
        now, kind, proc = _time(event), event.type.name, event.proc
        if kind == "EXECUTE":
            slot = str(event.get("SlotName") or event.get("ExecuteHost"))
            latest[proc] = len(found)
            properties = _properties(event)
            found.append(_Execution(slot, now, now, proc=proc, properties=properties))
        elif proc in latest and not (last := found[latest[proc]]).is_over:
            cpu, end = _cpu_seconds(str(event.get("RunRemoteUsage", ""))), _end(event)
            is_over = kind in _ENDS
            found[latest[proc]] = replace(
                last, ended=now, cpu_seconds=cpu, is_over=is_over, end=end
            )
    return found


def _properties(event: JobEvent) -> Mapping[str, Any]:
    """What the slot says of itself, and its node: `ulog_execute_attrs` of the submit file."""
    found = event.get("ExecuteProps")
    return plain(found) if isinstance(found, Mapping) else {}


def _end(event: JobEvent) -> End:
    """How an execution ended with this event, its last so far."""
    kind = event.type.name
    if kind in _CUTS:
        return End.EVICTED
    if kind == "JOB_TERMINATED" and event.get("ReturnValue") == 0:
        return End.DONE
    return End.FAILED if kind in _ENDS else End.RUNNING


def _time(event: JobEvent) -> float:
    """Unix seconds, with the fraction that the bindings leave out of `timestamp`."""
    fraction = datetime.fromisoformat(str(event["EventTime"])).microsecond / 1e6
    return float(event.timestamp) + fraction


def _cpu_seconds(usage: str) -> float:
    """User and system time of `Usr 0 00:01:05, Sys 0 00:00:02`."""
    return float(
        sum(
            86400 * int(days) + 3600 * int(hours) + 60 * int(minutes) + int(seconds)
            for days, hours, minutes, seconds in _CPU_TIME.findall(usage)
        )
    )


def _memory_mb(events: Sequence[JobEvent]) -> float | None:
    """The peak: by proportional set size where it was measured, else by resident set size."""
    for name in ("ProportionalSetSize", "ResidentSetSize"):
        if sizes := [int(event[name]) for event in events if name in event]:
            return round(max(sizes) / 1024, 1)
    return None
