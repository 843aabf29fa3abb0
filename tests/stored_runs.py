"""Runs with trials in their storage, as the optimiser leaves them: no pool has to run for them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet import Run, plan
from trialfleet.files import write_json
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import study_name

SECONDS = 60.0  # that each trial takes
SPACE = {"x": FloatDistribution(0.0, 1.0)}


class StoredRun:
    """A planned run whose trials are written straight into its storage."""

    def __init__(self, run: Run, storage: RDBStorage) -> None:
        self.run, self._storage = run, storage
        self.graph = {region.name: region for region in build_graph(run.study).regions}
        self._studies: dict[str, int] = {}

    def study(self, region: str) -> int:
        """Return the id of a region's study, and make the study if it is missing."""
        if region not in self._studies:
            direction = optuna.study.StudyDirection[self.run.study.objective.direction.upper()]
            name = study_name(self.run.study, self.run.run_id, region)
            self._studies[region] = self._storage.create_new_study([direction], name)
        return self._studies[region]

    def add(self, region: str, trial: FrozenTrial) -> int:
        """Store a trial of a region; return its id."""
        return self._storage.create_new_trial(self.study(region), trial)

    def tell(self, trial: int, value: float) -> None:
        """Finish a trial that runs."""
        self._storage.set_trial_state_values(trial, TrialState.COMPLETE, [value])

    def fill(self, region: str, count: int, began: datetime, *, seed: int = 0) -> None:
        """Store `count` finished trials of a region, on its lanes side by side; one in 12 fails."""
        rng = random.Random(f"{seed}{region}")  # noqa: S311
        for at, (node, start) in enumerate(turns(self.graph[region], count, began)):
            value = None if at % 12 == 7 else 0.2 + (rng.random() - 0.3) ** 2 + 0.4 / (at + 1)
            self.add(region, stored_trial(node, start, value, baseline=at == 0))


@contextmanager
def stored(run: Run) -> Iterator[StoredRun]:
    """Open the storage of a planned run for trials of a test's own."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = RDBStorage(sqlite_url(RunFolder(run.folder).database))
    sqlalchemy.event.listen(storage.engine, "connect", _hurry)
    storage.engine.dispose()  # so that the next connection is a hurried one
    try:
        yield StoredRun(run, storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def turns(region: RegionGraph, count: int, began: datetime) -> list[tuple[str, datetime]]:
    """Return the names of a region's first trials, and when each began, lane beside lane."""
    found: list[tuple[str, datetime]] = []
    for at in range(count):
        lane, turn = at % len(region.lanes), at // len(region.lanes)
        names = {name for name, _ in found}
        name = next(filter(None, (region.next_trial(n, names) for n in region.lanes[lane])))
        found.append((name, began + timedelta(seconds=SECONDS * turn + 7.0 * lane)))
    return found


def stored_trial(
    node: str,
    start: datetime,
    value: float | None,
    *,
    state: TrialState | None = None,
    baseline: bool = False,
    machine: str = "node-1",
    **notes: Any,
) -> FrozenTrial:
    """Return a trial as the optimiser leaves it: failed if neither value nor state is given."""
    if state is None:
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
    params = {"x": 0.5}
    job: dict[str, Any] = {
        "started": start.timestamp(),
        "ended": start.timestamp() + 0.9 * SECONDS,
        "wall_seconds": 0.9 * SECONDS,
        "machine": machine,
        "slot": f"slot1_1@{machine}",
    }
    stay = {"machine": machine, "instance": None, "began": job["started"], "ended": job["ended"]}
    job["stays"] = [stay | {"end": "failed" if value is None else "done", "usd": None}]
    attributes: dict[str, Any] = {"job": job} if state.is_finished() else {}
    if state is TrialState.FAIL:
        failure = {"time": f"{start.isoformat()}+00:00", "error": "exit code 64: can't be trained"}
        attributes |= {"error": failure["error"], "failures": {"1": failure}}
    if value is not None:
        attributes |= {"metrics": {"loss": value, "test": value + 0.01}, "seconds": 50.0}
    steps = {step: value + 0.3 / step for step in range(1, 11)} if value is not None else {}
    made = create_trial(
        state=state,
        params=params,
        distributions=SPACE,  # type: ignore[arg-type]
        value=value,
        intermediate_values=steps,
        user_attrs={
            "node": node, "params": params, "baseline": baseline, "attempts": 1,
            **attributes, **notes
        },
    )  # fmt: skip
    made.datetime_start = start
    made.datetime_complete = start + timedelta(seconds=SECONDS) if state.is_finished() else None
    return made


def _hurry(connection: sqlite3.Connection, _: object) -> None:
    """No test loses power: don't wait for the disk."""
    connection.execute("PRAGMA synchronous = OFF")


def write_days_and_models(folder: Path) -> Path:
    """Write the study `churn`, with a run of a day that failed, and two models; return its file."""
    (folder / "go.sh").write_text("exit 0\n")
    text = MINIMAL.replace("demo", "churn").replace("[A, NO]", "[north]")
    file = write(folder, text + "daily: {at: '02:30', zone: UTC}\n")
    run = plan(file, run="2026-11-22", out=folder / "runs" / "churn" / "2026-11-22")
    day, now = date(2026, 11, 22), datetime(2026, 11, 22, 3, tzinfo=UTC)
    journal = Journal(DailyFolder(run.folder.parent).journal)
    attempt = journal.begin(
        Attempt(
            date=day,
            attempt=1,
            run=run.run_id,
            regions=("north",),
            started=now,
            deadline=None,
        )
    )
    journal.record([attempt.outcome("north", Ending.FAILED, "no such file", run=run.run_id)], now)
    journal.end(attempt, now)
    for name in ("r1", "r2"):
        model = folder / "models" / "churn" / "north" / name
        model.mkdir(parents=True)
        origin = {"study": "churn", "region": "north", "run": name}
        write_json(model / "provenance.json", origin)
    promote(folder / "models" / "churn" / "north" / "r1")
    return file
