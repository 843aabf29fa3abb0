"""Lanes as a strip of time: where each trial of a region lies, as SVG paths.

A path per region and state holds all of its trials: forty regions of a hundred trials are a few
tens of kilobytes, and nothing in the page has to draw them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.serve.live import Snapshot
from trialfleet.workflows.status.causes import failed_attempts
from trialfleet.workflows.status.job_log import read_executions, stays_of
from trialfleet.workflows.status.states import TrialState, trial_state

WIDTH = 1000  # units of a strip, however many pixels that is
LANE = 6  # units of a lane's height, the gap below it included
_SHOWN = {
    TrialState.COMPLETE: "complete",
    TrialState.FAILED: "failed",
    TrialState.PRUNED: "failed",
    TrialState.RUNNING: "running",
    TrialState.HELD: "failed",
}
_SHORTEST = 2  # units of a trial, so that one that failed at once is seen


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A trial on its lane.

    Attributes:
        lane: counted from 0.
        kind: complete, failed, running or waiting.
        left, width: in units of the strip.
    """

    trial: int
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
    ticks: tuple[tuple[float, str], ...]


def strip_of(snapshot: Snapshot) -> Strip | None:
    """Return the lanes of a run's regions that have begun; None while none has."""
    trials = snapshot.look.trials
    span = span_of(snapshot, [trial for each in trials.values() for trial in each])
    if span is None:
        return None
    rows = tuple(_row(snapshot, region, span) for region in snapshot.graph.values())
    return Strip(
        begin=datetime.fromtimestamp(span[0], UTC),
        end=datetime.fromtimestamp(span[1], UTC),
        rows=tuple(row for row in rows if row.paths),
        ticks=ticks(span),
    )


def span_of(snapshot: Snapshot, trials: Iterable[StoredTrial]) -> tuple[float, float] | None:
    """Return when the first of some trials began and the last ended, in Unix seconds."""
    until = _until(snapshot)
    spans = [when for trial in trials if (when := _when(trial, until(trial)))]
    if not spans:
        return None
    begin, end = min(start for start, _ in spans), max(end for _, end in spans)
    return begin, max(end, begin + 1.0)


def bars_of(snapshot: Snapshot, region: RegionGraph, span: tuple[float, float]) -> list[Bar]:
    """Return the trials of a region that have begun, in a span of time."""
    lanes = {node: at for at, lane in enumerate(region.lanes) for node in lane}
    began, until = _began(snapshot, region.name), _until(snapshot)
    unfinished = snapshot.look.unfinished.get(region.name, {})
    scale = WIDTH / (span[1] - span[0])
    found = []
    for trial in snapshot.look.trials.get(region.name, ()):
        node = str(trial.user_attrs.get("node"))
        if node not in lanes:
            continue
        kind = _SHOWN.get(trial_state(trial.state.name, node, unfinished), "waiting")
        if kind == "waiting" and snapshot.look.status.ended and _last_failure(trial):
            kind = "failed"  # the run ended after an attempt that nobody made again
        for begin, end in _parts(trial, until(trial), began.get(node)):
            left = round((begin - span[0]) * scale)
            right = round((end - span[0]) * scale)
            width = max(_SHORTEST, right - left - 1)
            found.append(Bar(trial=trial.number, node=node, lane=lanes[node], kind=kind,
                             left=min(left, WIDTH - _SHORTEST), width=width))  # fmt: skip
    return found


def _parts(trial: StoredTrial, until: float, began: float | None) -> list[tuple[float, float]]:
    """When a trial's job executed: several times where it was evicted, or stopped and resumed."""
    stays = stays_of(trial.user_attrs.get("job") or {})
    if len(stays) > 1:
        return [(stay.began, max(stay.began, stay.ended)) for stay in stays]
    when = _when(trial, until, began)
    return [when] if when else []


def _until(snapshot: Snapshot) -> Callable[[StoredTrial], float]:
    """Until when a trial that isn't over is drawn: now, or as long as the run had to do with it."""
    now = snapshot.now.timestamp()
    if not snapshot.look.status.ended:
        return lambda _: now
    ends = [end for _, end in read_executions(snapshot.folder.dag_files.log) if end is not None]
    ended = min([now, *ends[-1:]])
    return lambda trial: _last_failure(trial) or ended


def _row(snapshot: Snapshot, region: RegionGraph, span: tuple[float, float]) -> Row:
    paths: dict[str, list[str]] = defaultdict(list)
    for bar in bars_of(snapshot, region, span):
        paths[bar.kind].append(f"M{bar.left} {bar.lane * LANE + LANE // 2}h{bar.width}")
    return Row(
        name=region.name,
        slug=region.slug,
        height=LANE * len(region.lanes),
        paths=tuple((kind, "".join(parts)) for kind, parts in sorted(paths.items())),
    )


def _began(snapshot: Snapshot, name: str) -> dict[str, float | None]:
    """When the jobs of a region began that run, by node."""
    regions = snapshot.look.status.regions
    own = next((region for region in regions if region.name == name), None)
    return {each.node: each.started for each in own.running_trials} if own else {}


def _when(
    trial: StoredTrial, until: float, began: float | None = None
) -> tuple[float, float] | None:
    """When a trial's job ran, else when it was asked for and told; `until` if it isn't over."""
    job = trial.user_attrs.get("job") or {}
    start, end = job.get("started", began), job.get("ended")
    if start is None and trial.datetime_start:
        start = trial.datetime_start.timestamp()
    if start is None:
        return None
    if end is None:
        end = trial.datetime_complete.timestamp() if trial.datetime_complete else until
    return float(start), max(float(start), float(end))


def _last_failure(trial: StoredTrial) -> float | None:
    """When the latest failed attempt of a trial was noted, in Unix seconds."""
    attempts = failed_attempts([trial])
    return max((datetime.fromisoformat(each.time).timestamp() for each in attempts), default=None)


_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def ticks(span: tuple[float, float], most: int = 6) -> tuple[tuple[float, str], ...]:
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
