"""The files of one trial: what it is told, and its submit file."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trialfleet.files import write_atomic, write_json
from trialfleet.workflows.folder import RunFolder, TrialFolder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.render import render
from trialfleet.workflows.study import URL_PREFIXES, Study, Trainer

TRIAL_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """What one trial shall run."""

    region: str
    node: str
    trial: int
    mode: Literal["tune", "final"]
    seed: int
    params: dict[str, Any]


def write_trial(
    run: str, study: Study, folder: RunFolder, place: TrialFolder, order: TrialOrder
) -> None:
    """Write a trial's folder anew, so that an attempt begins with nothing of the one before.

    The submit file goes first and comes last: where it stands, everything it names stands too.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    place.submit.unlink(missing_ok=True)
    _empty(place, order.mode)
    data = study.data_of(order.region)
    write_json(place.trial_json, _contract(run, study, order, [sandbox_name(d) for d in data]))
    write_atomic(place.submit, _submit_file(run, study, folder, place, order, data))


def _empty(place: TrialFolder, mode: str) -> None:
    for file in (place.result, place.progress):
        write_atomic(file, "")
    for made in (place.checkpoint, place.model):
        shutil.rmtree(made, ignore_errors=True)
    place.checkpoint.mkdir()
    if mode == "final":
        place.model.mkdir()


def _contract(run: str, study: Study, order: TrialOrder, data: list[str]) -> dict[str, Any]:
    return {
        "schema": TRIAL_SCHEMA,
        "study": study.name,
        "run": run,
        "region": order.region,
        "node": order.node,
        "trial": order.trial,
        "mode": order.mode,
        "seed": order.seed,
        "params": order.params,
        "objective": study.objective.model_dump(),
        "data": data,
        "accelerator": study.accelerator,
        "gpus": study.resources.whole_gpus,
        "gpu_share": 1 / study.resources.trials_per_gpu,
    }


def sandbox_name(place: str) -> str:
    """Return the name that a data file or URL has in a trial's sandbox."""
    return Path(place).name  # of a URL too: HTCondor keeps its last part as it is, %20 and all


def _submit_file(
    run: str,
    study: Study,
    folder: RunFolder,
    place: TrialFolder,
    order: TrialOrder,
    data: list[str],
) -> str:
    trainer = study.trainer
    minutes = trainer.minutes if isinstance(trainer, Trainer) else None
    files = [d for d in data if not d.startswith(URL_PREFIXES)]
    return render(
        "submit/trial.sub.j2",
        run=run,
        region=order.region,
        slug=region_slug(order.region),
        node=order.node,
        trial=order.trial,
        mode=order.mode,
        accelerator=study.accelerator,
        resources=study.resources,
        seconds=round(minutes * 60) if minutes else None,
        root=folder.root,
        top=os.path.relpath(folder.root, place.root),
        code=sorted(path.name for path in folder.code.iterdir()),
        s3=study.s3,
        files=files,
        urls=[d for d in data if d.startswith(URL_PREFIXES)],
    )
