"""The link `latest` to a region's current model, and the rules for switching it to another model.

A published model becomes the current model unless a later run or day has a model. So a run that is
resumed late, or a run for a past day, doesn't replace a newer model. Only a person can switch the
link to an older model. This choice stays until a run publishes a model that is newer than all
others. A model whose time is in the future never counts as newer, because a wrong clock gave it
that time. Each switch of the link is recorded in the region's history.

A rollback finds the previous model there. It skips models that were never current, such as those
that the gate rejected, those that an earlier rollback replaced, and those whose folders were
removed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import lock_file, sync
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.approval import with_promote_command
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    check_published,
    display_name,
    list_models,
    other_models,
    planning_time,
    read_provenance,
)

LOCK = ".lock"


def models_lock(models_folder: Path) -> AbstractContextManager[bool]:
    """Wait for the lock of a region's folder of models. The `with` block always gets it."""
    return lock_file(models_folder / LOCK, wait=True)


def switch_to_newest(published: Path, as_of: datetime) -> str | None:
    """Make a published model current, unless a newer model or a person's choice prevents this.

    Return None if the model is now current. Otherwise return why another model stays current.
    `as_of`, the time of the new model, is compared with the times of the other models. The caller
    holds `models_lock`, and has checked that the gate lets the model pass.
    """
    why = reason_not_newest(published, as_of)
    if why is None:
        switch(published.parent / LATEST, published.name, "publish")
    return why


def reason_not_newest(published: Path, as_of: datetime) -> str | None:
    """Return why `published` must not become the current model; None if nothing prevents it.

    There are two possible reasons. Either a later run has published a model, current or not. Or
    `published` was current before and was replaced, perhaps by a person. A publication that is
    repeated after a crash must not undo this.
    """
    link = published.parent / LATEST
    current = link.resolve()  # perhaps the choice of a person
    if not link.exists() or current == published.resolve():  # a broken link blocks nothing
        return None
    why = _reason_older(published, as_of, current) or _reason_replaced(published, current)
    return why and with_promote_command(f"{LATEST} stays with {current.name}{why}", published)


def _reason_older(published: Path, as_of: datetime, current: Path) -> str | None:
    now = datetime.now(UTC)  # models dated in the future, from a clock set ahead, don't count
    later = {model: time for model, time in other_models(published).items() if as_of < time <= now}
    if not later:
        return None
    own = (model for model in later if model.resolve() == current)
    newest = next(own, max(later, key=lambda model: later[model]))
    model, words = _compare_ages(newest, published)
    return f"{_subject(model, current)} {words}"


def _reason_replaced(published: Path, current: Path) -> str | None:
    move = history.last_move(published.parent / LATEST, published.name)
    if move is None:
        return None
    by = _subject(published.parent / move.run, current)
    return f"{by} replaced {published.name} ({move.description})"


def _subject(model: Path, current: Path) -> str:
    return ", which" if model.resolve() == current else f": {model.name}"


def _compare_ages(newer: Path, older: Path) -> tuple[Path, str]:
    """Return one of two models, and words about its age, such as "is of a later day"."""
    day, before = (read_provenance(model).get("date") for model in (newer, older))
    planned, planned_before = planning_time(newer), planning_time(older)
    if day and before and day != before:
        model, which, its_day = newer, "a later", day
    elif before and planned and planned_before and planned < planned_before:
        model, which, its_day = older, "an earlier", before
    else:
        return newer, "was planned later"
    # a run's id usually contains its day
    return model, f"is of {which} day{'' if its_day in model.name else f', {its_day}'}"


def promote(model: Path, why: str = "") -> str | None:
    """Make a model current, however old it is; return the run of the previously current model.

    Return None if no model was current before. `why` is stored in the region's history.

    Raises:
        InputError: `model` is not a published model, or `latest` is a folder instead of a link.
        OSError: the region's folder can't be written.
    """
    place = check_published(model)
    with models_lock(place.parent):
        check_published(place)  # a publication, which held the lock, may have removed it by `keep`
        link = place.parent / LATEST
        previous = history.current_run(link)
        switch(link, place.name, "promote", why)
    return previous


def switch(link: Path, run: str, by: str, why: str = "") -> None:
    """Point `link` at the model of `run`, and record this change in the region's history.

    `by` says what makes the change, such as "rollback". `why` is a person's reason. The caller
    holds `models_lock`. InputError if `link` is a folder.
    """
    if link.is_dir() and not link.is_symlink():
        raise InputError(f"{str(link)!r} is a folder and must be a link: move the folder away")
    if history.current_run(link) != run:
        history.note(link, run, by, why=why)
        set_link(link, run)


def set_link(link: Path, target: str) -> None:
    """Point `link` at `target` atomically. The caller holds `models_lock`."""
    beside = link.with_name(".latest")
    beside.unlink(missing_ok=True)  # left by a killed switch; we hold the lock
    beside.symlink_to(target)
    beside.replace(link)
    sync(link.parent)


def rollback(models_folder: Path, to: str | None = None, why: str = "") -> tuple[str, str]:
    """Make the previous model current again, or the model of the run `to`.

    Return the runs of the model that is current now, and of the one that it replaced. A previous
    model whose folder was removed is skipped. `why` is stored in the region's history. InputError
    if there is no such model. OSError if the folder can't be written.
    """
    with models_lock(models_folder):
        link = models_folder / LATEST
        current = history.current_run(link)
        if current is None:
            raise InputError(
                f"{str(models_folder)!r} has no link {LATEST}: there is no model to roll back"
            )
        target = _find_named(models_folder, to) if to else _find_previous(models_folder, current)
        switch(link, target, "rollback", why)
    return target, current


def _find_named(models_folder: Path, run: str) -> str:
    if read_provenance(models_folder / run).get("run") != run:
        there = ", ".join(model.name for model in list_models(models_folder)) or "none"
        raise InputError(
            f"{display_name(models_folder)} has no model of the run {run!r}; "
            f"runs with a model: {there}"
        )
    return run


def _find_previous(models_folder: Path, current: str) -> str:
    there = rollback_targets(models_folder)
    if not there:
        others = [model.name for model in list_models(models_folder) if model.name != current]
        more = f"; name another with --to: {', '.join(others)}" if others else ""
        raise InputError(
            f"{display_name(models_folder)}: there is no earlier model than {current} "
            f"to go back to{more}"
        )
    return there[-1]


def rollback_targets(models_folder: Path) -> list[str]:
    """Return the runs to which repeated rollbacks go back, of which the last is the next one.

    OSError if the history can't be read.
    """
    previous = current_runs(models_folder / LATEST)[:-1]
    return [run for run in previous if read_provenance(models_folder / run).get("run") == run]


def current_runs(link: Path) -> list[str]:
    """Return the runs that are or were current, oldest first, without those rolled back."""
    stack: list[str] = []
    for change in history.readable_changes(link):
        if change.by == "rollback" and change.run in stack:
            while stack[-1] != change.run:
                stack.pop()
        elif not stack or stack[-1] != change.run:
            stack.append(change.run)
    return stack
