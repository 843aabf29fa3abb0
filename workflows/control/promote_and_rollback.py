"""`promote` and `rollback`: a person's choice of current models, and the update of exports."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import InputError
from trialfleet.workflows.control.models import latest
from trialfleet.workflows.facts.models.folders import EXPORTS, display_name, read_region_name
from trialfleet.workflows.formatting import in_one_line

if TYPE_CHECKING:
    from trialfleet.workflows.facts.models.export_folder import ExportFolder, Targets

_TRIES, _TRY_SECONDS = 20, 0.25  # tries to get the lock for exports, and the time between two
_LONGEST_WHY = 300  # characters of a reason
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A person's choice of a region's current model.

    `folder` has the region's models. `run` is the run of the model that is now current. `previous`
    is the run of the model that was current before; None if there was none.
    """

    study: str
    region: str
    folder: Path
    run: str
    previous: str | None

    def __str__(self) -> str:
        how = ", as before" if self.run == self.previous else f" (was {self.previous or 'none'})"
        return f"{display_name(self.folder)}: latest is {self.run}{how}"


def promote(*models: str | PathLike[str], why: str = "") -> list[Switch]:
    """Make each model the current model of its region, even if the present one is newer.

    Each of `models` is a run's id (for the models of all its regions), RUN/REGION, or a model's
    folder. `why` is stored in the region's history, and shown in the alert that sums up the day.
    Exports that are unreachable now are updated later.

    Raises:
        InputError: a model does not exist, or can't be promoted. If a model does not exist, no
            model is promoted. If a model can't be promoted, the others are.
    """
    done, left = promote_each([os.fspath(model) for model in models], why)
    follow(switch.folder for switch in done)
    if left:
        raise InputError("\n".join(f"not promoted: {line}" for line in left))
    return done


def rollback(region: str | PathLike[str], *, to: str | None = None, why: str = "") -> Switch:
    """Make the previous model of a region current again; a second call goes back one model further.

    `region` is the region's name, STUDY/REGION, or the folder of the region's models. `to` is the
    run whose model becomes current, by default the run of the previous model. `why` is stored in
    the region's history, and shown in the alert that sums up the day. Exports that are unreachable
    now are updated later.

    Raises:
        InputError: the region does not exist, or has no earlier model.
    """
    switch = go_back(os.fspath(region), None, to, why)
    follow([switch.folder])
    return switch


def promote_each(models: Iterable[str], why: str) -> tuple[list[Switch], list[str]]:
    """Promote models without updating exports; return the switches, and a line for each failure.

    Raises:
        InputError: a model doesn't exist; or only one model is named, and it can't be promoted.
    """
    from trialfleet.workflows.facts.runs.lookup import find_models

    named = [place for model in models for place in find_models(model)]
    done, left = [], []
    for place in named:
        try:
            with _readable_errors(place):
                previous = latest.promote(place, in_one_line(why, _LONGEST_WHY))
        except InputError as error:
            if len(named) == 1:
                raise
            left.append(
                f"{display_name(place.parent) if place.parent.is_dir() else place}: {error}"
            )
            continue
        done.append(_switch(place.resolve().parent, place.name, previous))
    return done, left


def go_back(region: str, study: str | None, to: str | None, why: str) -> Switch:
    """Roll a region back as `rollback` does, but without updating exports.

    `study` is the name of the region's study. It may be None if `region` names the study, or if no
    other study has a region of this name.
    """
    from trialfleet.workflows.facts.runs.lookup import find_models_folder

    models_folder = find_models_folder(region, study)
    with _readable_errors(models_folder):
        now, before = latest.rollback(models_folder, to, in_one_line(why, _LONGEST_WHY))
    return _switch(models_folder, now, before)


def _switch(folder: Path, run: str, previous: str | None) -> Switch:
    study = display_name(folder).partition("/")[0]
    return Switch(
        study=study, region=read_region_name(folder), folder=folder, run=run, previous=previous
    )


@contextmanager
def _readable_errors(place: Path) -> Iterator[None]:
    """Turn an OSError into an InputError, which is shown without a traceback."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or place}: {error.strerror}") from error


def follow(models_folders: Iterable[Path], tell: Tell = lambda _: None) -> dict[str, str]:
    """Update the exports of regions whose `latest` was switched; return the problems, by target.

    `tell` is called with a line about each action. Targets that are unreachable now are updated
    later. If another process is exporting, that process will update these exports, too.
    """
    exported = [each for each in models_folders if (each.parent / EXPORTS).is_dir()]
    if not exported:  # no slow import, so that a rollback is fast
        return {}
    from trialfleet.workflows.facts.models.export_folder import ExportFolder

    by_folder = defaultdict(list)
    for models_folder in exported:
        by_folder[ExportFolder.for_models_folder(models_folder)].append(models_folder)
    problems: dict[str, str] = {}
    for folder, some in by_folder.items():
        try:
            targets = folder.targets()
        except InputError as error:
            problems["the study's destinations"] = str(error)
            continue
        if targets is None:
            continue
        from trialfleet.workflows.control.export.export_pass import export_settled

        with _lock_exports(folder) as ours:
            if not ours:
                tell("an export is running; it will copy this change too")
                continue
            enter(targets)
            problems |= export_settled(folder, targets, tell, some)
    return problems


@contextmanager
def _lock_exports(folder: ExportFolder) -> Iterator[bool]:
    """Wait at most some seconds for the lock; yield whether this process got it."""
    for _ in range(_TRIES):
        with folder.hold_lock(wait=False) as ours:
            if ours:
                yield True
                return
        time.sleep(_TRY_SECONDS)
    yield False


def enter(targets: Targets) -> None:
    """Set the environment variables that the export targets need, unless they are already set."""
    for name, value in targets.variables.items():
        os.environ.setdefault(name, value)
