"""The folders of models that a name means where it may be a region's or a study's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.workflows.facts.models.folders import LATEST, provenance_of, region_of
from trialfleet.workflows.facts.runs.lookup import find_models_folder, models_folders_here


def models_folders_named(name: str, study: str | None = None) -> list[Path]:
    """Return the folder of a region's models, or those of all regions of a study or folder.

    Args:
        name: a region, as `find_models_folder` takes it; or a study, the folder of its models, or
            a publish folder, where no region is called so.
        study: only of this study.

    Raises:
        InputError: there is neither, or the folder of that name has no models.
    """
    try:
        return [_with_models(name, study)]
    except InputError:
        of_study = [] if study else _in_folder(name) or models_folders_here(name.rstrip("/"))
        if not of_study:
            raise
        return of_study


def by_region(models_folders: Iterable[Path]) -> list[Path]:
    """Return folders of models by study, in the order of their regions' names.

    That of the folders' own names is another: a slug has no Å. A study made by `regions: {glob: …}`
    has the regions' names in this order, too.
    """
    return sorted(models_folders, key=lambda folder: (folder.parent, region_of(folder)))


def _in_folder(name: str) -> list[Path]:
    """The folders of regions' models in a study's folder, or in one of studies, anywhere."""
    place = Path(name)
    links = [*place.glob(f"*/{LATEST}")] or [*place.glob(f"*/*/{LATEST}")]
    return [link.parent.absolute() for link in sorted(links) if link.is_symlink()]


def _with_models(name: str, study: str | None) -> Path:
    found = find_models_folder(name, study)
    if found.is_dir() and not any(provenance_of(folder) for folder in found.iterdir()):
        raise InputError(_none_below(name))
    return found


def _none_below(name: str) -> str:
    studies = ", ".join(sorted({folder.parent.name for folder in models_folders_here()}))
    return (
        f"there are no models below the folder {name!r}; name a region, or the folder of its "
        "models (models/STUDY/REGION), or a study with --study"
        f"; studies with models here: {studies or 'none'}"
    )
