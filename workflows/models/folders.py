"""Where a region's models lie, and how those of releases up to 0.1 get there.

A region's *models folder* is PUBLISH/STUDY/REGION: a folder per run, and `latest`. It was
PUBLISH/REGION once, which two studies with regions of one name shared. `adopt` moves a study's
models from there, so that no reader of the former paths ever finds nothing: a model is whole in its
new place before anything changes in the old, `latest` then leads to the new `latest`, and a link
stays in the place of each model. Killed between any two steps, it is completed by the next call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet import job_files
from trialfleet.errors import InputError
from trialfleet.files import sync
from trialfleet.workflows.models.latest import (
    LATEST,
    PROVENANCE,
    as_of_model,
    models_lock,
    point,
    provenance_of,
)

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study

BESIDE = ".publish-"  # how the name of a model that isn't whole yet begins
_REPLACED = ".moved-"  # … of one whose former place is taken by a link


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


def adopt(study: Study) -> str | None:
    """Move the models of a study that an earlier release published; return a line that says so.

    What other studies published stays where it is.

    Raises:
        OSError: the publish folder can't be read or written.
    """
    if not study.publishes:
        return None
    root = Path(study.publish)
    for former in {path.parent for path in root.glob(f"*/{_REPLACED}*")}:
        with models_lock(former):
            _complete(former)
    formers = sorted({path.parent.parent for path in root.glob(f"*/*/{PROVENANCE}")})
    moved = sum(_adopt_folder(study, former) for former in formers)
    if not moved:
        return None
    return (
        f"moved {moved} model(s) of {study.name} from {root}/REGION to {root}/{study.name}/REGION; "
        "links in the former places lead there"
    )


def _adopt_folder(study: Study, former: Path) -> int:
    """Move a study's models out of a folder that other studies may share; return how many."""
    if not _models_of(study, former):
        return 0
    models_folder = models_folder_of(study, former.name)
    models_folder.mkdir(parents=True, exist_ok=True)
    with models_lock(models_folder), models_lock(former):
        found = ((model, models_folder / model.name) for model in _models_of(study, former))
        moves = [(model, to) for model, to in found if _may_move(model, to)]
        for model, to in moves:
            _copy(model, to)
        _lead_latest(former / LATEST, models_folder / LATEST, [to for _, to in moves])
        for model, to in moves:
            _replace_by_link(model, to)
        return len(moves)


def _models_of(study: Study, former: Path) -> list[Path]:
    """The models in a folder that are this study's, and no links to where they are now."""
    folders = (path for path in sorted(former.iterdir()) if not path.name.startswith("."))
    return [
        path
        for path in folders
        if not path.is_symlink()
        and provenance_of(path).get("study") == study.name
        and provenance_of(path).get("run") == path.name
    ]


def _may_move(model: Path, to: Path) -> bool:
    """Whether its new place is free, or has it already: a run of the same id may have come."""
    return not os.path.lexists(to) or provenance_of(to) == provenance_of(model)


def _copy(model: Path, to: Path) -> None:
    """Make a model whole in its new place too; its files, which never change, are shared."""
    if to.exists():
        return
    beside = Path(tempfile.mkdtemp(prefix=BESIDE, dir=to.parent))
    try:
        job_files.copy_tree(model, beside, job_files.share)
        for folder in [path for path in beside.rglob("*") if path.is_dir()]:
            sync(folder)
        sync(beside)
        beside.replace(to)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync(to.parent)


def _lead_latest(former: Path, new: Path, models: list[Path]) -> None:
    """Have both `latest` mean one model: the one that was in force, where it was this study's."""
    if not former.is_symlink() or not models:
        return
    in_force = [model for model in models if model.name == str(former.readlink())]
    if not os.path.lexists(new):
        point(new, (in_force or [max(models, key=_age)])[0].name)
    if in_force:
        point(former, _way(former.parent, new))


def _age(model: Path) -> tuple[bool, float]:
    created = as_of_model(model)
    return (created is not None, created.timestamp() if created else 0.0)


def _replace_by_link(model: Path, to: Path) -> None:
    aside = model.with_name(_REPLACED + model.name)
    model.rename(aside)
    model.symlink_to(_way(model.parent, to))
    sync(model.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _complete(former: Path) -> None:
    """Do the rest of what was killed while it put links in the place of models."""
    for aside in former.glob(f"{_REPLACED}*"):
        model = former / aside.name.removeprefix(_REPLACED)
        if not os.path.lexists(model):  # nothing of `aside` is removed before
            study = str(provenance_of(aside)["study"])
            model.symlink_to(_way(former, former.parent / study / former.name / model.name))
            sync(former)
        shutil.rmtree(aside, ignore_errors=True)


def _way(start: Path, to: Path) -> str:
    """A link's text: both folders may be moved together."""
    return os.path.relpath(to, start)
