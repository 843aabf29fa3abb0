"""Which slot ran what, and when: the rows of the report's timeline."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from trialfleet.workflows.report.model import Region, Report
from trialfleet.workflows.status.job_log import Job
from trialfleet.workflows.status.states import TrialState

TO_COME = 0.04  # of a run that goes on: so far past the latest news are jobs drawn that still run
OVERLAP = 1.0  # seconds that HTCondor's whole seconds may let two jobs of one slot overlap


@dataclass(frozen=True)
class Bar:
    """One job on its slot; times are Unix seconds.

    Attributes:
        region: the region's place in the report.
        trial: the trial's number; None for the full training.
        state: the trial's state.
        start: when its last attempt began: earlier ones may have run elsewhere.
        end: when it ended.
        row: its row in the timeline.
    """

    region: int
    trial: int | None
    state: str
    start: float
    end: float
    row: int


@dataclass(frozen=True)
class Timeline:
    """Every job whose time is known, on rows that have a name each."""

    rows: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def start(self) -> float:
        """When the first job began."""
        return min((bar.start for bar in self.bars), default=0.0)

    @property
    def end(self) -> float:
        """When the last job ended."""
        return max((bar.end for bar in self.bars), default=0.0)

    @property
    def regions(self) -> dict[int, int]:
        """How many rows the jobs of each region take, by its place in the report."""
        rows: dict[int, set[int]] = defaultdict(set)
        for bar in self.bars:
            rows[bar.region].add(bar.row)
        return {region: len(taken) for region, taken in rows.items()}


@dataclass(frozen=True)
class _Run:
    region: int
    trial: int | None
    state: str
    start: float
    end: float
    place: str


def timeline_of(report: Report) -> Timeline:
    """A row per slot, more where jobs of one overlap (as where only the machine is known)."""
    until = _until(report)
    lanes: dict[str, list[list[_Run]]] = defaultdict(list)
    runs = [run for at, region in enumerate(report.regions) for run in _runs(at, region, until)]
    for run in sorted(runs, key=lambda run: (run.start, run.end)):
        free = (lane for lane in lanes[run.place] if lane[-1].end <= run.start + OVERLAP)
        lane = next(free, None)
        if lane is None:
            lanes[run.place].append(lane := [])
        lane.append(run)
    rows: list[str] = []
    bars: list[Bar] = []
    for place in sorted(lanes, key=_natural):
        for at, lane in enumerate(lanes[place]):
            bars += [
                Bar(run.region, run.trial, run.state, run.start, run.end, len(rows)) for run in lane
            ]
            rows.append(place if at == 0 else f"{place} ({at + 1})")
    return Timeline(tuple(rows), tuple(bars))


def _until(report: Report) -> float:
    """When jobs that still run are drawn to end."""
    if report.finished is not None:
        return report.finished.timestamp()
    jobs = [job for region in report.regions for _, _, job in _jobs(region)]
    times = [time for job in jobs for time in (job.started, job.ended) if time is not None]
    latest = max(times, default=0.0)
    return latest + TO_COME * (latest - min(times, default=0.0))


def _runs(at: int, region: Region, until: float) -> Iterable[_Run]:
    for number, state, job in _jobs(region):
        if job.started is None:
            continue
        end = job.ended
        if end is None:
            runs = state == TrialState.RUNNING
            end = max(until, job.started) if runs else job.started + (job.wall_seconds or 0.0)
        start = job.started
        if job.ended is not None and job.last_wall_seconds is not None:
            start = max(start, job.ended - job.last_wall_seconds)
        place = job.slot or job.machine or "unknown slot"
        yield _Run(at, number, state, min(start, end), end, place)


def _jobs(region: Region) -> Iterable[tuple[int | None, str, Job]]:
    for trial in region.trials:
        yield trial.number, trial.state, trial
    if region.final_job is not None:
        yield None, "full training", region.final_job


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """Slots by host, then by number: slot1_10@a after slot1_2@a."""
    slot, _, host = text.rpartition("@")
    parts = re.split(r"([0-9]+)", f"{host} {slot}")
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
