"""Lanes as a strip of time: where each trial of a region lies, as SVG paths.

A path per region and state holds all of its trials: forty regions of a hundred trials are a few
tens of kilobytes, and nothing in the page has to draw them. The full training and the gate lie on
a lane of their own, below those of the trials.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trialfleet import job_files
from trialfleet.optimizer.stored_trials import StoredTrial, is_stopped_early
from trialfleet.workflows.jobs.job_log import read_executions, stays_of
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.serve.live import Snapshot
from trialfleet.workflows.status.causes import failed_attempts
from trialfleet.workflows.status.states import TrialState, trial_state
from trialfleet.workflows.trial_names import range_of

WIDTH = 1000  # units of a strip, however many pixels that is
LANE = 6  # units of a lane's height, the gap below it included
_SHOWN = {
    TrialState.COMPLETE: "complete",
    TrialState.FAILED: "failed",
    TrialState.STOPPED_EARLY: "complete",
    TrialState.PRUNED: "failed",
    TrialState.RUNNING: "running",
    TrialState.HELD: "failed",
}
_MOST_KNOWN = 5_000  # regions whose finished trials are kept
_SHORTEST = 2  # units of a trial, so that one that failed at once is seen


Ticks = tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A trial on its lane, or what comes behind the trials on the last one.

    Attributes:
        title: what it is.
        lane: counted from 0.
        kind: complete, failed, running or waiting; full-training or gate.
        left, width: in units of the strip.
    """

    title: str
    node: str
    lane: int
    kind: str
    left: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """The lanes of a region: a path for each kind of trial."""

    name: str
    slug: str
    height: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """All regions' lanes over one span of time.

    Attributes:
        begin, end: of the span.
        ticks: places along it and what is written there.
    """

    begin: datetime
    end: datetime
    rows: tuple[Row, ...]
    ticks: Ticks


def strip_of(snapshot: Snapshot) -> Strip | None:
    """Return the lanes of a run's regions that have begun; None while none has."""
    jobs = [(region, _jobs(snapshot, region)) for region in snapshot.graph.values()]
    span = _span([job for _, each in jobs for job in each])
    if span is None:
        return None
    return Strip(
        begin=datetime.fromtimestamp(span[0], UTC),
        end=datetime.fromtimestamp(span[1], UTC),
        rows=tuple(_row(region, each, span) for region, each in jobs if each),
        ticks=ticks(span),
    )


def bars_of(snapshot: Snapshot, region: RegionGraph) -> tuple[tuple[Bar, ...], Ticks]:
    """Return what has begun of a region, over the time that it took, and the times along that."""
    jobs = _jobs(snapshot, region)
    span = _span(jobs)
    if span is None:
        return (), ()
    places = [_place(job, span) for job in jobs]
    bars = (
        Bar(title=job.title, node=job.node, lane=job.lane, kind=job.kind, left=left, width=width)
        for job, (left, width) in zip(jobs, places, strict=True)
    )
    return tuple(bars), ticks(span)


def height_of(region: RegionGraph) -> int:
    """Return the height of a region's lanes, in units of the strip."""
    return LANE * (len(region.lanes) + region.publishes)


class _Job(NamedTuple):
    """A job of a region and when it ran, in Unix seconds."""

    start: float
    end: float
    title: str
    node: str
    lane: int
    kind: str


_Span = tuple[float, float]


def _span(jobs: Sequence[_Job]) -> _Span | None:
    """When the first of some jobs began and the last ended."""
    if not jobs:
        return None
    begin = min([job.start for job in jobs])
    return begin, max(*[job.end for job in jobs], begin + 1.0)


def _place(job: _Job, span: _Span) -> tuple[int, int]:
    """Where a job begins on the strip, and how wide it is."""
    begin, scale = span[0], WIDTH / (span[1] - span[0])
    left = round((job.start - begin) * scale)
    width = round((job.end - begin) * scale) - left - 1
    return min(left, WIDTH - _SHORTEST), max(_SHORTEST, width)


def _row(region: RegionGraph, jobs: Sequence[_Job], span: _Span) -> Row:
    paths: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        left, width = _place(job, span)
        paths[job.kind].append(f"M{left} {job.lane * LANE + LANE // 2}h{width}")
    return Row(
        name=region.name,
        slug=region.slug,
        height=height_of(region),
        paths=tuple((kind, "".join(parts)) for kind, parts in sorted(paths.items())),
    )


# The jobs of finished trials, by run and region: a trial that is finished stays as it is.
_known: dict[tuple[Path, str], dict[int, tuple[StoredTrial, tuple[_Job, ...]]]] = {}


def _jobs(snapshot: Snapshot, region: RegionGraph) -> list[_Job]:
    """The trials of a region that have begun, its full training and its gate."""
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    known = _known.setdefault((snapshot.folder.root, region.slug), {})
    until, began = _until(snapshot), _began(snapshot, region.name)
    jobs: list[_Job] = []
    for trial in snapshot.look.trials.get(region.name, ()):
        made = known.get(trial.number)
        if made is None or made[0] is not trial:
            made = trial, _jobs_of(snapshot, region, trial, until, began)
            if trial.state.is_finished():
                known[trial.number] = made
        jobs += made[1]
    return [*jobs, *_ends(snapshot, region, snapshot.now.timestamp(), began)]


def _jobs_of(
    snapshot: Snapshot,
    region: RegionGraph,
    trial: StoredTrial,
    until: Callable[[StoredTrial], float],
    began: Mapping[str, float | None],
) -> tuple[_Job, ...]:
    """The times at which a trial ran: several where it was evicted, or stopped and resumed."""
    node = str(trial.user_attrs.get("node"))
    lane = _lanes(region).get(range_of(node).lane)
    if lane is None:
        return ()
    unfinished = snapshot.look.unfinished.get(region.name, {})
    kind = _SHOWN.get(
        trial_state(trial.state.name, node, unfinished, stopped_early=is_stopped_early(trial)),
        "waiting",
    )
    if kind == "waiting" and snapshot.look.status.ended and _last_failure(trial):
        kind = "failed"  # the run ended after an attempt that nobody made again
    title = f"trial {trial.number}: {kind}"
    stays = stays_of(trial.user_attrs.get("job") or {})
    if len(stays) > 1:
        parts = [(stay.began, max(stay.began, stay.ended)) for stay in stays]
    else:
        when = trial.ran or _so_far(trial, until(trial), began.get(node))
        parts = [when] if when else []
    return tuple(_Job(*part, title, node, lane, kind) for part in parts)


def _until(snapshot: Snapshot) -> Callable[[StoredTrial], float]:
    """Until when a trial that isn't over is drawn: now, or as long as the run had to do with it."""
    now = snapshot.now.timestamp()
    if not snapshot.look.status.ended:
        return lambda _: now
    ends = [end for _, end in read_executions(snapshot.folder.dag_files.log) if end is not None]
    ended = min([now, *ends[-1:]])
    return lambda trial: _last_failure(trial) or ended


@lru_cache(maxsize=1024)
def _lanes(region: RegionGraph) -> dict[str, int]:
    """The place of each lane, by its name."""
    return {range_of(lane[0]).lane: at for at, lane in enumerate(region.lanes)}


def _ends(
    snapshot: Snapshot, region: RegionGraph, now: float, began: Mapping[str, float | None]
) -> Iterator[_Job]:
    """The full training and the gate's job: while they run, and how they ran."""
    files = snapshot.folder.region(region.slug)
    for kind, node, place in (
        ("full-training", region.best, files.best),
        ("gate", region.gate, files.gate),
    ):
        start = began.get(node)
        when = (start, max(start, now)) if start is not None else _noted(place.job)
        if when:
            yield _Job(*when, kind.replace("-", " "), node, len(region.lanes), kind)


def _noted(file: Path) -> tuple[float, float] | None:
    stamp = job_files.stamp_of(file)
    return _when_of_job(file, stamp) if any(stamp) else None


@lru_cache(maxsize=4096)
def _when_of_job(file: Path, _stamp: tuple[int, int]) -> tuple[float, float] | None:
    """When a job ran, as its folder has it; read once."""
    try:
        found = job_files.read_json(file, job_files.MOST_NOTES)
        start, end = found.get("started"), found.get("ended")
    except (OSError, ValueError, AttributeError):
        return None
    return None if start is None or end is None else (float(start), max(float(start), float(end)))


def _began(snapshot: Snapshot, name: str) -> dict[str, float | None]:
    """When the jobs of a region began that run, by node."""
    regions = snapshot.look.status.regions
    own = next((region for region in regions if region.name == name), None)
    return {each.node: each.started for each in own.running_trials} if own else {}


def _so_far(trial: StoredTrial, until: float, began: float | None) -> _Span | None:
    """Since when a trial that isn't over has run, or waits."""
    start = began
    if start is None and trial.datetime_start:
        start = trial.datetime_start.timestamp()
    return None if start is None else (start, max(start, until))


def _last_failure(trial: StoredTrial) -> float | None:
    """When the latest failed attempt of a trial was noted, in Unix seconds."""
    attempts = failed_attempts([trial])
    return max((datetime.fromisoformat(each.time).timestamp() for each in attempts), default=None)


_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def ticks(span: tuple[float, float], most: int = 6) -> Ticks:
    """Return round times within a span: percent of it, and the time of day here."""
    length = span[1] - span[0]
    step = next(
        (step for step in _STEPS if length / step <= most), 86400 * (1 + int(length / 86400 / most))
    )
    offset = datetime.fromtimestamp(span[0]).astimezone().utcoffset()
    shift = offset.total_seconds() if offset else 0.0
    first = -int(-(span[0] + shift) // step) * step - shift
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43200 else "%d %b"
    places = [first + step * at for at in range(most + 1) if first + step * at <= span[1]]
    return tuple(
        (
            round(100 * (at - span[0]) / length, 2),
            f"{datetime.fromtimestamp(at).astimezone():{form}}",
        )
        for at in places
    )
