"""The files of one trial: its order, and its submit file."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from trialfleet.workflows.trial_names import is_lane

TRIAL_SCHEMA = 1
MOST_STARTS = 1000  # a gang's job that got a slot so often, and lost it, is given up
MOST_VACATES, SHORT_SECONDS = 20, 120  # any other job: as often, after so short executions
# Files with more are sent to a machine once for all jobs there. For that HTCondor makes a transfer
# of its own, and no slot goes from one region's job to another's: 3 s. Less is sent in 0.1 s.
ONCE_BYTES = 10_000_000
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


@dataclass(frozen=True)
class Turn:
    """Words of an agent that want an answer.

    Attributes:
        token: names the agent's process.
        number: of its words.
    """

    token: str
    number: int


def write_trial(
    run: str, study: Study, folder: RunFolder, place: TrialFolder, order: TrialOrder
) -> None:
    """Write the files of a job and of the first trial that it trains.

    The submit file goes first and comes last: where it stands, everything it names stands too.
    """
    with _job_of(run, study, folder, place, order):
        hand_out(run, study, folder, place, order)


def write_job(
    run: str, study: Study, folder: RunFolder, place: TrialFolder, order: TrialOrder
) -> None:
    """Write the files of a lane's job, whose agent asks for its first trial.

    Args:
        run: the run's id.
        study: the run's.
        folder: likewise.
        place: the node's folder.
        order: what its trials have in common.
    """
    with _job_of(run, study, folder, place, order):
        nothing = {"schema": TRIAL_SCHEMA, "token": "", "turn": 0, "do": "ask"}
        job_files.write_json(place.order, nothing, within=place.node_root)
        for words in (place.stop, place.reports):
            job_files.write(words, "", within=place.node_root)


@contextmanager
def _job_of(
    run: str, study: Study, folder: RunFolder, place: TrialFolder, order: TrialOrder
) -> Iterator[None]:
    """Write a job's files around what the block writes: its submit file at the end."""
    job_files.remove(place.submit)
    for made in (place.root, place.node_root):
        made.mkdir(parents=True, exist_ok=True)
    if not job_files.is_folder(place.words):
        job_files.make_empty(place.words)
    job_files.remove(place.said)
    gang = _gang_of(study, order)
    for log in place.agent_logs(gang.max if gang else None):
        job_files.write(log, "")
    if gang:
        _write_gang(run, study, folder, place, gang)
    yield
    job_files.write(place.submit, submit_text(run, study, folder, place, order))


def hand_out(
    run: str,
    study: Study,
    folder: RunFolder,
    place: TrialFolder,
    order: TrialOrder,
    turn: Turn | None = None,
) -> None:
    """Write a trial's folder anew, and the order by which its job's agent begins it.

    Where there is a checkpoint of the trial, it goes on from that; `Attempts` removes one of an
    attempt that failed.

    Args:
        run: the run's id.
        study: the run's.
        folder: likewise.
        place: the trial's.
        order: what is to be trained.
        turn: whom it answers; None: the job has not begun.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    contract = _write_contract(run, study, folder, place, order, durable=turn is None)
    stopping = study.early_stopping if order.mode == "tune" else None
    words = {
        "schema": TRIAL_SCHEMA,
        "token": turn.token if turn else "",
        "turn": turn.number if turn else 0,
        "do": "train",
        "name": place.root.name,
        "trial": contract,
        "left": _LEFT[order.mode],
        "given": turn is not None and bool(order.models),
        "last": not place.is_shared,
        "memory_mb": round(study.resources.memory_bytes / (1 << 20), 1),
        "seconds": _seconds(study),
        "grace_seconds": stopping.grace_seconds if stopping else None,
    }
    job_files.write_json(place.order, words, within=place.node_root)


def _seconds(study: Study) -> int | None:
    """How long a trial may train."""
    minutes = study.trainer.minutes if isinstance(study.trainer, Trainer) else None
    return round(minutes * 60) if minutes else None


def dismiss(place: TrialFolder, turn: Turn, code: int, why: str) -> None:
    """Have a job's agent leave with an exit code."""
    who = {"token": turn.token, "turn": turn.number}
    words = {"schema": TRIAL_SCHEMA, **who, "do": "leave", "code": code, "why": why}
    job_files.write_json(place.order, words, within=place.node_root)


def _write_contract(
    run: str,
    study: Study,
    folder: RunFolder,
    place: TrialFolder,
    order: TrialOrder,
    *,
    durable: bool = True,
) -> dict[str, Any]:
    """Write `trial.json` and empty the trial's folder: nothing of a former attempt is in it.

    Args:
        run: the run's id.
        study: the run's.
        folder: likewise.
        place: the trial's.
        order: what is to be trained.
        durable: whether `trial.json` is to survive a power failure; an agent's order says the same.

    Returns:
        What `trial.json` holds.
    """
    _empty(place, order.mode)
    job_files.remove(place.left)
    job_files.write(place.reports, "", within=place.node_root, durable=False)
    # An order to stop this very trial stays: it may have been given before its job was lost.
    if not job_files.size_of(place.stop) or place.is_shared:
        job_files.write(place.stop, "", within=place.node_root, durable=False)
    data = [sandbox_name(d) for d in inputs_of(study, folder, order.region)]
    contract = _contract(run, study, order, data)
    job_files.write_json(place.trial_json, contract, durable=durable)
    return contract


def _write_gang(run: str, study: Study, folder: RunFolder, place: TrialFolder, gang: Gang) -> None:
    """Forget a former gang's generations, and say where in S3 this one's checkpoints lie."""
    job_files.make_empty(place.gang)
    if gang.checkpoints:
        node = place.node_root.relative_to(folder.root).parts
        attempt = secrets.token_hex(4)  # nothing of a former one is ever written over
        prefix = "/".join([gang.checkpoints.rstrip("/"), study.name, run, *node, attempt])
        job_files.write_json(place.gang_store, {"schema": 1, "prefix": prefix})


def _reach(folder: RunFolder, place: TrialFolder, data: Sequence[str], order: TrialOrder) -> str:
    """Return what of the access point a job with a proxy reaches, as HTCondor's list of prefixes.

    Its words. And, because HTCondor's own transfer keeps to the list, what it sends to the job and
    takes from it, file by file: each of them exists, for a new one needs all of its folder.
    """
    own = [place.words, place.agent_log, *(place.root / name for name in order.models.values())]
    return ",".join(map(_prefix, [*own, folder.agent, folder.code, *map(Path, data)]))


def _prefix(path: Path) -> str:
    """Return a path as an item of that list: as far as the list and ClassAds take its letters."""
    return re.split(r"[,*\"\\$]", os.path.realpath(path), maxsplit=1)[0] + "*"


def _empty(place: TrialFolder, mode: Mode) -> None:
    for file in (place.result, place.progress):
        job_files.write(file, "", durable=False)
    for made in (place.ended, place.checkpoint, place.model, place.losses):
        job_files.remove(made)
    for name in (place.checkpoint.name, *_LEFT[mode]):
        job_files.make_empty(place.root / name)


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
    files = [d for d in data if not d.startswith(URL_PREFIXES)]
    gang = _gang_of(study, order)
    return render_template(
        "submit/trial.sub.j2",
        run=run,
        region=order.region,
        slug=region_slug(order.region),
        node=place.node_root.name if place.is_shared else order.node,
        trial=order.trial,
        mode=order.mode,
        job_seconds=round(study.budget_of(order.region).job_minutes * 60),
        reach=_reach(folder, place, files, order),
        models=list(order.models.values()),
        accelerator=study.accelerator,
        resources=study.resources,
        disk_kb=math.ceil(bytes_of(study.resources.disk) / 1024),
        root=folder.root,
        top=os.path.relpath(folder.root, place.node_root),
        code=sorted(path.name for path in folder.code.iterdir()),
        team=study.team,
        priced_by=PRICED_BY,
        s3=study.s3,
        files=files,
        once=are_large(map(Path, files)),
        avoid=order.avoid,
        avoid_seconds=AVOID_SECONDS,
        gang=gang,
        lane=is_lane(place.node_root.name),
        most_starts=MOST_STARTS,
        most_vacates=MOST_VACATES,
        short_seconds=SHORT_SECONDS,
        until=math.ceil(order.until.timestamp()) if order.until else None,
        urls=[d for d in data if d.startswith(URL_PREFIXES)],
    )


def are_large(paths: Iterable[Path]) -> bool:
    """Return whether files, and those of folders, have more bytes than are sent with each job."""
    left = ONCE_BYTES
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            with suppress(OSError):  # gone: the job says so
                left -= file.stat().st_size
            if left < 0:
                return True
    return False
