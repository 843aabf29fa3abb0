"""The search for models by the name of a region, a study or a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError
from trialfleet.files import exists
from trialfleet.workflows.facts.models.folders import LATEST, read_region_name
from trialfleet.workflows.facts.models.listing import PublishedModel, list_published_models
from trialfleet.workflows.facts.runs.lookup import find_models_folder, models_folders_here


@dataclass(frozen=True, kw_only=True)
class RegionModels:
    """The published models of a region, oldest first, and their folder."""

    study: str
    region: str
    folder: Path
    models: tuple[PublishedModel, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the region's models as plain data."""
        return {
            "study": self.study,
            "region": self.region,
            "folder": str(self.folder),
            "models": [model.to_json() for model in self.models],
        }


def models(
    name: str | PathLike[str] | None = None, *, study: str | None = None
) -> list[RegionModels]:
    """Return the published models of a region, of a study's regions, or of all studies.

    Args:
        name: a region's name, STUDY/REGION, or the folder of the region's models. It may also be
            a study's name, the folder of a study's models, or a publish folder. Then the models of
            all regions in this study or folder are returned. By default, all models in `./models`
            and in `./*/models` are returned.
        study: return only models of this study.

    Raises:
        InputError: no models are found for `name`. If `name` is None, the result is empty instead.
    """
    named = (
        models_folders_here(study) if name is None else models_folders_named(os.fspath(name), study)
    )
    return [
        RegionModels(
            study=folder.parent.name,
            region=read_region_name(folder),
            folder=folder,
            models=tuple(list_published_models(folder)),
        )
        # by the regions' names: the folders' names lack letters like Å and sort differently
        for folder in sorted(named, key=lambda each: (each.parent, read_region_name(each)))
    ]


def models_folders_named(name: str, study: str | None = None) -> list[Path]:
    """Return the folder of a region's models, or the folders of all regions of a study.

    `name` is first tried as a region, in any form that `find_models_folder` accepts. If no region
    matches, `name` is a study, the folder of a study's models, or a publish folder. With `study`,
    `name` can only be a region. Raises InputError if there are no models.
    """
    try:
        return [find_models_folder(name, study)]
    except InputError:
        of_study = [] if study else _in_folder(name) or models_folders_here(name.rstrip("/"))
        if not of_study:
            raise
        return of_study


def _in_folder(name: str) -> list[Path]:
    if not name or not exists(place := Path(name)):
        return []
    links = [*place.glob(f"*/{LATEST}")] or [*place.glob(f"*/*/{LATEST}")]
    return [link.parent.absolute() for link in sorted(links) if link.is_symlink()]
