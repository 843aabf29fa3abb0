"""A region's published models, and the last change of its current model, read for exports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    list_models,
    model_time,
    read_provenance,
)

OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A published model.

    `as_of` is the time that decides which of two models is newer, or None if it is unknown.
    """

    path: Path
    run: str
    as_of: datetime | None
    provenance: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A region's models at one moment.

    `region` is the region's slug, the name of `folder`. `models` has the models by run, oldest
    first. `change` is the last change of the current model. It is None if no model is current.
    """

    study: str
    region: str
    folder: Path
    models: dict[str, LocalModel]
    change: history.Change | None

    @property
    def champion(self) -> LocalModel | None:
        """The current model. None if no model is current, or if the model's folder was removed."""
        return self.models.get(self.change.run) if self.change else None


def read_published(models_folder: Path) -> Published:
    """Return the published models in a region's folder of models."""
    changes = history.changes(models_folder / LATEST)  # before the models, to miss none
    found = [
        LocalModel(
            path=path, run=path.name, as_of=model_time(path), provenance=read_provenance(path)
        )
        for path in list_models(models_folder)
    ]
    found.sort(key=lambda model: (model.as_of or OLDEST, model.run))
    return Published(
        study=models_folder.parent.name,
        region=models_folder.name,
        folder=models_folder,
        models={model.run: model for model in found},
        change=changes[-1] if changes and history.current_run(models_folder / LATEST) else None,
    )
