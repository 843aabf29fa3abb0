"""Advice about parameters whose best values are often at an end of the searched range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trialfleet.workflows.views.report.model import RegionReport

LEAST_TRIALS = 5  # completed trials of a region: the best of fewer is not significant
OFTEN = 0.5  # of the regions
_ENDS = {"low": "lower", "high": "upper"}


def edge_advice(regions: Sequence[RegionReport]) -> str:
    """Return advice on parameters whose best values are often at an end of the range, or "".

    "Often" means in at least half of the regions that have at least `LEAST_TRIALS` completed
    trials. A best value that equals the default doesn't count, because tuning didn't change it.
    Values of a region without a gain don't count, because there the best trial is best by chance.
    """
    tuned = [row for row in regions if row.complete >= LEAST_TRIALS]
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
    """Return whether tuned settings are better than default ones, or can't be compared."""
    gains = (row.report.gain, row.objective.gain)
    return next((gain for gain in gains if gain is not None), 1.0) > 0
