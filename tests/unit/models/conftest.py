"""Runs that come as far as their gate. The test plays their jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts, write_result
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.scripts.publish_program import publish_region
from trialfleet.workflows.facts.models.folders import region_models_folder
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS

KEPT_R1 = "kept the current model (run r1) instead of this one"


class Day(Scripts):
    """A run of one region that has come as far as its gate."""

    @property
    def models(self) -> Path:
        """The folder of the region's published models."""
        return region_models_folder(self.run.study, "A")

    @property
    def latest(self) -> str:
        return (self.models / "latest").readlink().name

    @property
    def not_latest(self) -> str:
        return self.region_status.not_latest or ""

    def train_all(self) -> None:
        self.train(0.5, 0.5)
        self.train_best(0.4)
        (self.best.model / "weights").write_text(self.run.run_id)
        assert self.tell_best(0).exit_code == EXITS["done"]

    def ask_gate(self) -> Reply:
        return self.call("ask-gate", "A", "A.gate")

    def tell_gate(self, code: int = 0, *, retry: int = 1, pre: int = 0) -> Reply:
        return self.call("tell-gate", "A", "A.gate", *map(str, (code, retry, 1, pre)))

    def measure(self, champion: float, challenger: float) -> None:
        values = {"champion": champion, "challenger": challenger}
        models = {name: {"metrics": {"loss": value}} for name, value in values.items()}
        write_result(self.files.gate, models=models)

    def decide(self, champion: float, challenger: float) -> Any:
        """Measure both models, and return the published verdict."""
        self.ask_gate()
        self.measure(champion, challenger)
        assert self.tell_gate().exit_code == EXITS["done"]
        return self.publish()

    def publish(self) -> Any:
        assert publish_region(self.folder, "A") == EXITS["done"]
        return json.loads(self.files.verdict.read_text())


MakeDay = Callable[..., Day]


@pytest.fixture
def make_day(make_run: MakeRun) -> MakeDay:
    def make(run: str, **changes: Any) -> Day:
        budget = {"trials": 2, "lanes": 1, "startup_trials": 2}
        day = Day(make_run(run=run, budget=budget, **({"gate": {}} | changes)))
        day.train_all()
        return day

    return make


@pytest.fixture
def champion(make_day: MakeDay) -> Day:
    day = make_day("r1")
    assert day.ask_gate().exit_code == EXITS["skip"]
    assert day.tell_gate(-1004, retry=0, pre=EXITS["skip"]).exit_code == EXITS["done"]
    assert day.publish()["verdict"] == "promoted"
    return day


@pytest.fixture
def list_models(work: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command `trialfleet models` on a wide terminal."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["models", *words])
        assert done.exit_code == 0, done.output
        return done.output

    return run
