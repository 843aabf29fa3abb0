"""The rows of the report's timeline, which shows the jobs of each machine over time.

A row shows one job at a time, so a machine has as many rows as jobs ran on it at once. A row is not
a slot, because HTCondor creates a slot for each job and reuses the names of slots.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from trialfleet.workflows.facts.jobs.executions import ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import PricedExecution
from trialfleet.workflows.rules.states import TrialState
from trialfleet.workflows.status.dagman_pauses import Span
from trialfleet.workflows.views.report.report_types import RegionReport, Report

TO_COME = 0.04  # of the run's time: bars of running jobs end this far after the latest event
UNKNOWN_MACHINE = "unknown machine"
FULL_TRAINING, GATE = "full training", "gate"  # as a job's state
LOST = {
    ExecutionEnd.FAILED: "failed attempt",
    ExecutionEnd.EVICTED: "cut off",
}  # executions that led to nothing
OVERLAP = 1.0  # seconds that one job's end and the next one's start may overlap in their logs


class Bar(NamedTuple):
    """One execution of a job on a machine, with times in Unix seconds.

    Attributes:
        region: the region's index in the report.
        trial: the trial's number, or None for the full training and the gate.
        state: the trial's state, "full training" or "gate". For an execution that failed or was
            interrupted, it is a value of `LOST`.
        row: the index of the bar's row, or -1 before it is known.
    """

    region: int
    trial: int | None
    state: str
    start: float
    end: float
    machine: str
    row: int = -1


@dataclass(frozen=True)
class Timeline:
    """The executions of a run's jobs over time.

    Attributes:
        rows: the machine of each row. Rows of the same machine follow each other.
        bars: the executions, at most one at a time in a row.
        pauses: the start and end of each pause of the run, in Unix seconds.
    """

    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    pauses: tuple[Span, ...]

    @property
    def jobs(self) -> int:
        """The number of different jobs."""
        return len({(bar.region, bar.trial, bar.state == GATE) for bar in self.bars})

    @property
    def lost(self) -> int:
        """The number of executions that failed or were interrupted."""
        return sum(bar.state in LOST.values() for bar in self.bars)

    @cached_property
    def start(self) -> float:
        """The start of the first job, in Unix seconds, or 0 if there are no jobs."""
        return min((bar.start for bar in self.bars), default=0.0)

    @cached_property
    def end(self) -> float:
        """The end of the last job, in Unix seconds, or 0 if there are no jobs."""
        return max((bar.end for bar in self.bars), default=0.0)

    @cached_property
    def regions(self) -> set[int]:
        """The regions that have jobs, as indices in the report."""
        return {bar.region for bar in self.bars}


def build_timeline(report: Report) -> Timeline:
    """Return the timeline of a run's jobs from its report."""
    until = _running_jobs_end(report)
    found = [
        each
        for at, region in enumerate(report.regions)
        for job in _jobs(region)
        for each in job_bars(at, *job, until)
    ]
    return lay_out(found, report.pauses)


def lay_out(found: Iterable[Bar], pauses: tuple[Span, ...] = ()) -> Timeline:
    """Return a timeline with as few rows per machine as possible."""
    machines: dict[str, _Rows] = defaultdict(_Rows)
    for each in sorted(found, key=lambda each: (each.start, each.end)):
        machines[each.machine].take(each)
    rows: list[str] = []
    bars: list[Bar] = []
    for machine in sorted(machines, key=_natural_key):
        for row in machines[machine].rows:
            bars += [Bar(*each[:-1], len(rows)) for each in row]
            rows.append(machine)
    return Timeline(tuple(rows), tuple(bars), pauses)


class _Rows:
    def __init__(self) -> None:
        self.rows: list[list[Bar]] = []
        self._taken: list[tuple[float, int]] = []  # until when, and which row
        self._free: list[int] = []

    def take(self, job: Bar) -> None:
        latest = job.start + min(OVERLAP, (job.end - job.start) / 2)
        while self._taken and self._taken[0][0] <= latest:
            heappush(self._free, heappop(self._taken)[1])
        row = heappop(self._free) if self._free else len(self.rows)
        if row == len(self.rows):
            self.rows.append([])
        self.rows[row].append(job)
        heappush(self._taken, (job.end, row))


def _running_jobs_end(report: Report) -> float:
    if report.finished is not None:
        return report.finished.timestamp()
    jobs = [each for region in report.regions for each in _jobs(region)]
    times = [time for *_, stays in jobs for stay in stays for time in (stay.began, stay.ended)]
    latest = max(times, default=0.0)
    return latest + TO_COME * (latest - min(times, default=0.0))


def job_bars(
    region_index: int,
    number: int | None,
    state: str,
    stays: Sequence[PricedExecution],
    until: float,
) -> Iterable[Bar]:
    """Yield a bar for each of a job's executions `stays`.

    `number` is the trial's number, or None for a full training or a gate. For these two, `state` is
    "full training" or "gate". The bar of an execution that still runs ends at `until`.
    """
    is_over = number is not None and TrialState(state).is_finished
    for stay in stays:  # only the last one can have the job's state
        counts = stay is stays[-1] and (is_over or not stay.end.is_lost)
        how = state if counts else LOST.get(stay.end, LOST[ExecutionEnd.FAILED])
        end = max(until, stay.ended) if stay.end is ExecutionEnd.RUNNING else stay.ended
        machine = stay.machine or UNKNOWN_MACHINE
        yield Bar(region_index, number, how, min(stay.began, end), end, machine)


def _jobs(region: RegionReport) -> Iterable[tuple[int | None, str, Sequence[PricedExecution]]]:
    for trial in region.trials:
        yield trial.trial, trial.state, trial.stays
    yield None, FULL_TRAINING, region.final_stays
    yield None, GATE, region.gate_stays


def _natural_key(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key by which node-10 comes after node-2."""
    parts = re.split(r"([0-9]+)", text)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
