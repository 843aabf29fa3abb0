"""Rollback of a region's current model: by default to the model that was current before it.

A rollback skips models that were never current, such as those that the gate rejected. It also skips
models that an earlier rollback replaced, and models whose folders were removed.
"""

from __future__ import annotations

from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.workflows.control.models.latest import models_lock, switch
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    display_name,
    list_models,
    read_provenance,
)


def rollback(models_folder: Path, to: str | None = None, why: str = "") -> tuple[str, str]:
    """Make the previous model current again, or the model of the run `to`.

    Return the run of the model that is current now, and the run of the model that it replaced. If
    the previous model's folder was removed, the model before it becomes current. `why` is stored in
    the region's history.

    Raises:
        InputError: there is no previous model, or no model of the run `to`.
        OSError: the folder can't be written.
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
    """Return the runs whose models become current again by repeated rollbacks, oldest first.

    The next rollback goes back to the last run in the list.
    """
    previous = current_runs(models_folder / LATEST)[:-1]
    return [run for run in previous if read_provenance(models_folder / run).get("run") == run]


def current_runs(link: Path) -> list[str]:
    """Return the runs whose models are or were current, oldest first.

    Models that a rollback replaced are left out. The last run in the list has the current model.
    """
    stack: list[str] = []
    for change in history.changes(link):
        if change.by == "rollback" and change.run in stack:
            while stack[-1] != change.run:
                stack.pop()
        elif not stack or stack[-1] != change.run:
            stack.append(change.run)
    return stack
