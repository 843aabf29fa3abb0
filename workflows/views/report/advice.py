"""The report's advice on too narrow ranges, and on tuned settings worse than the default ones."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trialfleet.files import shell_quoted_anywhere
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.formatting import column_decimals, fixed_point, signed_number
from trialfleet.workflows.views.report.report_types import Comparison, ParameterRange, RegionReport

EDGE = 0.02  # of the range
AS_GOOD = 0.005  # of the value with default settings: a smaller difference is negligible
LEAST_TRIALS = 5  # completed trials of a region: the best of fewer is not significant
OFTEN = 0.5  # of the regions
_ENDS = {"low": "lower", "high": "upper"}


def worse_sentence(objective: Comparison, report: Comparison) -> str | None:
    """Return a warning if tuned settings are clearly worse than default ones, otherwise None.

    Only the report metric decides. By the objective, tuned settings can't be worse, because they
    are those of the trial with the best objective. The warning mentions the objective's gain.
    """
    if report.gain is None or report.gain >= 0:
        return None
    if report.default is not None and -report.gain < AS_GOOD * abs(report.default):
        return None
    decimals = column_decimals([report.tuned, report.default])
    return (
        f"By {report.metric}, tuned settings reach {fixed_point(report.tuned, decimals)} and "
        f"default ones {fixed_point(report.default, decimals)} "
        f"({signed_number(report.gain, decimals)}), although tuned ones gained "
        f"{signed_number(objective.gain, None)} by {objective.metric}, the objective."
    )


def unreported_note(metric: str, regions: Sequence[RegionReport]) -> str:
    """Return a warning if trials completed but none reported `metric`, otherwise ""."""
    complete = [trial for region in regions for trial in region.trials if trial.state == "complete"]
    reported = sorted({name for trial in complete for name in trial.metrics})
    is_objective = any(region.objective.metric == metric for region in regions)
    if not complete or is_objective or metric in reported:
        return ""
    return (
        f"No comparison: no trial reported the report_metric {metric!r}"
        f"{did_you_mean(metric, reported)}; reported metrics: {', '.join(reported) or 'none'}."
    )


def advice_on_worse(metric: str, report_metric: str) -> str:
    """Return advice on settings that beat the default by `metric`, but not by `report_metric`."""
    return (
        f"{metric}, by which the settings were chosen, and {report_metric} disagree. If the models "
        "of both settings are hardly better than a guess, check the data first: are the labels "
        "right? Otherwise there may be too few rows: validate on more rows, or on several splits "
        "(cross-validation), and run more trials. Don't choose settings by the test rows, because "
        "then no rows are left to measure how good the settings are on new data. If this run's "
        "model is the region's current one, trialfleet rollback STUDY/REGION goes back to the "
        "previous one. To publish a model of the default settings, run a copy of the study with "
        "budget: {trials: 1}."
    )


def why_command(region: str, run: Path) -> str:
    """Return the `trialfleet why` command for a region, in a form that works in any folder."""
    return f"trialfleet why {shlex.quote(region)} --run {shell_quoted_anywhere(run)}"


def find_edge(range_: ParameterRange | None, value: Any) -> str | None:
    """Return "low" or "high" if a value is at or near that end of its range, else None."""
    if range_ is None or (place := range_.place(value)) is None:
        return None
    return "low" if place <= EDGE else "high" if place >= 1 - EDGE else None


def edge_advice(regions: Sequence[RegionReport]) -> str:
    """Return advice on parameters whose best values are often at an end of the range, or "".

    "Often" means in at least half of the regions with `LEAST_TRIALS` or more completed trials. A
    best value that equals the default doesn't count, because tuning didn't change it. Best values
    of a region without a gain don't count, because they are best only by chance.
    """
    tuned = [row for row in regions if row.done >= LEAST_TRIALS]
    found = Counter(
        (item.name, item.edge)
        for row in tuned
        if _has_gained(row)
        for item in row.settings
        if item.edge is not None and item.changed
    )
    often = [
        (name, edge, many) for (name, edge), many in found.items() if many >= OFTEN * len(tuned)
    ]
    if not often:
        return ""
    often.sort(key=lambda each: (-each[2], each[0]))
    several = len(regions) > 1
    places = [
        f"{name} ({_ENDS[edge]} end{f', {many} of {len(tuned)} regions' if several else ''})"
        for name, edge, many in often
    ]
    ranges = "this range" if len(often) == 1 else "these ranges"
    return f"Best values at the end of a range: {', '.join(places)}. Widen {ranges}."


def _has_gained(row: RegionReport) -> bool:
    """Return True if tuned settings are better than default ones, or if this is unknown."""
    gains = (row.report.gain, row.objective.gain)
    return next((gain for gain in gains if gain is not None), 1.0) > 0
