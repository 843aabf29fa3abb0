"""MODELS/STUDY/REGION/latest: a link to the current model, next to the models of all runs.

It moves to newer models automatically and to older ones only by a person: a published model becomes
the latest unless a model of a later run, or of a later day, is there. So a run that is resumed a
day late, or a backfill of an earlier day, doesn't set production back. A model to which a person
rolled back stays until a newer run publishes. A model that was planned in the future, by a clock
that was set ahead, blocks no other. Each change is noted before it is made (`history`), so that
`rollback` knows the previous model.
"""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import locked, sync
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    check_published,
    created_of,
    display_name,
    models_in,
    other_models,
    previous_champions,
    provenance_of,
)

LOCK = ".lock"


def models_lock(models_folder: Path) -> AbstractContextManager[bool]:
    """Lock a region's folder of models; wait for the present holder."""
    return locked(models_folder / LOCK, wait=True)


def switch_to_newest(published: Path, as_of: datetime) -> str | None:
    """Make a published model the latest, unless a later run's model is there.

    Call it with the folder's lock, after the gate, if there is one, has let the model pass.
    `as_of` is how new it is, as its run's `FrozenStudy` has it.

    Returns:
        Why `latest` stays with another run's model; None if it is this one now.
    """
    why = reason_not_newest(published, as_of)
    if why is None:
        _switch(published.parent / LATEST, published.name, "publish")
    return why


def reason_not_newest(published: Path, as_of: datetime) -> str | None:
    """Return why publishing a model doesn't make it the latest, if it doesn't.

    The model of a later run is there. The arguments are those of `switch_to_newest`.
    """
    link = published.parent / LATEST
    now = datetime.now(UTC)  # a newer model was planned while a clock was set ahead
    later = {model: time for model, time in other_models(published).items() if as_of < time <= now}
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
    return None


def _which_is_newer(newer: Path, older: Path) -> tuple[Path, str]:
    """Return why one model counts as newer: by their days, else by their plans.

    Returns:
        One of them, and the text about it.
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


def promote(model: Path, why: str = "") -> str | None:
    """Make a published model the latest of its region, newer or older.

    Args:
        model: its folder.
        why: the reason, which the region's history keeps.

    Returns:
        The run whose model was the latest before, None if none was.

    Raises:
        InputError: the folder is no published model.
        OSError: its folder can't be written.
    """
    place = check_published(model)
    with models_lock(place.parent):
        link = place.parent / LATEST
        previous = history.target_of(link)
        _switch(link, place.name, "promote", why)
    return previous


def restore(model: Path) -> None:
    """Make the model that another manager chose the latest.

    Raises:
        OSError: its folder can't be written.
    """
    with models_lock(model.parent):
        _switch(model.parent / LATEST, model.name, "restore")


def rollback(models_folder: Path, to: str | None = None, why: str = "") -> tuple[str, str]:
    """Make the previous model the latest, or the model of the run `to`.

    Previous champions whose folder is gone are skipped. The region's history keeps the reason.

    Returns:
        The runs whose models are the latest now and were before.

    Raises:
        InputError: there is no previous model, or none of that run; the message names the others.
        OSError: the folder can't be written.
    """
    with models_lock(models_folder):
        link = models_folder / LATEST
        current = history.target_of(link)
        if current is None:
            raise InputError(
                f"{str(models_folder)!r} has no link {LATEST}: there is no model to roll back"
            )
        target = _named(models_folder, to) if to else _previous(models_folder, current)
        _switch(link, target, "rollback", why)
    return target, current


def _named(models_folder: Path, run: str) -> str:
    if provenance_of(models_folder / run).get("run") != run:
        there = ", ".join(model.name for model in models_in(models_folder)) or "none"
        raise InputError(
            f"{display_name(models_folder)} has no model of the run {run!r}; there are: {there}"
        )
    return run


def _previous(models_folder: Path, current: str) -> str:
    there = previous_champions(models_folder)
    if not there:
        others = [model.name for model in models_in(models_folder) if model.name != current]
        more = f"; name another with --to: {', '.join(others)}" if others else ""
        raise InputError(
            f"{display_name(models_folder)}: there is no previous model before {current}{more}"
        )
    return there[-1]


def _switch(link: Path, run: str, by: str, why: str = "") -> None:
    if link.is_dir() and not link.is_symlink():
        raise InputError(f"{str(link)!r} is a folder and must be a link: move the folder away")
    if history.target_of(link) != run:
        history.note(link, run, by, why=why)
        point(link, run)


def switched(now: str, before: str | None) -> str:
    """Return the current model and the previous one, in words."""
    return f"{now}, as before" if now == before else f"{now} (was {before or 'none'})"


def point(link: Path, target: str) -> None:
    """Point `link` at `target` atomically: a reader sees the old model or the new one.

    To be called with the folder's lock.
    """
    beside = link.with_name(".latest")
    beside.unlink(missing_ok=True)  # of a switch that was killed; the lock is ours
    beside.symlink_to(target)
    beside.replace(link)
    sync(link.parent)
