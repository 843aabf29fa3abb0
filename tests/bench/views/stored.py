"""A run of any size, ended or running, written without a pool: trial database and folders.

Rows are written straight into Optuna's tables: through Optuna 300 regions of 100 trials take seven
minutes.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from optuna.distributions import distribution_to_json

from tests.job_logs import JobLog
from trialfleet import Run, Study, plan
from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.workflows.facts.jobs.trial_parts import note_log
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.runs.run_storage import study_name
from trialfleet.workflows.study.frozen import load_frozen

LANES = 4
SECONDS = 60.0  # from one trial of a lane to the next
STEPS = 10  # that a trial reports
SPACE: dict[str, Any] = {
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True, "default": 1e-3},
    "batch_size": {"type": "int", "low": 128, "high": 1024, "log": True, "default": 512},
    "layers": {"type": "int", "low": 1, "high": 4, "default": 2},
    "dropout": {"type": "float", "low": 0.0, "high": 0.5, "default": 0.0},
    "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.95, "when": {"solver": ["sgd"]}},
    "epochs": 20,
}
_ERROR = "exit code 64: can't be trained"
_TABLES = {
    "studies": "study_id, study_name",
    "study_directions": "study_direction_id, direction, study_id, objective",
    "trials": "trial_id, number, study_id, state, datetime_start, datetime_complete",
    "trial_params": "trial_id, param_name, param_value, distribution_json",
    "trial_user_attributes": "trial_id, key, value_json",
    "trial_values": "trial_id, objective, value, value_type",
    "trial_intermediate_values":
        "trial_id, step, intermediate_value, intermediate_value_type",
}  # fmt: skip


def stored_run(place: Path, regions: int, trials: int, *, goes_on: bool = False) -> Run:
    """Make a run of `regions` with `trials` each, all complete, whose models are published.

    With `goes_on` the run is running: three fifths of its trials are finished, and one runs on each
    of two lanes.
    """
    (place / "go.sh").write_text("#!/bin/sh\n")
    study = {
        "name": "views", "regions": [f"R{at:03}" for at in range(regions)],
        "objective": {"metric": "val_auc", "direction": "maximize"}, "report_metric": "test_auc",
        "search_space": SPACE, "accelerator": "cpu", "publish": "models",
        "budget": {"trials": trials, "lanes": 2 if goes_on else LANES, "failures": trials,
                   "trials_per_job": "all"},
        "trainer": {"command": ["sh", "go.sh"], "files": [str(place / "go.sh")]},
        "resources": {"memory": "100MB", "disk": "20MB"},
    }  # fmt: skip
    run = plan(Study.model_validate(study).resolve(place), run="r1", out=place / "runs/views/r1")
    folder, rows = RunFolder(run.folder), _Rows(run)
    over = trials * 3 // 5 if goes_on else trials
    ago = timedelta(seconds=SECONDS * over / 2 + 30) if goes_on else timedelta(days=1)
    began = datetime.now(UTC) - ago
    for at, region in enumerate(build_graph(run.study).regions):
        _Region(rows, folder.region(region.slug), region, at).write(over, began, goes_on=goes_on)
    rows.write()
    folder.dag_files.submit.touch()
    _dagman(folder.dag_files.log, began, None if goes_on else SECONDS * (trials / LANES + 3))
    return run


def _dagman(log: Path, began: datetime, ended: float | None) -> None:
    """Write the event log of a DAGMan that ended at `ended`, or still runs if that is None."""
    job = JobLog(log, begin=began.astimezone().replace(tzinfo=None))
    job.submitted(0)
    job.executes(1, priced=False)
    if ended is not None:
        job.terminated(ended)


class _Rows:
    """Rows for the tables of a run's trial database, and the database's file."""

    def __init__(self, run: Run) -> None:
        self.run, self.found = run, {name: list[tuple[Any, ...]]() for name in _TABLES}
        space = run.study.region_space(next(iter(run.study.region_table)))
        self.distributions = space.distributions()
        self.written = {
            name: distribution_to_json(each) for name, each in self.distributions.items()
        }

    def add(self, table: str, *row: Any) -> None:
        """Add a row, with the columns of `_TABLES`."""
        self.found[table].append(row)

    def write(self) -> None:
        """Make the tables and fill them."""
        file = RunFolder(self.run.folder).database
        close_storage(open_storage(sqlite_url(file)))
        with closing(sqlite3.connect(file)) as database:
            for table, columns in _TABLES.items():
                marks = ",".join("?" * (columns.count(",") + 1))
                statement = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608
                database.executemany(statement, self.found[table])
            database.commit()


@dataclass
class _Region:
    """A region of the run: its trials' rows, and the files that its jobs would leave."""

    rows: _Rows
    files: RegionFolder
    region: RegionGraph
    at: int

    def write(self, trials: int, began: datetime, *, goes_on: bool) -> None:
        """Write the finished trials, and for a running run one running trial per lane."""
        rng = random.Random(self.at)  # noqa: S311
        study = self.at + 1
        name = study_name(self.rows.run.study, self.rows.run.run_id, self.region.name)
        self.rows.add("studies", study, name)
        self.rows.add("study_directions", study, "MAXIMIZE", study, 0)
        self.files.dag_files.submit.touch()
        local = began.astimezone().replace(tzinfo=None)
        logs = {}
        for lane, (node, *_) in enumerate(self.region.lanes):
            logs[lane] = JobLog(self.files.trial(node).log, begin=local)
            logs[lane].submitted(0)
            logs[lane].executes(2, f"node-{(self.at + lane) % 40}.fleet")
        names: set[str] = set()
        lanes = len(self.region.lanes)
        for number in range(trials + lanes * goes_on):
            lane, turn = number % lanes, number // lanes
            made = (self.region.next_trial(each, names) for each in self.region.lanes[lane])
            names.add(name := next(filter(None, made)))
            start = 4 + SECONDS * turn
            logs[lane].marks(start, f"{name} begins")
            if number < trials:
                logs[lane].marks(start + 55, f"{name} ends code=0 cpu=51.5 memory=231.0")
                self._trial(rng, study, number, name, began + timedelta(seconds=start))
            else:
                self._running(rng, study, number, name, began + timedelta(seconds=start))
        if goes_on:
            return
        for lane, log in logs.items():
            log.terminated(6 + SECONDS * math.ceil(trials / lanes))
            note_log(self.files.trial(self.region.lanes[lane][0]).log)  # as POST does
        self._publish()

    def _running(
        self, rng: random.Random, study: int, number: int, name: str, start: datetime
    ) -> None:
        """Write a running trial, with the messages between its job and the access point."""
        key, params = trial_id(study, number), self._params(rng, number)
        local = start.astimezone().replace(tzinfo=None)
        self.rows.add("trials", key, number, study, "RUNNING", str(local), None)
        notes: dict[str, Any] = {"node": name, "params": params, "seed": number, "attempts": 0}
        for attribute, content in notes.items():
            self.rows.add("trial_user_attributes", key, attribute, json.dumps(content))
        begin_words(self.files, name, params)

    def _trial(
        self, rng: random.Random, study: int, number: int, name: str, start: datetime
    ) -> None:
        key = trial_id(study, number)
        params = self._params(rng, number)
        fails = number % 12 == 7
        value = 0.8 - 0.02 * abs(math.log10(params["learning_rate"]) + 2) + 0.01 * rng.random()
        local, add = start.astimezone().replace(tzinfo=None), self.rows.add
        ended = local + timedelta(seconds=56)
        state = "FAIL" if fails else "COMPLETE"
        add("trials", key, number, study, state, str(local), str(ended))
        for param, chosen in params.items():
            internal = self.rows.distributions[param].to_internal_repr(chosen)
            add("trial_params", key, param, internal, self.rows.written[param])
        notes = self._notes(name, params, number, start.timestamp())
        if fails:
            failure = {"time": start.isoformat(timespec="milliseconds"), "error": _ERROR}
            notes |= {"error": _ERROR, "failures": {"1": failure}}
        else:
            metrics = {"val_auc": value, "test_auc": value - 0.01 * rng.random(), "val_loss": 0.5}
            notes |= {"metrics": metrics, "seconds": 54.0 + rng.random(), "device": "cpu"}
            add("trial_values", key, 0, value, "FINITE")
            for step in range(1, STEPS + 1):
                reported = value - 0.1 * rng.random() / step
                add("trial_intermediate_values", key, step, reported, "FINITE")
        for attribute, content in notes.items():
            add("trial_user_attributes", key, attribute, json.dumps(content))
        place = self.files.trial(name)
        place.root.mkdir(parents=True)
        place.trial_json.write_text(json.dumps({"params": params}))
        place.result.write_text(json.dumps({"metrics": notes.get("metrics", {})}))

    def _params(self, rng: random.Random, number: int) -> dict[str, Any]:
        space = self.rows.run.study.region_space(self.region.name)
        drawn: dict[str, Any] = {
            "learning_rate": 10 ** rng.uniform(-4, -1),
            "batch_size": rng.randint(128, 1024),
            "layers": rng.randint(1, 4),
            "dropout": rng.uniform(0, 0.5),
            "solver": rng.choice(["adam", "sgd"]),
            "momentum": rng.uniform(0, 0.95),
        }
        return space.active(drawn if number else space.defaults())

    def _notes(
        self, name: str, params: dict[str, Any], number: int, start: float
    ) -> dict[str, Any]:
        machine = f"node-{(self.at + number % LANES) % 40}.fleet"
        usd = round(55 * 0.9 / 3600, 9)
        stay = {
            "machine": machine, "instance": None, "began": start, "ended": start + 55,
            "end": "failed" if number % 12 == 7 else "done", "usd": usd, "saved": None,
        }  # fmt: skip
        job = {
            "started": start, "ended": start + 55, "wall_seconds": 55.0, "last_wall_seconds": 55.0,
            "cpu_seconds": 51.5, "memory_mb": 231.0, "machine": machine,
            "slot": f"slot1_1@{machine}", "usd": usd, "lost_usd": 0.0, "ranks": None,
            "generations": None, "stays": [stay],
        }  # fmt: skip
        seed = number * 7919 + self.at
        notes: dict[str, Any] = {"node": name, "params": params, "seed": seed}
        return {**notes, "baseline": not number, "attempts": 1, "job": job}

    def _publish(self) -> None:
        """Write the full training and the published model, as `publish_program` leaves them."""
        frozen = load_frozen(RunFolder(self.rows.run.folder).study)
        metrics = {"val_auc": 0.8, "test_auc": 0.79, "val_loss": 0.5}
        best = self.files.best
        (best.root / "model").mkdir(parents=True, exist_ok=True)
        best.result.write_text(json.dumps({"schema": 1, "status": "complete", "metrics": metrics}))
        model = Path(str(frozen.study.publish)) / frozen.study.name / self.region.slug / frozen.run
        model.mkdir(parents=True)
        (model / "metrics.json").write_text(json.dumps(metrics))
        origin = {"study": frozen.study.name, "run": frozen.run, "region": self.region.name,
                  "created": frozen.created.isoformat()}  # fmt: skip
        (model / "provenance.json").write_text(json.dumps(origin))
        (model.parent / "latest").symlink_to(model.name)
        self.files.published.write_text(json.dumps({"path": str(model)}))


def trial_id(study: int, number: int) -> int:
    """Return the id of a study's trial in the tables."""
    return (study - 1) * 10_000 + number + 1


def begin_words(files: RegionFolder, name: str, params: dict[str, Any]) -> None:
    """Write the messages of the begin of a trial in a lane's job, and a report."""
    place = files.trial(name)
    place.root.mkdir(parents=True, exist_ok=True)
    place.words.mkdir(parents=True, exist_ok=True)
    place.trial_json.write_text(json.dumps({"params": params}))
    turn = int(name.rpartition(".t")[2])
    answers = {"schema": 1, "token": "agent", "turn": turn}
    place.order.write_text(
        json.dumps({**answers, "do": "train", "trial": {"params": params}, "name": name})
    )
    words = {"job": "12.0", "say": "begun", "trial": name, "time": time.time()}
    place.said.write_text(json.dumps({**answers, **words}))
    place.reports.write_text("")
    report(files, name, 1)


def report(files: RegionFolder, name: str, step: int) -> None:
    """Write a report of a running trial."""
    with files.trial(name).reports.open("a") as reports:
        reports.write(f'{{"step": {step}, "metrics": {{"val_auc": 0.7, "val_loss": 0.6}}}}\n')


if __name__ == "__main__":
    stored_run(Path(sys.argv[1]), *map(int, sys.argv[2:]))
