"""Where a region's models lie: a folder per run, and `latest`, in PUBLISH/STUDY/REGION."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import InputError
from trialfleet.workflows.models.latest import PROVENANCE

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study

BESIDE = ".publish-"  # how the name of a model that isn't whole yet begins


def models_folder_of(study: Study, slug: str) -> Path:
    """Return the folder of a region's models.

    Raises:
        InputError: a published model lies where the folder is to be.
    """
    return models_folder_in(study.publish, study.name, slug)


def models_folder_in(publish: str, study: str, slug: str) -> Path:
    """Return the folder of a region's models, of a study by its publish folder and its name.

    Raises:
        InputError: a published model lies where the folder is to be.
    """
    models_folder = Path(publish) / study / slug
    for folder in (models_folder.parent, models_folder):
        if (folder / PROVENANCE).exists():
            raise InputError(
                f"{str(folder)!r} is a published model, so no models can lie in it; "
                "publish into another folder"
            )
    return models_folder
