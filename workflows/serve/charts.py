"""The pictures of a region's page as SVG: what lies where. The template only draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trialfleet.objective import Direction, is_better
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.formatting import number

WIDTH, HEIGHT = 640, 240  # of a picture, in units that are pixels on a desktop
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 26  # margins: the numbers stand there
_SPREAD = 3.0  # interquartile ranges that a value may lie off; farther ones are drawn at the edge

_NAMED = 0.92  # of the lower edge has numbers; behind them stands what they are


@dataclass(frozen=True, kw_only=True)
class Point:
    """A trial in a picture, and what is said of it."""

    x: float
    y: float
    kind: str
    title: str
    node: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture.

    Attributes:
        lines: paths and their CSS classes.
        points: marks.
        x_ticks, y_ticks: places, and what is written there.
        x_name: what lies along the lower edge.
        label: the picture in words.
    """

    lines: tuple[tuple[str, str], ...]
    points: tuple[Point, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_name: str
    label: str


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value lies; values beyond the ends lie at them."""
        inside = min(self.high, max(self.low, value))
        share = (inside - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(
        self, most: int, until: float = 1.0, *, whole: bool = False
    ) -> tuple[tuple[float, str], ...]:
        """Round values up to a part of the axis: where each lies, and how it is written."""
        step = _round_step((self.high - self.low) / most)
        step = max(1.0, step) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        last = self.low + until * (self.high - self.low)
        values = [step * at for at in range(first, first + most + 2) if step * at <= last]
        return tuple((self.at(value), number(round(value, 12))) for value in values)


def history(trials: Sequence[StoredTrial], metric: str, direction: Direction) -> Chart | None:
    """Each trial's value by its number, and the best so far; None while none is complete."""
    complete = [(t, t.value) for t in trials if t.state.name == "COMPLETE" and t.value is not None]
    if not complete:
        return None
    across = _Axis(0, max(1, trials[-1].number), LEFT, WIDTH - RIGHT)
    up = _upright([value for _, value in complete])
    best = _best_so_far(complete, direction)
    final = best[-1][1]
    points = [
        Point(
            x=across.at(trial.number),
            y=up.at(value),
            kind="best" if value == final else _kind(trial),
            title=f"trial {trial.number}: {metric} {number(value)}",
            node=str(trial.user_attrs.get("node", "")),
        )
        for trial, value in complete
    ]
    points += [
        Point(
            x=across.at(trial.number),
            y=HEIGHT - BOTTOM - 6,
            kind="failed",
            title=f"trial {trial.number} failed",
            node=str(trial.user_attrs.get("node", "")),
        )
        for trial in trials
        if trial.state.name == "FAIL"
    ]
    path = f"M{across.at(best[0][0])} {up.at(best[0][1])}"
    path += "".join(f"H{across.at(at)}V{up.at(value)}" for at, value in best[1:])
    return Chart(
        lines=((f"{path}H{across.end}", "best"),),
        points=tuple(points),
        x_ticks=across.ticks(6, _NAMED, whole=True),
        y_ticks=up.ticks(5),
        x_name="trial",
        label=f"{metric} of each trial, and the best so far: {number(final)}",
    )


def curves(trials: Sequence[StoredTrial], metric: str, best: int | None) -> Chart | None:
    """The metric as trials reported it, step by step; None where none reported."""
    series = [(trial, _steps(trial)) for trial in trials]
    series = [(trial, steps) for trial, steps in series if len(steps) > 1]
    if not series:
        return None
    every = [step for _, steps in series for step, _ in steps]
    across = _Axis(min(every), max(*every, min(every) + 1), LEFT, WIDTH - RIGHT)
    up = _upright([value for _, steps in series for _, value in steps])
    series.sort(key=lambda each: (each[0].number == best, each[0].state.name == "RUNNING"))
    return Chart(
        lines=tuple((_path(steps, across, up), _line_kind(trial, best)) for trial, steps in series),
        points=(),
        x_ticks=across.ticks(6, _NAMED, whole=True),
        y_ticks=up.ticks(5),
        x_name="step",
        label=f"{metric} as {len(series)} trials reported it, step by step",
    )


def _kind(trial: StoredTrial) -> str:
    return "default" if trial.user_attrs.get("baseline") is True else "complete"


def _line_kind(trial: StoredTrial, best: int | None) -> str:
    if trial.number == best:
        return "best"
    return "running" if trial.state.name == "RUNNING" else "other"


def _steps(trial: StoredTrial) -> list[tuple[int, float]]:
    return [(s, v) for s, v in sorted(trial.intermediate_values.items()) if math.isfinite(v)]


def _path(steps: Iterable[tuple[int, float]], across: _Axis, up: _Axis) -> str:
    places = [f"{across.at(step):g} {up.at(value):g}" for step, value in steps]
    return f"M{'L'.join(places)}"


def _best_so_far(
    complete: Iterable[tuple[StoredTrial, float]], direction: Direction
) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for trial, value in complete:
        if not found or is_better(value, found[-1][1], direction):
            found.append((trial.number, value))
    return found


def _upright(values: Sequence[float]) -> _Axis:
    """An axis on which most values can be told apart: one far away does not squeeze the others."""
    ordered = sorted(values)
    quarter, three = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    room = _SPREAD * (three - quarter)
    low, high = max(ordered[0], quarter - room), min(ordered[-1], three + room)
    if not high > low:
        low, high = ordered[0], ordered[-1]
    margin = 0.06 * (high - low) or abs(high) / 20 or 1.0
    return _Axis(low - margin, high + margin, HEIGHT - BOTTOM, TOP)


def _round_step(step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step))
    return size * next(each for each in (1, 2, 5, 10) if each * size >= step * (1 - 1e-9))
