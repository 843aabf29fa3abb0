"""A region's published models, and the last change of its current model, read for exports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.folders import LATEST, list_models, model_time

OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A region's models at one moment.

    `region` is the region's slug, the name of `folder`. `models` has the models' folders by run,
    oldest first. `change` is the last change of the current model. It is None if no model is
    current.
    """

    study: str
    region: str
    folder: Path
    models: dict[str, Path]
    change: history.Change | None

    @property
    def champion(self) -> Path | None:
        """The current model. None if no model is current, or if the model's folder was removed."""
        return self.models.get(self.change.run) if self.change else None


def read_published(models_folder: Path) -> Published:
    """Return the published models in a region's folder of models."""
    changes = history.changes(models_folder / LATEST)  # before the models, to miss none
    found = sorted(
        list_models(models_folder), key=lambda model: (model_time(model) or OLDEST, model.name)
    )
    return Published(
        study=models_folder.parent.name,
        region=models_folder.name,
        folder=models_folder,
        models={model.name: model for model in found},
        change=changes[-1] if changes and history.current_run(models_folder / LATEST) else None,
    )
