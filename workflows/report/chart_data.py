"""What the page's script draws: the numbers behind each picture, once per region, as plain JSON.

Columns instead of rows and seven digits instead of seventeen keep fifty regions in a small file.
The script looks up everything else: colours, texts over a point, axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trialfleet.objective import Direction, best
from trialfleet.optimizer.downsampling import thinned
from trialfleet.workflows.formatting import BETTER, is_finite, setting, shortened, signed, usd
from trialfleet.workflows.report.model import ParameterRange, RegionReport, Report, Setting, Trial
from trialfleet.workflows.report.scales import Scale, scale_of, short
from trialfleet.workflows.report.summary import report_decimals
from trialfleet.workflows.report.timeline import Timeline

MOST_PARAMETERS = 12  # drawn one by one
PAIR_TRIALS = 12  # below this, a smoothed surface would be an invention
SCATTER_TRIALS = 3
FAR_REGION = 40.0  # a region is far from the others only beyond this: each should be in view
CHOICE_LENGTH = 40
ERROR_LENGTH = 90
CURVE_POINTS = 40_000  # of all curves of the page, together
FLEET = "fleet: boot, idle"  # the bar of what no job had of the nodes
CURVE_LEAST, CURVE_MOST = 8, 100  # of one curve


@dataclass(frozen=True)
class Pair:
    """How the two leading parameters are drawn together: "contour", "scatter" or not at all."""

    kind: str | None
    names: tuple[str, ...]
    trials: int


def overview_data(report: Report) -> dict[str, Any]:
    """The regions to compare: places in the report, values, gains; and how to lay them out.

    Gains also as people read them, as in the table of regions.
    """
    decimals = report_decimals(report)
    rows = [
        (at, row)
        for at, row in enumerate(report.regions)
        if row.report.default is not None or row.report.tuned is not None
    ]
    return {
        "metric": report.report_metric,
        "better": BETTER[report.report_direction],
        "scale": _scale(scale_of_overview(report)),
        "gainScale": _scale(scale_of_gains(report)),
        "rows": [
            {
                "region": at,
                "name": row.name,
                "slug": row.slug,
                "default": short(row.report.default),
                "tuned": short(row.report.tuned),
                "gain": short(row.report.gain),
                "told": "" if row.report.gain is None else signed(row.report.gain, decimals),
                "final": short(row.final_metric),
            }
            for at, row in rows
        ],
    }


def scale_of_overview(report: Report) -> Scale | None:
    """How tuned and default values are laid out; None without any."""
    pairs = [(row.report.default, row.report.tuned) for row in report.regions]
    values = [value for pair in pairs for value in pair if value is not None]
    return scale_of(values, median(values), FAR_REGION) if values else None


def scale_of_gains(report: Report) -> Scale:
    """How gains are laid out, around zero; they have a sign, so never by logarithms."""
    gains = [row.report.gain for row in report.regions if row.report.gain is not None]
    return scale_of([0.0, *gains], 0.0, FAR_REGION)


def costs_data(report: Report) -> dict[str, Any]:
    """What each region's jobs cost, in USD, and what no job had of the fleet's nodes."""
    regions = [
        _cost_row(row.name, row.usd, _parts_of_cost(row), region=at, slug=row.slug)
        for at, row in enumerate(report.regions)
        if row.usd
    ]
    overhead = (0.0, 0.0, 0.0, report.boot_usd or 0.0, report.idle_usd or 0.0)
    fleet = _cost_row(FLEET, sum(overhead), overhead, region=None, slug=None)
    return {"rows": [*regions, *([fleet] if sum(overhead) else [])]}


def _cost_row(
    name: str, whole: float, parts: Sequence[float], *, region: int | None, slug: str | None
) -> dict[str, Any]:
    """A bar: its parts' places are those of the page's COSTS; amounts also as people read them."""
    return {
        "region": region,
        "name": name,
        "slug": slug,
        "usd": short(whole),
        "parts": [short(amount) for amount in parts],
        "told": [usd(amount) for amount in (whole, *parts)],
    }


def _parts_of_cost(region: RegionReport) -> tuple[float, float, float]:
    """Trials, full training and gate, and what was lost of either; together all that is known.

    The time of jobs between their trials is the trials'.
    """
    jobs = [*region.trials, *([region.final_job] if region.final_job else [])]
    lost = sum(job.lost_usd or 0.0 for job in jobs)
    trials = sum((trial.usd or 0.0) - (trial.lost_usd or 0.0) for trial in region.trials)
    trials += region.between_usd or 0.0
    return trials, max(0.0, (region.usd or 0.0) - trials - lost), lost


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """The machines' rows, jobs and pauses; times in seconds from `start`, the first of them."""
    start = timeline.start
    states = sorted({bar.state for bar in timeline.bars})
    return {
        "start": start,
        "end": short(timeline.end - start),
        "rows": list(timeline.rows),
        "pauses": [[short(round(at - start, 1)) for at in pause] for pause in timeline.pauses],
        "states": states,
        "bars": [
            [
                bar.region,
                bar.trial,
                states.index(bar.state),
                short(round(bar.start - start, 1)),
                short(round(bar.end - start, 1)),
                bar.row,
            ]
            for bar in timeline.bars
        ],
    }


def region_data(region: RegionReport, points: int) -> dict[str, Any]:
    """A region's trials as columns, its parameters, and how to lay out its objective.

    Args:
        region: the region.
        points: how many points of each learning curve to keep.
    """
    drawn = drawn_parameters(region)
    known = {item.name: item for item in region.settings}
    trials = region.trials
    curves = {t.number: thinned(t.curve, points) for t in trials if len(t.curve) > 1}
    return {
        "metric": region.objective.metric,
        "better": BETTER[region.objective.direction],
        "best": region.best_trial,
        "baseline": region.baseline_trial,
        "default": short(region.objective.default),
        "scale": _scale(scale_of_region(region)),
        "curveScale": _scale(scale_of_curves(region)),
        "importance": [
            [item.parameter, short(item.share), item.trials] for item in region.importance
        ],
        "parameters": [_parameter(known[name]) for name in drawn],
        "pair": [drawn.index(name) for name in pair_of(region).names],
        "number": [trial.number for trial in trials],
        "state": [trial.state for trial in trials],
        "value": [short(trial.objective) for trial in trials],
        "params": [[_place(known[name], trial) for trial in trials] for name in drawn],
        "errors": {t.number: shortened(t.error, ERROR_LENGTH) for t in trials if t.error},
        "curves": {
            number: [[step for step, _ in curve], [short(value) for _, value in curve]]
            for number, curve in curves.items()
        },
    }


def scale_of_region(region: RegionReport) -> Scale | None:
    """How the objective is laid out in all pictures of a region; None without any value."""
    values = [trial.objective for trial in region.trials if trial.objective is not None]
    return _anchored(values, region.objective.direction)


def scale_of_curves(region: RegionReport) -> Scale | None:
    """How the learning curves are laid out; None without any."""
    curves = [trial.curve for trial in region.trials if len(trial.curve) > 1]
    return _anchored([v for curve in curves for _, v in curve], region.objective.direction)


def _anchored(values: Sequence[float], direction: Direction) -> Scale | None:
    anchor = best(values, direction, lambda value: value)
    return None if anchor is None else scale_of(values, anchor)


def _scale(scale: Scale | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    view = None if scale.view is None else [short(end) for end in scale.view]
    return {"view": view}


def drawn_parameters(region: RegionReport) -> list[str]:
    """The parameters that are drawn: searched ones, most important first, up to twelve."""
    having = {name for t in region.trials if t.objective is not None for name in t.params}
    names = [name for name, item in region.ranges.items() if not item.single and name in having]
    order = {item.parameter: at for at, item in enumerate(region.importance)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))[:MOST_PARAMETERS]


def pair_of(region: RegionReport) -> Pair:
    """The two leading parameters that enough trials have, and how to draw them."""
    names = drawn_parameters(region)[:2]
    if len(names) < 2:
        return Pair(None, (), 0)
    ranges = region.ranges
    trials = sum(
        t.objective is not None and all(name in t.params for name in names) for t in region.trials
    )
    if trials < SCATTER_TRIALS:
        return Pair(None, (), trials)
    smooth = trials >= PAIR_TRIALS and all(ranges[name].choices is None for name in names)
    return Pair("contour" if smooth else "scatter", tuple(names), trials)


def _parameter(item: Setting) -> dict[str, Any]:
    range_ = item.range
    assert range_ is not None, item
    if range_.choices is not None:
        choices = [shortened(setting(choice), CHOICE_LENGTH) for choice in range_.choices]
        return {"name": item.name, "choices": choices}
    whole = isinstance(range_.low, int)
    return {
        "name": item.name,
        "low": range_.low,
        "high": range_.high,
        "log": range_.log,
        "whole": whole,
    }


def _place(item: Setting, trial: Trial) -> float | None:
    if trial.objective is None and item.name not in trial.params:
        return None
    assert item.range is not None, item
    return coordinate(trial.params.get(item.name), item.range)


def coordinate(value: Any, range_: ParameterRange) -> float | None:
    """Where a parameter's value lies on its axis: itself, or its choice's place; None if nowhere.

    1, 1.0 and True are three choices.
    """
    if range_.choices is None:
        return short(value) if is_finite(value) else None
    same = (
        at
        for at, choice in enumerate(range_.choices)
        if type(choice) is type(value) and choice == value
    )
    return next(same, None)


def curve_points(report: Report) -> int:
    """How many points of each learning curve the page keeps: fewer where there are many curves."""
    curves = sum(len(trial.curve) > 1 for region in report.regions for trial in region.trials)
    return max(CURVE_LEAST, min(CURVE_MOST, CURVE_POINTS // max(1, curves)))


def has_curves(region: RegionReport) -> bool:
    """Whether a trial reported at least two steps: less is no curve."""
    return any(len(trial.curve) > 1 for trial in region.trials)


def parameters_not_drawn(region: RegionReport) -> int:
    """How many searched parameters are left out of the pictures."""
    searched: Mapping[str, ParameterRange] = region.ranges
    return sum(not item.single for item in searched.values()) - len(drawn_parameters(region))
