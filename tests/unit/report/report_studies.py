"""Studies in a real SQLite storage, as the optimiser leaves them, for the report's tests."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from trialfleet.workflows.report import (
    RegionReport,
    RegionSource,
    Report,
    ReportSource,
    build_report,
)
from trialfleet.workflows.status.states import Stage

START = datetime(2026, 11, 20, 2, 0)  # Optuna's times have no zone
SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-4, 1e-1, log=True),
    "layers": IntDistribution(1, 4),
    "solver": CategoricalDistribution(["adam", "sgd"]),
}
MOMENTUM = FloatDistribution(0.0, 0.9)  # searched only where solver is sgd
DEFAULTS: dict[str, Any] = {"rate": 1e-3, "layers": 2, "solver": "adam"}


def trial(
    params: Mapping[str, Any],
    value: float | None,
    /,
    *,
    state: TrialState | None = None,
    at: int = 0,
    reports: Mapping[int, float] | None = None,
    **notes: Any,
) -> optuna.trial.FrozenTrial:
    """A trial as the optimiser leaves it: failed where `value` is None."""
    if state is None:
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
    space = {**SPACE, "momentum": MOMENTUM}
    frozen = create_trial(
        state=state,
        params=dict(params),
        distributions={name: space[name] for name in params},
        value=value,
        intermediate_values=dict(reports or {}),
        user_attrs={
            "node": f"R.l0.t{at:02}",
            "params": dict(params),
            "seed": at,
            "attempts": 1,
            **notes,
        },
    )
    frozen.datetime_start = START + timedelta(seconds=at)
    if state.is_finished():
        frozen.datetime_complete = frozen.datetime_start + timedelta(seconds=10)
    return frozen


def tuned_trials(
    count: int, direction: str = "maximize", metric: str = "auc"
) -> list[optuna.trial.FrozenTrial]:
    """`count` trials in which the learning rate decides: 0.01 is best. One in ten fails."""
    rng = random.Random(1)  # noqa: S311
    trials = []
    for at in range(count):
        params: dict[str, Any] = dict(DEFAULTS) if at == 0 else some_params(rng)
        distance = abs(10 * params["rate"] - 0.1) + 0.001 * rng.random()
        value = 0.8 - distance if direction == "maximize" else distance
        failed = at % 10 == 5
        notes: dict[str, Any] = {"baseline": at == 0, "seconds": 2.5, "device": "cpu"}
        if failed:
            notes["error"] = "exit code 64: can't be trained"
        else:
            notes["metrics"] = {metric: value, "test": value - 0.01}
        trials.append(trial(params, None if failed else value, at=at, **notes))
    return trials


def ran(
    trials: Sequence[optuna.trial.FrozenTrial], slots: int = 3, begin: float = 0.0
) -> list[optuna.trial.FrozenTrial]:
    """The trials after jobs of a minute each on a few slots, with a learning curve each."""
    for at, each in enumerate(trials):
        start = START.replace(tzinfo=UTC).timestamp() + begin + 60.0 * (at // slots)
        each.user_attrs["job"] = {
            "started": start, "ended": start + 55, "wall_seconds": 55.0, "last_wall_seconds": 55.0,
            "cpu_seconds": 170.0, "memory_mb": 900.0, "machine": "node-1",
            "slot": f"slot1_{at % slots + 1}@node-1",
        }  # fmt: skip
        if each.value is not None:
            each.intermediate_values = {step: each.value - 0.1 / step for step in range(1, 11)}
    return list(trials)


def many_regions(fleet: Fleet, regions: int, trials: int) -> Report:
    """A report of many regions, all with the same trials but for failed and unstarted ones."""
    study = fleet.region("every", ran(tuned_trials(trials))).study_name
    failed = fleet.region("failed", [trial(DEFAULTS, None, error="no data")]).study_name
    sources = []
    for at in range(regions):
        name = f"R{at:02}"
        if at == 7:
            sources.append(region_source(name))
        elif at % 10 == 9:
            sources.append(region_source(name, study_name=failed, stage=Stage.FAILED))
        else:
            facts: dict[str, Any] = {"published": Path(f"/models/{name}/r"), "final": {"test": 0.8}}
            sources.append(region_source(name, study_name=study, budget_trials=trials, **facts))
    return fleet.report(*sources)


def some_params(rng: random.Random) -> dict[str, Any]:
    """Settings at random; momentum only where the solver is sgd."""
    solver = rng.choice(["adam", "sgd"])
    params: dict[str, Any] = {
        "rate": 10 ** rng.uniform(-4, -1),
        "layers": rng.randint(1, 4),
        "solver": solver,
    }
    return params | ({"momentum": rng.uniform(0, 0.9)} if solver == "sgd" else {})


class Fleet:
    """A storage, and the sources of the regions whose studies were put into it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "study.db"
        self.url = f"sqlite:///{self.path}"
        self.storage = optuna.storages.RDBStorage(self.url)
        sqlalchemy.event.listen(self.storage.engine, "connect", _hurry)
        self.storage.engine.dispose()  # so that the next connection is a hurried one
        self.made = itertools.count()

    def region(
        self, name: str, trials: Sequence[optuna.trial.FrozenTrial], **facts: Any
    ) -> RegionSource:
        """Put a study of `trials` into the storage."""
        study_name = f"s/{next(self.made)}/{name}"
        study = optuna.create_study(study_name=study_name, storage=self.storage)
        study.add_trials(trials)
        return region_source(name, study_name=study_name, **facts)

    def report(self, *regions: RegionSource, **facts: Any) -> Report:
        """The report of `regions`."""
        return build_report(report_source(self.url, *regions, **facts))


def _hurry(connection: sqlite3.Connection, _: object) -> None:
    """No test loses power: don't wait for the disk."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")


@contextmanager
def open_fleet(folder: Path) -> Iterator[Fleet]:
    """A fleet whose connections end with the context."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    fleet = Fleet(folder)
    yield fleet
    fleet.storage.remove_session()
    fleet.storage.engine.dispose()


def region_source(name: str, **facts: Any) -> RegionSource:
    """A region of which nothing is known but its name and `facts`."""
    known: dict[str, Any] = {
        "slug": name,
        "study_name": f"s/r/{name}",
        "stage": Stage.PUBLISHED if facts.get("published") else Stage.TUNING,
        "published": None,
        "stopped": None,
        "final": None,
        "defaults": DEFAULTS,
        "budget_trials": 40,
    }
    return RegionSource(name=name, **(known | facts))


def report_source(url: str, *regions: RegionSource, **facts: Any) -> ReportSource:
    """A run of `regions` in the storage at `url`."""
    known: dict[str, Any] = {
        "study": "flights",
        "run": "r",
        "metric": "auc",
        "direction": "maximize",
        "report_metric": "test",
        "created": datetime(2026, 11, 20, 2, 0, tzinfo=UTC),
        "finished": datetime(2026, 11, 20, 3, 1, tzinfo=UTC),
    }
    known |= facts
    return ReportSource(
        regions=regions, storage_url=url, **({"report_direction": known["direction"]} | known)
    )


def two_regions(fleet: Fleet) -> Report:
    """JFK with 30 trials, published; one named like markup with 12."""
    trials = tuned_trials(30)
    return fleet.report(
        fleet.region(
            "JFK", trials, budget_trials=30, published=Path("/models/JFK/r"), final={"test": 0.81}
        ),
        fleet.region("[red]LGA", trials[:12], slug="LGA", budget_trials=12),
    )


def only(report: Report) -> RegionReport:
    """The report's one region."""
    (region,) = report.regions
    return region
