"""Facts about a trial in its job's event log: times, attempts, memory, machine, cost, lost work.

If the job trains several trials, only the time in which it trained this trial counts.

Arguments of several functions:

- `price` is the price in USD per hour of a machine whose price is not in the log.
- `failed` means that the last attempt counts as failed, whatever its exit code was.
- `now` is the end of a running execution. If it is None, the execution ends at its last event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trialfleet.workflows.facts.jobs.executions import (
    Execution,
    ExecutionEnd,
    interrupted_starts,
    parse_executions,
    read_events,
    submissions,
)
from trialfleet.workflows.facts.jobs.slot_price import HOUR, INSTANCE, slot_price
from trialfleet.workflows.facts.jobs.trial_parts import read_attempts, read_parts
from trialfleet.workflows.facts.run_folder.folder import TrialFolder


@dataclass(frozen=True, kw_only=True)
class Job:
    """HTCondor's facts about the job that trained a trial; None for a fact that is not recorded.

    An attempt is one submission of the job. A job that continues from a checkpoint is still in the
    same attempt. Seconds and costs are totals of all attempts, unless the name begins with `last`.
    Times are in Unix seconds.

    Attributes:
        started: the start of the first attempt.
        ended: the end of the last attempt.
        wall_seconds: the time in which at least one job of the trial executed.
        last_wall_seconds: the `wall_seconds` of the last attempt.
        cpu_seconds: the CPU time; None if the job ended before HTCondor first measured it.
        memory_mb: the trial's maximum memory. Memory that its processes share counts once if
            HTCondor reports ProportionalSetSize.
        machine: the machine of the last attempt.
        slot: the slot of the last attempt.
        attempts: the number of attempts; 0 if unknown.
        usd: the cost of the time in slots; None if a price is unknown.
        lost_usd: the full cost of failed attempts and of interrupted executions, even if a
            checkpoint saved a part of the work.
        ranks: for a gang (jobs that train one trial together), how many jobs trained at the end.
        generations: for a gang, how often its jobs began to train together.
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
class PricedExecution:
    """One execution of a job in a slot, with its cost.

    Attributes:
        ended: when the execution ended, in Unix seconds, like all times here. A running execution
            ends at the caller's `now`.
        usd: the cost in USD; None if the machine's price is unknown.
        saved: the time up to which work was saved; None if nothing was saved.
    """

    machine: str
    instance: str | None
    began: float
    ended: float
    end: ExecutionEnd
    usd: float | None
    saved: float | None = None

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ended - self.began

    @property
    def lost_seconds(self) -> float:
        """The seconds of lost work.

        A failed execution loses all its work. An evicted execution loses its work since its last
        checkpoint.
        """
        if not self.end.is_lost:
            return 0.0
        saved = self.saved if self.end is ExecutionEnd.EVICTED else None
        return max(0.0, self.ended - max(self.began, saved or self.began))


@dataclass(frozen=True, kw_only=True)
class JobNotes(Job):
    """A job and its executions, as stored in job.json or in the trial database."""

    stays: list[PricedExecution] = field(default_factory=list)


def read_job(place: TrialFolder, price: float | None = None, *, failed: bool = False) -> Job | None:
    """Return the facts about the job that trained a trial; None if the job never executed."""
    attempts = read_attempts(place)
    if not attempts:
        return None
    executions = [execution for attempt in attempts for execution in attempt]
    last = max(_last_of_each(attempts[-1]), key=lambda execution: execution.ended)
    stays = _build_stays(attempts, price, failed=failed)
    usd = total_cost(stays)
    return Job(
        started=executions[0].began,
        ended=last.ended,
        wall_seconds=round(_wall_seconds(executions), 3),
        last_wall_seconds=round(_wall_seconds(attempts[-1]), 3),
        cpu_seconds=sum(execution.cpu_seconds for execution in executions) or None,
        memory_mb=_most_memory(place, executions),
        machine=last.machine,
        slot=last.slot,
        attempts=len(attempts),
        usd=usd,
        lost_usd=None if usd is None else total_cost(s for s in stays if s.end.is_lost),
    )


def parse_stays(noted: Mapping[str, Any]) -> list[PricedExecution]:
    """Return the executions in `noted`, the stored content of a `JobNotes`."""
    return [
        PricedExecution(**{**stay, "end": ExecutionEnd(stay["end"])})
        for stay in noted.get("stays", ())
    ]


def read_stays(
    place: TrialFolder,
    price: float | None = None,
    *,
    failed: bool = False,
    now: float | None = None,
) -> list[PricedExecution]:
    """Return the executions of a trial in all its attempts, oldest first."""
    return _build_stays(read_attempts(place), price, failed=failed, now=now)


def read_between_trials(
    log: Path, price: float | None = None, *, now: float | None = None
) -> list[PricedExecution]:
    """Return the parts of a job's executions in which the job trained no trial."""
    found = _end_running(now, read_parts(log).between)
    prices = _prices(found, price)
    return [_build_stay(each, prices, each.end, each.saved) for each in found]


def _end_running(now: float | None, executions: Sequence[Execution]) -> Sequence[Execution]:
    if now is None:
        return executions
    last = _last_of_each(executions)
    return [
        each._replace(ended=now) if each in last and not each.is_over else each
        for each in executions
    ]


def total_cost(stays: Iterable[PricedExecution]) -> float | None:
    """Return the total cost of `stays` in USD; None if one of the costs is unknown."""
    known = [stay.usd for stay in stays]
    return None if None in known else round(sum(each or 0.0 for each in known), 9)


def read_executions(log: Path) -> list[tuple[float, float | None]]:
    """Return start and end of each execution in a job's event log, in Unix seconds, oldest first.

    The last end is infinite if the job may still run. Another end is None if it isn't in the log.
    """
    executions = [each for part in submissions(read_events(log)) for each in parse_executions(part)]
    spans = [(each.began, each.ended if each.ended_by else None) for each in executions]
    if spans and spans[-1][1] is None:
        spans[-1] = (spans[-1][0], math.inf)
    return spans


def read_removals(log: Path) -> list[float]:
    """Return when the jobs in an event log were removed, in Unix seconds, oldest first."""
    return [event.time for event in read_events(log) if event.kind == "JOB_ABORTED"]


def first_failure(log: Path) -> int | None:
    """Return the first nonzero exit code in a log's last attempt; None if there is none."""
    for event in submissions(read_events(log))[-1]:
        if event.kind == "JOB_TERMINATED" and event.get("ReturnValue"):
            return int(event.get("ReturnValue"))
    return None


def last_job(log: Path) -> str:
    """Return the id of a log's last job, such as 12.0; empty if the log has no job."""
    events = submissions(read_events(log))[-1]
    return f"{events[0].cluster}.{events[0].proc}" if events else ""


def read_starts(place: TrialFolder) -> list[Execution]:
    """Return the starts of a trial's job in the trial's last attempt, oldest first.

    Starts that were interrupted before the job executed have no slot and last 0 s. They are left
    out if the job trains several trials.
    """
    if place.is_shared:
        return (read_attempts(place) or [[]])[-1]
    events = submissions(read_events(place.log))[-1]
    starts = [*parse_executions(events), *interrupted_starts(events)]
    return sorted(starts, key=lambda start: start.began)


def is_executing(place: TrialFolder) -> bool:
    """Return whether a trial is being trained now, according to the log of its job."""
    return any(not each.is_over for each in read_starts(place))


def _build_stays(
    attempts: Sequence[Sequence[Execution]],
    price: float | None,
    *,
    failed: bool = False,
    now: float | None = None,
) -> list[PricedExecution]:
    """Return the executions with their costs; all attempts but the last count as failed."""
    prices = _prices((each for attempt in attempts for each in attempt), price)
    stays = []
    for at, attempt in enumerate(attempts, 1):
        is_last = at == len(attempts)
        without_result = failed or not is_last
        # The log doesn't have a gang's checkpoints.
        is_gang = len({execution.proc for execution in attempt}) > 1
        for execution in _end_running(now, attempt) if is_last else attempt:
            was_done = execution.end in {ExecutionEnd.DONE, ExecutionEnd.RUNNING}
            end = ExecutionEnd.FAILED if without_result and was_done else execution.end
            saved = execution.ended if is_gang else execution.saved
            stays.append(_build_stay(execution, prices, end, saved))
    return stays


def _prices(executions: Iterable[Execution], price: float | None) -> dict[int, float | None]:
    """Return the price of each execution's slot in USD per hour; None for an unknown price.

    The keys are `id(execution.properties)`, because a mapping can't be a key.
    """
    slots = {id(each.properties): each.properties for each in executions}
    return {slot: slot_price(properties, price) for slot, properties in slots.items()}


def _build_stay(
    execution: Execution, prices: Mapping[int, float | None], end: ExecutionEnd, saved: float | None
) -> PricedExecution:
    hourly = prices[id(execution.properties)]
    instance = execution.properties.get(INSTANCE)
    return PricedExecution(
        machine=execution.machine,
        instance=instance if isinstance(instance, str) else None,
        began=execution.began,
        ended=execution.began + execution.seconds,
        end=end,
        usd=None if hourly is None else hourly * execution.seconds / HOUR,
        saved=saved,
    )


def _last_of_each(executions: Iterable[Execution]) -> list[Execution]:
    return [*{execution.proc: execution for execution in executions}.values()]


def _wall_seconds(executions: Sequence[Execution]) -> float:
    """Return for how many seconds at least one of the executions ran."""
    if len({execution.proc for execution in executions}) <= 1:
        return sum(execution.seconds for execution in executions)
    seconds, until = 0.0, -math.inf
    for each in sorted(executions, key=lambda execution: execution.began):
        seconds += max(0.0, each.ended - max(each.began, until))
        until = max(until, each.ended)
    return seconds


def _most_memory(place: TrialFolder, executions: Iterable[Execution]) -> float | None:
    """Return a trial's maximum memory in MB; None if unknown."""
    if place.is_shared:
        known = [each.memory_mb for each in executions if each.memory_mb is not None]
        return max(known, default=None)
    events = read_events(place.log)
    for name in ("ProportionalSetSize", "ResidentSetSize"):
        if sizes := [int(size) for event in events if (size := event.get(name)) is not None]:
            return round(max(sizes) / 1024, 1)
    return None
