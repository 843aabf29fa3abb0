"""The model in force of each region of a run: how old it is, and what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trialfleet.files import folder_stamp
from trialfleet.workflows.facts.models.card import card_of
from trialfleet.workflows.facts.models.folders import as_of_model, champion_of, created_of
from trialfleet.workflows.study.spec import Study


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The model in force of a region.

    Attributes:
        run: the run that published it.
        as_of: how new it is; None where that isn't known.
        created: when that run was planned; likewise.
        metrics: of its full training.
    """

    run: str
    as_of: datetime | None
    created: datetime | None
    metrics: dict[str, float]


class Champions:
    """The models in force of a study's regions.

    Args:
        study: theirs.
        slugs: those of the regions.
        before: what was read before: a folder that is as it was then isn't read again.
    """

    def __init__(
        self, study: Study, slugs: tuple[str, ...], before: Champions | None = None
    ) -> None:
        self._study = study
        self._changed = {slug: folder_stamp(self.folder(slug)) for slug in slugs}
        self._found: dict[str, Champion | None] = {
            slug: before._found[slug]
            if before and changed and before._changed[slug] == changed
            else self._read(slug)
            for slug, changed in self._changed.items()
        }

    def of(self, slug: str) -> Champion | None:
        """Return the model in force of a region; None where there is none."""
        return self._found.get(slug)

    def folder(self, slug: str) -> Path:
        """Return the folder of a region's models, there or not."""
        return Path(self._study.publish) / self._study.name / slug

    def _read(self, slug: str) -> Champion | None:
        model = champion_of(self.folder(slug), self._study.name) if self._study.publishes else None
        if model is None:
            return None
        metrics = card_of(model).get("metrics")
        return Champion(
            run=model.name,
            as_of=as_of_model(model),
            created=created_of(model),
            metrics=metrics if isinstance(metrics, dict) else {},
        )
