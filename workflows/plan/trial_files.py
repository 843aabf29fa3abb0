"""The files of one trial: its order, and its submit file."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from trialfleet import job_files
from trialfleet.render import render_template
from trialfleet.sections import bytes_of
from trialfleet.workflows.costs.cost import PRICED_BY
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.plan.folder import RunFolder, TrialFolder
from trialfleet.workflows.plan.inputs import inputs_of
from trialfleet.workflows.study.paths import sandbox_name
from trialfleet.workflows.study.sections import Gang
from trialfleet.workflows.study.spec import URL_PREFIXES, Study, Trainer

TRIAL_SCHEMA = 1
MOST_STARTS = 1000  # a gang's job that got a slot so often, and lost it, is given up
MOST_VACATES, SHORT_SECONDS = 20, 120  # any other job: as often, after so short executions
AVOID_SECONDS = 120  # so long a job waits for another machine than those where it failed before
Mode = Literal["tune", "final", "evaluate"]
_LEFT = {"tune": [], "final": ["model"], "evaluate": ["losses"]}  # folders, beside what all leave


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """What one trial runs.

    Attributes:
        models: in mode "evaluate", the folders in the sandbox of the models to measure, by what
            they are: champion, challenger.
        avoid: machines that its job is not to run on while others may take it.
        alone: it is one job also where the study's trials are gangs.
        until: a job that has not begun by then does not begin any more.
    """

    region: str
    node: str
    trial: int
    mode: Mode
    seed: int
    params: dict[str, Any]
    models: dict[str, str] = field(default_factory=dict)
    avoid: tuple[str, ...] = ()
    alone: bool = False
    until: datetime | None = None


def write_trial(
    run: str, study: Study, folder: RunFolder, place: TrialFolder, order: TrialOrder
) -> None:
    """Write a trial's folder anew, so that an attempt begins with nothing of the one before.

    The submit file goes first and comes last: where it stands, everything it names stands too.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    job_files.remove(place.submit)
    _empty(place, order.mode)
    gang = _gang_of(study, order)
    if gang or _is_stoppable(study, order):
        if not job_files.is_folder(place.words):
            job_files.make_empty(place.words)
        job_files.write(place.reports, "", within=place.root)
        if not job_files.size_of(place.stop):  # an order that is there stays
            job_files.write(place.stop, "", within=place.root)
        for file in _output(place, gang):
            job_files.write(file, "")
    if gang:
        _empty_gang(place)
        if gang.checkpoints:
            trial = place.root.relative_to(folder.root).parts
            attempt = secrets.token_hex(4)  # nothing of a former one is ever written over
            prefix = "/".join([gang.checkpoints.rstrip("/"), study.name, run, *trial, attempt])
            job_files.write_json(place.gang_store, {"schema": 1, "prefix": prefix})
    data = inputs_of(study, folder, order.region)
    contract = _contract(run, study, order, [sandbox_name(d) for d in data])
    job_files.write_json(place.trial_json, contract)
    job_files.write(place.submit, submit_text(run, study, folder, place, order))


def _is_stoppable(study: Study, order: TrialOrder) -> bool:
    """Whether a trial may be told to stop early. A gang isn't: its reports stay with its ranks."""
    is_asked = study.early_stopping is not None and order.mode == "tune"
    return is_asked and _gang_of(study, order) is None


def _output(place: TrialFolder, gang: Gang | None) -> list[Path]:
    """Return the files that get the standard output and error of a trial's jobs."""
    streams = (place.out, place.err)
    if gang is None:
        return [*streams]
    return [place.of_proc(stream, proc) for stream in streams for proc in range(gang.max)]


def _reach(folder: RunFolder, place: TrialFolder, data: Sequence[str]) -> str:
    """Return what of the access point a job with a proxy reaches, as HTCondor's list of prefixes.

    Its words. And, because HTCondor's own transfer keeps to the list, what it sends to the job and
    takes from it, file by file: each of them exists, for a new one needs all of its folder.
    """
    own = [place.trial_json, place.result, place.progress, place.checkpoint, place.model]
    sent = [folder.start, folder.code, *map(Path, data)]
    return ",".join(map(_prefix, [place.words, *own, place.out, place.err, *sent]))


def _prefix(path: Path) -> str:
    """Return a path as an item of that list: as far as the list and ClassAds take its letters."""
    return re.split(r"[,*\"\\$]", os.path.realpath(path), maxsplit=1)[0] + "*"


def _empty(place: TrialFolder, mode: Mode) -> None:
    for file in (place.result, place.progress):
        job_files.write(file, "")
    for made in (place.checkpoint, place.model, place.losses):
        job_files.remove(made)
    for name in (place.checkpoint.name, *_LEFT[mode]):
        job_files.make_empty(place.root / name)


def _empty_gang(place: TrialFolder) -> None:
    """Forget the former attempt's generations, and which rank's output was its own."""
    job_files.make_empty(place.gang)
    for stream in (place.out, place.err):
        job_files.remove(stream)


def _gang_of(study: Study, order: TrialOrder) -> Gang | None:
    """How many slots train together, where it is more than a job by itself."""
    alone = order.alone or order.mode == "evaluate"
    return None if alone else study.nodes_of(order.region)


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
        "gpus": study.resources.whole_gpus if study.accelerator == "gpu" else 0,
        "gpu_share": 1 / study.resources.trials_per_gpu,
        **({"models": order.models} if order.models else {}),
    }


def submit_text(
    run: str, study: Study, folder: RunFolder, place: TrialFolder, order: TrialOrder
) -> str:
    """Return a trial's submit file; it is to be submitted in the trial's folder."""
    data = inputs_of(study, folder, order.region)
    trainer = study.trainer
    minutes = trainer.minutes if isinstance(trainer, Trainer) else None
    files = [d for d in data if not d.startswith(URL_PREFIXES)]
    return render_template(
        "submit/trial.sub.j2",
        run=run,
        region=order.region,
        slug=region_slug(order.region),
        node=order.node,
        trial=order.trial,
        mode=order.mode,
        left=_LEFT[order.mode],
        stoppable=_is_stoppable(study, order),
        reach=_reach(folder, place, files),
        models=list(order.models.values()),
        accelerator=study.accelerator,
        resources=study.resources,
        disk_kb=math.ceil(bytes_of(study.resources.disk) / 1024),
        seconds=round(minutes * 60) if minutes else None,
        root=folder.root,
        top=os.path.relpath(folder.root, place.root),
        code=sorted(path.name for path in folder.code.iterdir()),
        team=study.team,
        priced_by=PRICED_BY,
        s3=study.s3,
        files=files,
        avoid=order.avoid,
        avoid_seconds=AVOID_SECONDS,
        gang=_gang_of(study, order),
        most_starts=MOST_STARTS,
        most_vacates=MOST_VACATES,
        short_seconds=SHORT_SECONDS,
        until=math.ceil(order.until.timestamp()) if order.until else None,
        urls=[d for d in data if d.startswith(URL_PREFIXES)],
    )
