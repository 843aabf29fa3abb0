"""The files of a trial's job: trial.json, the order to the job's agent, and the submit file."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trialfleet import untrusted_files
from trialfleet.render import render_template
from trialfleet.sections import parse_bytes
from trialfleet.workflows.control.plan.input_provenance import image_files, list_inputs
from trialfleet.workflows.facts.jobs.agent_messages import MessageId
from trialfleet.workflows.facts.jobs.gang_records import checkpoint_prefixes
from trialfleet.workflows.facts.jobs.slot_price import PRICED_BY
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.paths import sandbox_name
from trialfleet.workflows.study.sections import Gang
from trialfleet.workflows.study.spec import URL_PREFIXES, Study, Trainer

TRIAL_SCHEMA = 1
# Bytes. Larger files are sent to a machine once, for all jobs there. This costs about 3 s: HTCondor
# makes a separate transfer, and then another region's job can't reuse a slot. Smaller files are
# sent with each job, in 0.1 s.
ONCE_BYTES = 10_000_000
Mode = Literal["tune", "final", "evaluate"]
# A mode's additional folders.
_LEFT = {"tune": [], "final": ["model"], "evaluate": ["losses"]}


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """An order to a job's agent, the program that runs trials: to train once, or to measure models.

    Attributes:
        models: in mode "evaluate", the folders of the models in the job's working folder. The keys
            are "champion" for the current model, and "challenger" for the new one.
        avoid: machines on which attempts failed; the job avoids them for two minutes.
        alone: True if one job must train the trial although gangs train the study's trials.
        until: the latest start of the job; None for no limit.
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
class TrialFiles:
    """Writes the files of a trial and of the trial's job.

    Attributes:
        place: the trial's folder, or the DAG node's folder for a lane's job, which trains several
            trials.
        order: the instruction to train the trial. A lane's job uses only the values that all
            trials of the lane share.
    """

    run: str
    study: Study
    folder: RunFolder
    place: TrialFolder
    order: TrialOrder

    def write(self) -> None:
        """Write the files of a job and of its first trial."""
        with self._job():
            self.hand_out()

    def write_job(self) -> None:
        """Write only the files of a lane's job. The job's agent will ask for a trial."""
        with self._job():
            _tell(self.place, None, do="ask")
            for words in (self.place.stop, self.place.reports):
                untrusted_files.write(words, "", root=self.place.node_root)

    def hand_out(self, turn: MessageId | None = None) -> None:
        """Write the trial's files, and the order that makes the job's agent start the trial.

        The order answers the agent's message `turn`; None before the job begins. If an earlier
        attempt left a checkpoint, the trial continues from there.
        """
        study, place, order = self.study, self.place, self.order
        place.root.mkdir(parents=True, exist_ok=True)
        self._empty()
        contract = self._trial_contract()
        # the order to a running agent has the same content, so a power failure may lose this file
        untrusted_files.write_json(place.trial_json, contract, durable=turn is None)
        minutes = study.trainer.minutes if isinstance(study.trainer, Trainer) else None
        stopping = study.early_stopping if order.mode == "tune" else None
        _tell(
            place,
            turn,
            do="train",
            name=place.root.name,
            trial=contract,
            left=_LEFT[order.mode],
            given=turn is not None and bool(order.models),
            last=not place.is_shared,
            memory_mb=round(study.resources.memory_bytes / (1 << 20), 1),
            seconds=round(minutes * 60) if minutes else None,
            grace_seconds=stopping.grace_seconds if stopping else None,
        )

    def submit_text(self) -> str:
        """Return the text of the job's submit file, for submission from the DAG node's folder."""
        study, folder, place, order = self.study, self.folder, self.place, self.order
        files = [d for d in self._data if not d.startswith(URL_PREFIXES)]
        sif = image_files(study)
        files += map(str, sif)
        return render_template(
            "submit/trial.sub.j2",
            run=self.run,
            study=study,
            order=order,
            slug=region_slug(order.region),
            node=place.node_root.name if place.is_shared else order.node,
            job_seconds=round(study.region_budget(order.region).job_minutes * 60),
            reach=self._allowed_prefixes(files),
            disk_kb=math.ceil(parse_bytes(study.resources.disk) / 1024),
            root=folder.root,
            top=os.path.relpath(folder.root, place.node_root),
            code=sorted(path.name for path in folder.code.iterdir()),
            sif=sif[0].name if sif else None,
            priced_by=PRICED_BY,
            files=files,
            once=are_large(map(Path, files)),
            gang=self._gang,
            lane=is_lane(place.node_root.name),
            until=math.ceil(order.until.timestamp()) if order.until else None,
            urls=[d for d in self._data if d.startswith(URL_PREFIXES)],
        )

    @cached_property
    def _data(self) -> list[str]:
        return list_inputs(self.study, self.folder, self.order.region)

    @cached_property
    def _gang(self) -> Gang | None:
        alone = self.order.alone or self.order.mode == "evaluate"
        return None if alone else self.study.region_gang(self.order.region)

    @contextmanager
    def _job(self) -> Iterator[None]:
        """Write a job's files. The `with` block writes the files of the job's first trial.

        The submit file is removed first and written last. While it exists, all files that it names
        exist.
        """
        place, gang = self.place, self._gang
        untrusted_files.remove(place.submit)
        for made in (place.root, place.node_root):
            made.mkdir(parents=True, exist_ok=True)
        if not untrusted_files.is_folder(place.words):
            untrusted_files.make_empty(place.words)
        untrusted_files.remove(place.said)
        for log in place.agent_logs(gang.max if gang else None):
            untrusted_files.write(log, "")
        if gang:
            self._begin_gang(gang)
        yield
        untrusted_files.write(place.submit, self.submit_text())

    def _begin_gang(self, gang: Gang) -> None:
        """Delete the files of the DAG node's earlier gang. Choose the new gang's prefix in S3."""
        earlier = checkpoint_prefixes(self.place)
        untrusted_files.make_empty(self.place.gang)
        untrusted_files.remove(self.place.gang_store)
        if gang.checkpoints:
            node = self.place.node_root.relative_to(self.folder.root).parts
            attempt = secrets.token_hex(4)  # no previous attempt's checkpoints are overwritten
            bucket = gang.checkpoints.rstrip("/")
            prefix = "/".join([bucket, self.study.name, self.run, *node, attempt])
            stored = {"schema": 1, "prefix": prefix, "earlier": earlier}
            untrusted_files.write_json(self.place.gang_store, stored)

    def _empty(self) -> None:
        """Empty the trial's folder, except the packed checkpoint from the previous attempt."""
        place, mode = self.place, self.order.mode
        for file in (place.result, place.progress):
            untrusted_files.write(file, "", durable=False)
        printed = (place.printed_out, place.printed_err)
        for made in (*printed, place.ended, place.checkpoint, place.model, place.losses):
            untrusted_files.remove(made)
        for name in (place.checkpoint.name, *_LEFT[mode]):
            untrusted_files.make_empty(place.root / name)
        untrusted_files.remove(place.left)
        untrusted_files.write(place.reports, "", root=place.node_root, durable=False)
        # A trial's own stop order stays: it may have been written before the job was lost.
        if not untrusted_files.file_size(place.stop) or place.is_shared:
            untrusted_files.write(place.stop, "", root=place.node_root, durable=False)

    def _trial_contract(self) -> dict[str, Any]:
        study, order = self.study, self.order
        return {
            "schema": TRIAL_SCHEMA,
            "study": study.name,
            "run": self.run,
            "region": order.region,
            "node": order.node,
            "trial": order.trial,
            "mode": order.mode,
            "seed": order.seed,
            "params": order.params,
            "objective": study.objective.model_dump(),
            "data": [sandbox_name(place) for place in self._data],
            "accelerator": study.accelerator,
            "gpus": study.resources.whole_gpus if study.accelerator == "gpu" else 0,
            "gpu_share": 1 / study.resources.trials_per_gpu,
            **({"models": order.models} if order.models else {}),
        }

    def _allowed_prefixes(self, files: Iterable[str]) -> str:
        """Return the path prefixes on the access point that HTCondor lets the job read and write.

        HTCondor's file transfer obeys this list, too, so the list includes all transferred files.
        The list lets a job write files, but not create them. So each file must exist before the
        job begins.
        """
        place, models = self.place, self.order.models.values()
        own = [place.words, place.agent_log, *(place.root / name for name in models)]
        own += [self.folder.agent, self.folder.code, *map(Path, files)]
        return ",".join(map(_prefix, own))


def dismiss(place: TrialFolder, turn: MessageId, code: int, why: str) -> None:
    """Answer a message of a job's agent: order the agent to exit with the exit code `code`.

    `turn` identifies the message. `why` is the reason that the agent prints.
    """
    _tell(place, turn, do="leave", code=code, why=why)


def _tell(place: TrialFolder, turn: MessageId | None, **words: Any) -> None:
    asked = turn or MessageId(token="", number=0)
    order = {"schema": TRIAL_SCHEMA, "token": asked.token, "turn": asked.number, **words}
    untrusted_files.write_json(place.order, order, root=place.node_root)


def _prefix(path: Path) -> str:
    """Return a pattern that matches a path and all paths in it: the path and a `*`.

    The path is cut before the first character that a pattern can't contain.
    """
    return re.split(r"[,*\"\\$]", os.path.realpath(path), maxsplit=1)[0] + "*"


def are_large(paths: Iterable[Path]) -> bool:
    """Return whether files are too large in total to be sent again for each job."""
    left = ONCE_BYTES
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            with suppress(OSError):  # a missing file is the job's error
                left -= file.stat().st_size
            if left < 0:
                return True
    return False
