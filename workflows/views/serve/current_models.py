"""The current model of each region, for the live page and the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.workflows.facts.models.card import read_card
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    current_model,
    find_champion,
    model_time,
    planning_time,
    region_models_folder,
)
from trialfleet.workflows.study.spec import Study


@dataclass(frozen=True, kw_only=True)
class Champion:
    """A region's current model.

    Attributes:
        run: the id of the model's run.
        as_of: the time from which the model's age counts, or None if unknown.
        created: when the model's run was planned, or None if unknown.
        metrics: the metrics of the full training.
    """

    run: str
    as_of: datetime | None
    created: datetime | None
    metrics: dict[str, float]


def read_champions(study: Study, slugs: Iterable[str]) -> dict[str, Champion]:
    """Return the current models by the region's slug, without regions that have no model."""
    places = slugs if study.publishes else ()
    found = {slug: _champion(region_models_folder(study, slug), study.name) for slug in places}
    return {slug: champion for slug, champion in found.items() if champion}


def _champion(folder: Path, study: str) -> Champion | None:
    try:
        model = find_champion(folder, study) if folder.exists() else None
    except InputError:  # the page then shows the run, with an unknown age
        model = current_model(folder / LATEST)
    if model is None:
        return None
    metrics = read_card(model).get("metrics")
    return Champion(
        run=model.name,
        as_of=model_time(model),
        created=planning_time(model),
        metrics=metrics if isinstance(metrics, dict) else {},
    )
