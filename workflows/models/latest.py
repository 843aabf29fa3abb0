"""MODELS/STUDY/REGION/latest: a link to the model in force, beside those of all of its runs.

It goes forwards by itself and backwards only by a person: what publishes is made the latest unless
the model of a run that was planned later, or of a later day, lies there already. So a run that is
resumed a day late, or makes up for a former day, doesn't set production back, and one that a person
went back to stays until a newer run publishes. A model whose run was planned in the future, by a
clock that was set ahead, holds up none.
Each change is noted before it is made (`history`), so that `rollback` knows the way back.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trialfleet import job_files
from trialfleet.errors import InputError
from trialfleet.files import locked, object_or_empty, read_record, sync, unless_damaged
from trialfleet.workflows.models import history
from trialfleet.workflows.record_shapes import Published

LATEST = "latest"
PROVENANCE = "provenance.json"
LOCK = ".lock"
EXPORTS = ".export"  # beside the regions, in a study whose models are exported


def models_lock(models_folder: Path) -> AbstractContextManager[bool]:
    """Be the only one who changes a region's folder of models; waits for who else does."""
    return locked(models_folder / LOCK, wait=True)


def switch_to_newest(published: Path, as_of: datetime) -> str | None:
    """Make a published model the latest, unless the model of a later run is there.

    To be called with the folder's lock, once the gate, where there is one, has let the model pass.
    `as_of` is how new it is, as its run's `FrozenStudy` has it.

    Returns:
        Why `latest` stays with another run's model, None if it is this one now.
    """
    link = published.parent / LATEST
    now = datetime.now(UTC)  # what is newer than that was planned while a clock was set ahead
    later = {model: time for model, time in _others(published).items() if as_of < time <= now}
    in_force = link.resolve()  # by a person, perhaps
    if later and link.exists() and in_force != published.resolve():  # a broken link: nothing is
        own = (model for model in later if model.resolve() == in_force)
        newest = next(own, max(later, key=lambda model: later[model]))
        model, words = _which_is_newer(newest, published)
        is_it = model.resolve() == in_force
        return (
            f"{LATEST} stays with {in_force.name}{', which' if is_it else f': {model.name}'} "
            f"{words}; to change that: trialfleet promote {shlex.quote(str(published))}"
        )
    _switch(link, published.name, "publish")
    return None


def _which_is_newer(newer: Path, older: Path) -> tuple[Path, str]:
    """Say why one model counts as newer: by their days where these decide, else by their plans.

    Returns:
        One of them, and what is to be said of it.
    """
    day, before = (provenance_of(model).get("date") for model in (newer, older))
    planned, planned_before = created_of(newer), created_of(older)
    if day and before and day != before:
        model, which, its_day = newer, "a later", day
    elif before and planned and planned_before and planned < planned_before:
        model, which, its_day = older, "an earlier", before
    else:
        return newer, "was planned later"
    # a run's id mostly has its day
    return model, f"is of {which} day{'' if its_day in model.name else f', {its_day}'}"


def promote(model: Path) -> str | None:
    """Make a published model the latest of its region, newer or older.

    Returns:
        The run whose model was the latest before, None if none was.

    Raises:
        InputError: the folder is no published model.
        OSError: its folder can't be written.
    """
    place = check_published(model)
    with models_lock(place.parent):
        link = place.parent / LATEST
        former = history.target_of(link)
        _switch(link, place.name, "promote")
    return former


def rollback(models_folder: Path, to: str | None = None) -> tuple[str, str]:
    """Make the model the latest that was in force before the present one, or that of the run `to`.

    Former champions whose folder is gone are passed over.

    Returns:
        The runs whose models are the latest now and were before.

    Raises:
        InputError: there is none to go back to, or no model of that run; names those there are.
        OSError: the folder can't be written.
    """
    with models_lock(models_folder):
        link = models_folder / LATEST
        current = history.target_of(link)
        if current is None:
            raise InputError(
                f"{str(models_folder)!r} has no {LATEST} of its own, so nothing is rolled back"
            )
        target = _named(models_folder, to) if to else _former(models_folder, current)
        _switch(link, target, "rollback")
    return target, current


def _named(models_folder: Path, run: str) -> str:
    if provenance_of(models_folder / run).get("run") != run:
        there = ", ".join(model.name for model in models_in(models_folder)) or "none"
        raise InputError(
            f"{called(models_folder)} has no model of the run {run!r}; there are: {there}"
        )
    return run


def former_champions(models_folder: Path) -> list[str]:
    """Return the runs whose models `rollback` can go back through, the next one last."""
    formers = history.in_force(models_folder / LATEST)[:-1]
    return [run for run in formers if provenance_of(models_folder / run).get("run") == run]


def _former(models_folder: Path, current: str) -> str:
    there = former_champions(models_folder)
    if not there:
        others = [model.name for model in models_in(models_folder) if model.name != current]
        more = f"; name another with --to: {', '.join(others)}" if others else ""
        raise InputError(
            f"{called(models_folder)}: no model that was in force before {current} is known{more}"
        )
    return there[-1]


def models_in(models_folder: Path) -> list[Path]:
    """Return the whole models of a region, in order of their runs' names."""
    return [
        model
        for model in sorted(models_folder.iterdir())
        if model.name[0] != "." and model.name != LATEST
        if provenance_of(model).get("run") == model.name
    ]


def _switch(link: Path, run: str, by: str) -> None:
    if link.is_dir() and not link.is_symlink():
        raise InputError(f"{str(link)!r} is a folder, and has to be a link: move it away")
    if history.target_of(link) != run:
        history.note(link, run, by)
        point(link, run)


def check_published(model: Path) -> Path:
    """Return the absolute path of a model that a run published, also where a link leads to it.

    Raises:
        InputError: it is no such folder.
    """
    place = model.parent.absolute() / model.name
    if provenance_of(place).get("run") != place.name:
        raise InputError(
            f"{str(model)!r} is no model that a run published; name a folder such as "
            "models/STUDY/REGION/RUN-ID, which has a provenance.json"
        )
    return place.resolve() if place.is_symlink() else place


def champion_of(models_folder: Path, study: str) -> Path | None:
    """Return the folder of the model in force; None where there is none of this study."""
    run = history.target_of(models_folder / LATEST)
    if run is None:
        return None
    found = provenance_of(models_folder / run)
    return models_folder / run if (found.get("study"), found.get("run")) == (study, run) else None


def why_not_latest(record: Path) -> str | None:
    """Return why a region's published model isn't the latest, if it isn't, by its `published.json`.

    Raises:
        InputError: that file is damaged.
    """
    if not record.exists():
        return None
    return why_kept_out(read_record(record, "path", shape=Published))


def why_kept_out(published: Mapping[str, Any]) -> str | None:
    """Return the same by what that file holds."""
    path, why = Path(published["path"]), published.get("not_latest")
    if why is None or (path.parent / LATEST).resolve() == path.resolve():  # a person may have moved
        return None
    return str(why)


def model_in_force(published: Path) -> Path | None:
    """Return the model that a region's `latest` means, given any of them; None without one."""
    link = published.parent / LATEST
    return published.parent / link.resolve().name if link.exists() else None


def previous_model(published: Path) -> Path | None:
    """Return the newest model of the runs that were planned earlier; None without any.

    Raises:
        OSError: the folder of the region's models can't be read.
    """
    as_of = as_of_model(published)
    if as_of is None:
        return None
    earlier = {model: time for model, time in _others(published).items() if time < as_of}
    return max(earlier, key=lambda model: earlier[model], default=None)


def _others(published: Path) -> dict[Path, datetime]:
    """The region's other models that are whole, and when their runs were planned."""
    others = (model for model in models_in(published.parent) if model.name != published.name)
    return {model: time for model in others if (time := as_of_model(model)) is not None}


def as_of_model(model: Path) -> datetime | None:
    """How new a published model is; None where that isn't known.

    That is when its run was planned, or the end of the run's day where that was before.
    """
    return _moment(model, "as_of") or created_of(model)


def created_of(model: Path) -> datetime | None:
    """When the run of a published model was planned, whatever day it is of; None: not known."""
    return _moment(model, "created")


def _moment(model: Path, key: str) -> datetime | None:
    moment = unless_damaged(lambda: datetime.fromisoformat(provenance_of(model)[key]), None)
    return moment if moment and moment.tzinfo else None


def region_of(models_folder: Path) -> str:
    """Return the name of the region whose models lie in a folder; the folder's where none says."""
    return _noted(models_folder, "region") or models_folder.name


def called(models_folder: Path) -> str:
    """Return STUDY/REGION of a folder of models: several studies may have a region of one name."""
    study = _noted(models_folder, "study") or models_folder.parent.name
    return f"{study}/{region_of(models_folder)}"


def switched(now: str, before: str | None) -> str:
    """Return the model in force, and which one was before."""
    return f"{now}, as before" if now == before else f"{now} (was {before or 'none'})"


def _noted(models_folder: Path, key: str) -> str:
    in_force = history.target_of(models_folder / LATEST)
    first = (models_folder / in_force,) if in_force else ()
    models = (*first, *sorted(models_folder.iterdir()))
    return next((str(found) for model in models if (found := provenance_of(model).get(key))), "")


def provenance_of(model: Path) -> dict[str, Any]:
    """Return where a model comes from; empty for what no run published."""
    place = model / PROVENANCE
    return object_or_empty(lambda: job_files.read_json(place, job_files.MOST_NOTES))


def point(link: Path, target: str) -> None:
    """Point `link` at `target` so that a reader sees the old model or the new one, never none.

    To be called with the folder's lock.
    """
    beside = link.with_name(".latest")
    beside.unlink(missing_ok=True)  # of a switch that was killed; the lock is ours
    beside.symlink_to(target)
    beside.replace(link)
    sync(link.parent)
