"""Removal of a region's old published models that are beyond the limits of `keep:`.

The newest `keep.count` models stay, and so do all models of the last `keep.days` days. These models
stay at any age: the current model, the previous model (for `rollback`), a model that waits for
approval, and models of unknown age. A model's folder is renamed to a hidden name before it is
deleted, so that no reader finds half a model.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from trialfleet.files import sync
from trialfleet.workflows.control.models.latest import rollback_targets
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.approval import read_awaiting
from trialfleet.workflows.facts.models.folders import (
    BESIDE,
    LATEST,
    list_models,
    model_time,
)
from trialfleet.workflows.study.export import Keep


def models_to_remove(
    ages: Mapping[str, datetime], keep: Keep, now: datetime, spared: Collection[str]
) -> list[str]:
    """Return the runs whose models are beyond the limits of `keep`, oldest first.

    `ages` maps each run to the time of its model. Runs in `spared` are never returned.
    """
    newest = sorted(ages, key=lambda run: (ages[run], run), reverse=True)
    kept = set(newest[: keep.count or 0]) | set(spared)
    if keep.days is not None:
        oldest = now - timedelta(days=keep.days)
        kept |= {run for run in newest if ages[run] >= oldest}
    return [run for run in reversed(newest) if run not in kept]


def models_to_keep(models_folder: Path) -> set[str]:
    """Return the runs of the current model, the previous one, and one that awaits approval."""
    current, waits = history.current_run(models_folder / LATEST), read_awaiting(models_folder)
    others = [waits.run] if waits else []
    return {run for run in (current, *rollback_targets(models_folder)[-1:], *others) if run}


def remove_superfluous(
    models_folder: Path, keep: Keep, now: datetime, spared: Collection[str]
) -> list[str]:
    """Remove models beyond the limits of `keep`; return the runs of these models, oldest first.

    The models of the runs in `spared` and in `models_to_keep(models_folder)` stay. The caller holds
    `models_lock`. OSError if the folder can't be written.
    """
    going = models_to_remove(
        _ages(models_folder), keep, now, {*spared, *models_to_keep(models_folder)}
    )
    aside = [models_folder / f"{BESIDE}removed-{run}" for run in going]
    for run, hidden in zip(going, aside, strict=True):
        (models_folder / run).rename(hidden)
    sync(models_folder)
    for hidden in aside:
        shutil.rmtree(hidden, ignore_errors=True)
    return going


def _ages(models_folder: Path) -> dict[str, datetime]:
    return {
        model.name: as_of
        for model in list_models(models_folder)
        if not model.is_symlink() and (as_of := model_time(model)) is not None
    }
