"""The current model of each region, for the live page and the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import folder_stamp
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


class ChampionsReader:
    """Reads the regions' current models, and reads a folder again only after a change."""

    def __init__(self, study: Study, slugs: Iterable[str]) -> None:
        self._study = study.name
        places = slugs if study.publishes else ()
        self._folders = {slug: region_models_folder(study, slug) for slug in places}
        self._known: dict[str, tuple[int, Champion | None]] = {}

    def read(self) -> dict[str, Champion]:
        """Return the current models by the region's slug, without regions that have no model."""
        for slug, folder in self._folders.items():
            changed, known = folder_stamp(folder), self._known.get(slug)
            if not (known and changed and known[0] == changed):
                found = self._champion(folder)
                is_known = found is None or found.as_of
                self._known[slug] = changed if is_known else 0, found  # 0: read again
        return {slug: found for slug, (_, found) in self._known.items() if found}

    def _champion(self, folder: Path) -> Champion | None:
        try:
            model = find_champion(folder, self._study) if folder.exists() else None
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
