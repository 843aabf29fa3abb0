"""JSON data of charts and tables of trials, for the scripts of the report and the live page.

Each region has one block of data. The block has a list for each column of the table of trials, and
its numbers have few digits. So the report's file stays small even with hundreds of regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from trialfleet.objective import best
from trialfleet.optimizer.learning_curve_points import downsample
from trialfleet.workflows.cleaning import is_finite
from trialfleet.workflows.formatting import (
    BETTER,
    alike_form,
    column_decimals,
    setting,
    shorten,
    signed_number,
    uniform_format,
    usd,
)
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.views.report.report_numbers import (
    cost_parts,
    positive_parts,
    report_decimals,
)
from trialfleet.workflows.views.report.report_types import Comparison, RegionReport, Report, Setting
from trialfleet.workflows.views.report.scales import (
    Scale,
    choose_scale,
    clipped_range,
    round_for_chart,
)
from trialfleet.workflows.views.report.timeline import Timeline

MOST_PARAMETERS = 12  # drawn one by one
PAIR_TRIALS = 12  # with fewer trials, a smoothed surface would be meaningless
SCATTER_TRIALS = 3
FAR_REGION = 40.0  # times the median distance: as many regions as possible should be in view
CHOICE_LENGTH = 40
ERROR_LENGTH = 90
CURVE_POINTS = 40_000  # of all curves of the page together
COST_COLORS = {  # of a bar's parts, as names in the theme
    "trials": "tuned",
    "full training and gate": "default",
    "lost": "failed",
    "boot": "running",
    "idle": "rule",
}
CURVE_LEAST, CURVE_MOST = 8, 100  # of one curve


@dataclass(frozen=True)
class Pair:
    """The chart of the two most important parameters.

    Attributes:
        kind: "contour" or "scatter", or None if there is no chart.
        trials: the number of completed trials that have both parameters.
    """

    kind: str | None
    names: tuple[str, ...]
    trials: int


def overview_data(report: Report) -> dict[str, Any]:
    """Return the values and the axes' scales of the chart that compares regions."""
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
                "default": round_for_chart(row.report.default),
                "tuned": round_for_chart(row.report.tuned),
                "gain": round_for_chart(row.report.gain),
                "gain_text": ""
                if row.report.gain is None
                else signed_number(row.report.gain, decimals),
                "final": round_for_chart(row.final_metric),
            }
            for at, row in rows
        ],
    }


def scale_of_overview(report: Report) -> Scale | None:
    """Return the scale for all regions' tuned and default values, or None if no value is known."""
    pairs = [(row.report.default, row.report.tuned) for row in report.regions]
    values = [value for pair in pairs for value in pair if value is not None]
    return choose_scale(values, median(values), FAR_REGION) if values else None


def scale_of_gains(report: Report) -> Scale:
    """Return the scale for gains, which can't be logarithmic because it includes zero."""
    gains = [row.report.gain for row in report.regions if row.report.gain is not None]
    return choose_scale([0.0, *gains], 0.0, FAR_REGION)


class CostBar(NamedTuple):
    """A bar of the chart of costs.

    `place` is the region's index in the report, or None for the cost of nodes without a job.
    `parts` has each part of the cost in USD by its name, such as "trials", without zeros.
    """

    place: int | None
    usd: float
    parts: dict[str, float]

    @property
    def parts_text(self) -> str:
        """The parts of the cost as text."""
        return ", ".join(f"{name}: {usd(amount)}" for name, amount in self.parts.items())


def cost_bars(report: Report) -> list[CostBar]:
    """Return the bars of the chart of costs, without empty ones.

    The most expensive region comes first. The cost of nodes without a job comes last.
    """
    regions = enumerate(report.regions)
    bars = [CostBar(at, row.usd, cost_parts(row)) for at, row in regions if row.usd]
    bars.sort(key=lambda bar: -bar.usd)
    boot, idle = report.boot_usd or 0.0, report.idle_usd or 0.0
    fleet = CostBar(None, boot + idle, positive_parts({"boot": boot, "idle": idle}))
    return [*bars, *([fleet] if fleet.usd else [])]


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline's rows, bars and pauses, with times in seconds since `timeline.start`."""
    start = timeline.start
    states = sorted({bar.state for bar in timeline.bars})
    return {
        "start": start,
        "end": round_for_chart(timeline.end - start),
        "rows": list(timeline.rows),
        "pauses": [
            [round_for_chart(round(at - start, 1)) for at in pause] for pause in timeline.pauses
        ],
        "states": states,
        "bars": [
            [
                bar.region,
                bar.trial,
                states.index(bar.state),
                round_for_chart(round(bar.start - start, 1)),
                round_for_chart(round(bar.end - start, 1)),
                bar.row,
            ]
            for bar in timeline.bars
        ],
    }


class Pictures:
    """The data that several charts of a region share."""

    def __init__(self, region: RegionReport) -> None:
        self.region = region

    @cached_property
    def searched_parameters(self) -> list[str]:
        """The parameters whose range has more than one value, the most important first."""
        region = self.region
        names = [name for name, item in region.ranges.items() if not item.single]
        order = {item.parameter: at for at, item in enumerate(region.importance)}
        return sorted(names, key=lambda name: (order.get(name, len(order)), name))

    @cached_property
    def charted_parameters(self) -> list[str]:
        """The parameters with a chart: the twelve most important parameters of completed trials."""
        having = {name for t in self.region.trials if t.value is not None for name in t.params}
        return [name for name in self.searched_parameters if name in having][:MOST_PARAMETERS]

    @cached_property
    def pair(self) -> Pair:
        """The chart of the two most important parameters."""
        names = self.charted_parameters[:2]
        if len(names) < 2:
            return Pair(None, (), 0)
        trials = sum(
            t.value is not None and all(name in t.params for name in names)
            for t in self.region.trials
        )
        if trials < SCATTER_TRIALS:
            return Pair(None, (), trials)
        ranges = self.region.ranges
        smooth = trials >= PAIR_TRIALS and all(ranges[name].choices is None for name in names)
        return Pair("contour" if smooth else "scatter", tuple(names), trials)

    @cached_property
    def curves(self) -> list[Trial]:
        """The trials that reported values at two or more steps, and so have a learning curve."""
        return [trial for trial in self.region.trials if len(trial.curve) > 1]

    @cached_property
    def scale(self) -> Scale | None:
        """The scale for the objective in all charts of the region. None if no trial has a value."""
        return self._anchored_scale([t.value for t in self.region.trials if t.value is not None])

    @cached_property
    def curve_scale(self) -> Scale | None:
        """The scale for the learning curves, or None if there are no curves."""
        return self._anchored_scale([value for trial in self.curves for _, value in trial.curve])

    def _anchored_scale(self, values: Sequence[float]) -> Scale | None:
        anchor = best(values, self.region.objective.direction, float)
        return None if anchor is None else choose_scale(values, anchor)


def region_data(report: Report, pictures: Pictures, points: int) -> dict[str, Any]:
    """Return a region's data for charts and tables: its trials, parameters and scales.

    Each learning curve has at most `points` points.
    """
    region, drawn = pictures.region, pictures.charted_parameters
    known = {item.name: item for item in region.settings}
    trials = region.trials
    reported = [trial.metrics.get(report.report_metric) for trial in trials]
    return {
        "metric": region.objective.metric,
        "better": BETTER[region.objective.direction],
        "best": region.best_trial,
        "baseline": region.baseline_trial,
        "default": round_for_chart(region.objective.default),
        "scale": _scale(pictures.scale),
        "curveScale": _scale(pictures.curve_scale),
        "parameters": [_parameter(known[name], trials) for name in drawn],
        "pair": [drawn.index(name) for name in pictures.pair.names],
        "number": [trial.trial for trial in trials],
        "state": [trial.state for trial in trials],
        "value": [round_for_chart(trial.value) for trial in trials],
        "decimals": decimals_without_outliers([trial.value for trial in trials], region.objective),
        "reported": {
            "metric": report.report_metric,
            "value": [round_for_chart(value) for value in reported],
            "decimals": decimals_without_outliers(reported, region.report),
        }
        if report.is_apart
        else None,
        "params": [_places(known[name], trials) for name in drawn],
        "settings": [item.name for item in region.settings],
        "others": {
            name: _texts([trial.params.get(name, "") for trial in trials])
            for name in known.keys() - drawn
        },
        "jobs": _jobs(trials),
        "attempts": [trial.attempts or None for trial in trials],
        "node": [trial.node for trial in trials],
        "errors": {t.trial: shorten(t.error, ERROR_LENGTH) for t in trials if t.error},
        "curves": _curves(pictures.curves, points),
    }


def decimals_without_outliers(values: Sequence[float | None], comparison: Comparison) -> int | None:
    """Return how many decimals a column of `values` needs, ignoring values far from the best.

    The best trial's value is `comparison.tuned`. The result is None if the column needs another
    format, such as powers of ten.
    """
    known = [value for value in values if value is not None]
    anchor = comparison.tuned
    view = clipped_range(known, anchor) if known and anchor is not None else None
    return column_decimals([v for v in known if view is None or view[0] <= v <= view[1]])


def _texts(values: Sequence[Any]) -> list[str]:
    text = uniform_format([value for value in values if value != ""])
    return [text(value) if value != "" else "" for value in values]


def _jobs(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "started": [t.started and round(t.started) for t in trials],
        "seconds": [t.compute_seconds and round(t.compute_seconds, 1) for t in trials],
        "cpu": [t.cpu_seconds and round(t.cpu_seconds, 1) for t in trials],
        "memory": [t.memory_mb and round(t.memory_mb) for t in trials],
        "usd": [round_for_chart(t.usd, 4) for t in trials],
        "ranks": [t.ranks for t in trials],
        "generations": [t.generations for t in trials],
        "machine": [t.slot or t.machine for t in trials],
    }
    return {
        name: column
        for name, column in columns.items()
        if any(value is not None for value in column)
    }


def _curves(trials: Sequence[Trial], points: int) -> dict[int, list[list[Any]]]:
    curves = {t.trial: downsample(t.curve, points) for t in trials}
    values = [value for curve in curves.values() for _, value in curve]
    reach = max(values) - min(values) if values else 0.0
    decimals = 3 - math.floor(math.log10(reach)) if 0 < reach < math.inf else None

    def rounded(value: float) -> float | None:
        return round_for_chart(value) if decimals is None else round(value, decimals)

    return {
        number: [[step for step, _ in curve], [rounded(value) for _, value in curve]]
        for number, curve in curves.items()
    }


def _scale(scale: Scale | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    view = None if scale.view is None else [round_for_chart(end) for end in scale.view]
    return {"view": view}


def _parameter(item: Setting, trials: Sequence[Trial]) -> dict[str, Any]:
    range_ = item.range
    assert range_ is not None, item
    if range_.choices is not None:
        choices = [shorten(setting(choice), CHOICE_LENGTH) for choice in range_.choices]
        return {"name": item.name, "choices": choices}
    whole = isinstance(range_.low, int)
    given = [trial.params.get(item.name) for trial in trials]
    decimals, digits = alike_form([value for value in given if value and is_finite(value)])
    return {
        "name": item.name,
        "low": range_.low,
        "high": range_.high,
        "log": range_.log,
        "whole": whole,
        "decimals": decimals,
        "digits": digits,
    }


def _places(item: Setting, trials: Sequence[Trial]) -> list[float | None]:
    """Return each trial's value of a parameter; if it has choices, the index of the choice."""
    assert item.range is not None, item
    values = [trial.params.get(item.name) for trial in trials]
    if item.range.choices is None:
        return [round_for_chart(value, 5) if is_finite(value) else None for value in values]
    kinds = [(type(choice), choice) for choice in item.range.choices]  # 1, 1.0, True: three choices
    places = [(type(value), value) for value in values]
    return [kinds.index(place) if place in kinds else None for place in places]


def curve_points(report: Report) -> int:
    """Return how many points each learning curve may have, so that the page stays small."""
    curves = sum(len(trial.curve) > 1 for region in report.regions for trial in region.trials)
    return max(CURVE_LEAST, min(CURVE_MOST, CURVE_POINTS // max(1, curves)))
