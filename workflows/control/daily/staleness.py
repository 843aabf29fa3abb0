"""Priority by staleness: within a run, the region with the oldest current model goes first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from trialfleet.workflows.facts.models.folders import LATEST, model_time, region_models_folder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.spec import Study

_HOUR = 3600.0
_LEAST, _MOST = -100_000, 100_000  # bounds of a region's priority


def stalest_first(study: Study, now: datetime) -> Study:
    """Return the study with each region's priority raised by 1 per hour of its model's age.

    So even a region with a low priority eventually goes first. A region without a model counts as
    if its model were a day older than the oldest model.
    """
    ages = {region: model_age(study, region, now) for region in study.region_table}
    points = age_points(ages)
    regions = {
        name: region.model_copy(
            update={"priority": max(_LEAST, min(_MOST, region.priority + points[name]))}
        )
        for name, region in study.region_table.items()
    }
    return study.model_copy(update={"regions": regions})


def age_points(ages: Mapping[str, float | None]) -> dict[str, int]:
    """Return by how much to raise each region's priority: 1 per hour of its model's age.

    `ages` are in seconds. A region whose age is None has no model. It gets 24 more than the region
    with the oldest model.
    """
    known = [age for age in ages.values() if age is not None]
    oldest = int(max(known, default=0.0) / _HOUR)
    return {
        region: oldest + 24 if age is None else max(0, int(age / _HOUR))
        for region, age in ages.items()
    }


def model_age(study: Study, region: str, now: datetime) -> float | None:
    """Return the age of a region's current model in seconds, or None if no model is current."""
    as_of = model_time(region_models_folder(study, region_slug(region)) / LATEST)
    return (now - as_of).total_seconds() if as_of else None
