"""The folders of a region's models in PUBLISH/STUDY/REGION: one per run, and the link `latest`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.files import object_or_empty, read_record, unless_damaged
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.record_shapes import Published

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study

LATEST = "latest"
PROVENANCE = "provenance.json"
EXPORTS = ".export"  # next to the regions, in a study whose models are exported

BESIDE = ".publish-"  # the beginning of an incomplete model's name


def region_models_folder(study: Study, slug: str) -> Path:
    """Return the folder of a region's models.

    Raises InputError if this folder or its parent is a published model.
    """
    models_folder = Path(study.publish) / study.name / slug
    for folder in (models_folder.parent, models_folder):
        if (folder / PROVENANCE).exists():
            raise InputError(
                f"{str(folder)!r} is a published model and can't contain models: "
                "set `publish` to another folder"
            )
    return models_folder


def list_models(models_folder: Path, *, with_unreadable: bool = False) -> list[Path]:
    """Return the complete models of a region, sorted by the ids of their runs.

    With `with_unreadable`, models whose provenance.json can't be read are included.
    """

    def is_model(place: Path) -> bool:
        try:
            return _read_if_there(place).get("run") == place.name
        except InputError:
            return with_unreadable

    return [
        place
        for place in sorted(models_folder.iterdir())
        if place.name[0] != "." and place.name != LATEST and is_model(place)
    ]


def check_published(model: Path) -> Path:
    """Return the absolute path of a published model; InputError if `model` isn't one.

    If `model` is a link, this is the path of its target.
    """
    place = model.parent.absolute() / model.name
    if read_provenance(place).get("run") != place.name:
        raise InputError(
            f"{str(model)!r} is not a run's published model; name a folder such as "
            "models/STUDY/REGION/RUN-ID, which has a provenance.json"
        )
    return place.resolve() if place.is_symlink() else place


def find_champion(models_folder: Path, study: str) -> Path | None:
    """Return a region's current model; None if there is none or if it is of another study.

    InputError if the model's provenance.json can't be read: it must not count as no model.
    """
    run = history.current_run(models_folder / LATEST)
    if run is None:
        return None
    found = _read_if_there(models_folder / run)
    return models_folder / run if (found.get("study"), found.get("run")) == (study, run) else None


def reason_not_latest(record: Path) -> str | None:
    """Return why a model was not made current when it was published.

    Return None if it was made current then, if it is current now, or if `record` doesn't exist.
    `record` is the path of the model's published.json. Raises InputError if it is damaged.
    """
    if not record.exists():
        return None
    return reason_kept_out(read_record(record, "path", shape=Published))


def reason_kept_out(published: Mapping[str, Any]) -> str | None:
    """Return why a model was not made current when it was published, or how a person replaced it.

    Return None if it is current now, or if a later run's model replaced it. `published` is the
    content of the model's published.json.
    """
    path, why = Path(published["path"]), published.get("not_latest")
    link = path.parent / LATEST
    if history.current_run(link) == path.name:
        return None
    change = history.last_move(link, path.name)
    if change and change.previous == path.name and change.by in history.BY_A_PERSON:
        return f"the model of {change.run} was made current: {change.description}"
    return None if why is None else str(why)


def current_model(published: Path) -> Path | None:
    """Return the current model of a region; None if no model is current.

    `published` is any model of the region.
    """
    link = published.parent / LATEST
    return published.parent / link.resolve().name if link.exists() else None


def previous_model(published: Path) -> Path | None:
    """Return the region's newest model that is older than `published`; None if none is known.

    Raises OSError if the region's folder of models can't be read.
    """
    as_of = model_time(published)
    if as_of is None:
        return None
    earlier = {model: time for model, time in other_models(published).items() if time < as_of}
    return max(earlier, key=lambda model: earlier[model], default=None)


def other_models(published: Path) -> dict[Path, datetime]:
    """Return the complete models of the region except `published`, each with its `model_time`.

    Models without a known time are left out.
    """
    others = (model for model in list_models(published.parent) if model.name != published.name)
    return {model: time for model in others if (time := model_time(model)) is not None}


def model_time(model: Path) -> datetime | None:
    """Return the time from which a published model's age counts; None if unknown.

    This is when the run was planned, or the end of the run's day, whichever is earlier.
    """
    return _moment(model, "as_of") or planning_time(model)


def planning_time(model: Path) -> datetime | None:
    """Return when the run of a published model was planned; None if unknown."""
    return _moment(model, "created")


def _moment(model: Path, key: str) -> datetime | None:
    moment = unless_damaged(lambda: datetime.fromisoformat(read_provenance(model)[key]), None)
    return moment if moment and moment.tzinfo else None


def read_region_name(models_folder: Path) -> str:
    """Return the name of the region whose models are in a folder; if unknown, the folder's name."""
    return _read_provenance_key(models_folder, "region") or models_folder.name


def display_name(models_folder: Path) -> str:
    """Return STUDY/REGION for a folder of models."""
    study = _read_provenance_key(models_folder, "study") or models_folder.parent.name
    return f"{study}/{read_region_name(models_folder)}"


def _read_provenance_key(models_folder: Path, key: str) -> str:
    current = history.current_run(models_folder / LATEST)
    first = (models_folder / current,) if current else ()
    models = (*first, *sorted(models_folder.iterdir()))
    return next((str(found) for model in models if (found := read_provenance(model).get(key))), "")


def read_provenance(model: Path) -> dict[str, Any]:
    """Return the content of a model's provenance.json; empty if it can't be read."""
    place = model / PROVENANCE
    return object_or_empty(lambda: untrusted_files.read_json(place, untrusted_files.MOST_NOTES))


def _read_if_there(model: Path) -> dict[str, Any]:
    """Return the content of a model's provenance.json, or {} without one; else InputError."""
    return untrusted_files.read_record(model / PROVENANCE, if_missing={})
