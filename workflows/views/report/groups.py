"""The report's groups of regions by outcome, such as published or failed."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.views.report.report_types import RegionReport, Report

TITLES = {
    "published": ("Published", "good"),
    "kept": ("Not current", ""),
    "tuned": ("Tuned", "good"),
    "worse": ("Worse than default", "bad"),
    "running": ("In progress", ""),
    "failed": ("Failed or stopped", "bad"),
    "empty": ("No result", ""),
}


@dataclass(frozen=True)
class Group:
    """The regions with the same outcome, each with its index in the report."""

    key: str
    title: str
    tone: str
    regions: tuple[tuple[int, RegionReport], ...]


def group_regions(report: Report) -> list[Group]:
    """Return the groups that have regions, in the order of `TITLES`."""
    placed = [(find_group(region), at, region) for at, region in enumerate(report.regions)]
    groups = [
        Group(key, title, tone, tuple((at, region) for own, at, region in placed if own == key))
        for key, (title, tone) in TITLES.items()
    ]
    return [group for group in groups if group.regions]


def find_group(region: RegionReport) -> str:
    """Return the key of a region's group in `TITLES`."""
    if region.stage.needs_help or region.stage is Stage.STOPPED:
        return "failed"
    if region.stage == Stage.KEPT:
        return "kept"
    if region.worse is not None:
        return "worse"
    if region.stage.is_good:
        return "published" if region.stage == Stage.PUBLISHED else "tuned"
    return "empty" if region.best_trial is None else "running"


def outcome_tone(region: RegionReport) -> str:
    """Return the tone (a CSS class) of a region's outcome."""
    return TITLES[find_group(region)][1]


def outcome(region: RegionReport) -> str:
    """Return a region's status, with a note if its tuned settings are worse than default ones."""
    return region.stage if region.worse is None else f"{region.stage}, worse than default"
