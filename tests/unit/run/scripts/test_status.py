"""A run's status and its table of trials, without a pool."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.unit.run.scripts.conftest import JOB_LOG
from tests.unit.scripts import Scripts
from tests.unit.terminal import printed
from trialfleet import InputError, RunState
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.status.run_trials import COLUMNS
from trialfleet.workflows.status.status_reader import StatusReader, open_run
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.views.terminal.status_view import run_view

pytestmark = pytest.mark.slow


def test_trials_are_listed_with_attempts_metrics_parameters_and_errors(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for node in ("A.l1.t01", "A.l1.t02", "A.l1.t03"):
        scripts.ask(node)
    scripts.trial("A.l1.t01").log.write_text(JOB_LOG.format(job=1))
    scripts.tell("A.l1.t01", 64)
    result = {"status": "complete", "metrics": {"zeta": 3.5, "loss": 0.25, "alpha": 1.5}}
    scripts.trial("A.l1.t02").result.write_text(json.dumps(result))
    scripts.tell("A.l1.t02", 0)
    shown = CliRunner().invoke(main, ["trials", str(scripts.folder.root)]).output.splitlines()
    first, second, third = scripts.run.trials()
    failed = next(line for line in shown if "failed" in line).split()
    assert failed[:5] == ["A", "0", "failed", "1", "3.5"]  # s, in one attempt
    assert {"node-1", f"x={first.params['x']:.4g}", "can't"} <= set(failed)
    complete = next(line for line in shown if "complete" in line)
    assert "0.25" in complete
    assert "zeta=3.5  alpha=1.5" in complete
    text = CliRunner().invoke(main, ["trials", str(scripts.folder.root), "--csv"]).output
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == [
        *COLUMNS, "params.x", "metrics.loss", "metrics.alpha", "metrics.zeta",
    ]  # fmt: skip
    assert rows[0]["params.x"] == str(first.params["x"])
    assert (rows[0]["wall_seconds"], rows[0]["machine"]) == ("3.5", "node-1")
    assert "can't be trained" in rows[0]["error"]
    assert (rows[1]["metrics.alpha"], rows[1]["value"]) == ("1.5", "0.25")
    assert (rows[2]["state"], rows[2]["params.x"]) == (third.state, str(third.params["x"]))
    assert second.attempts == 1
    row = first.row()
    assert {*row} <= {*rows[0]}
    assert (row["state"], row["params.x"]) == ("failed", first.params["x"])
    assert first.started is not None
    assert row["started"] == datetime.fromtimestamp(first.started, UTC)
    assert rows[0]["started"] == str(first.started)
    assert third.row()["ended"] is None
    assert pl.DataFrame([trial.row() for trial in (first, second, third)]).height == 3


def test_the_status_shows_the_known_steps_of_running_trials(scripts: Scripts) -> None:
    def shown(*steps: int | None) -> str:
        trials = tuple(
            RunningTrial(node=f"A.l{at}.t01", slot=None, started=None, step=step, value=None)
            for at, step in enumerate(steps)
        )
        read = scripts.status
        (region,) = read.regions
        regions = (replace(region, running_trials=trials),)
        return printed(run_view(replace(read, state=RunState.RUNNING, regions=regions)), 150)

    assert "12 7" in shown(12, None, 7)
    assert "1 2 3 4 …" in shown(1, 2, 3, 4, 5)
    assert "step" in shown(None), "columns stay where they are"


def test_csv_columns_do_not_depend_on_the_first_trial(make_run: MakeRun) -> None:
    space = {
        "kind": {"type": "categorical", "choices": ["a", "b"], "default": "a"},
        "only_b": {"type": "float", "low": 0, "high": 1, "when": {"kind": ["b"]}},
        "last": {"type": "int", "low": 1, "high": 3},
        "constant": 5,
    }
    scripts = Scripts(make_run(space, budget={"trials": 3, "lanes": 1}))
    scripts.ask("A.l1.t01")  # the defaults: without only_b
    text = CliRunner().invoke(main, ["trials", str(scripts.folder.root), "--csv"]).output
    header = text.splitlines()[0].split(",")
    assert header[len(COLUMNS) :] == [
        "params.x", "params.kind", "params.only_b", "params.last", "metrics.loss",
    ]  # fmt: skip


def test_the_status_of_a_plan_is_planned(scripts: Scripts) -> None:
    status = scripts.status
    assert status.state is RunState.PLANNED
    assert status.regions[0].budget == 3
    assert json.loads(json.dumps(status.to_json()))["schema"] == 1


def test_without_a_pool_the_status_counts_the_trials_of_the_study(scripts: Scripts) -> None:
    scripts.train(0.25)
    scripts.ask("A.l1.t02")
    scripts.folder.dag.with_name("study.dag.condor.sub").touch()
    status = scripts.status
    assert status.state is RunState.UNKNOWN
    assert status.notice is not None
    region = status.regions[0]
    assert (region.done, region.failed, region.best, region.best_trial) == (1, 0, 0.25, 0)


def test_another_spelling_of_a_runs_folder_is_the_same_run(scripts: Scripts, work: Path) -> None:
    (work / "link").symlink_to(scripts.folder.root)
    assert open_run(work / "link") == scripts.folder
    assert open_run(scripts.folder.root / "regions" / "..") == scripts.folder


def test_a_run_that_was_moved_is_refused(scripts: Scripts, work: Path) -> None:
    scripts.folder.root.rename(work / "elsewhere")
    with pytest.raises(InputError, match="move it back"):
        open_run(work / "elsewhere")


def test_status_keeps_the_last_counts_while_the_storage_is_unreadable(scripts: Scripts) -> None:
    scripts.train(0.25)
    reader = StatusReader(scripts.folder)
    assert reader.read().regions[0].done == 1
    for file in scripts.folder.root.glob("study.db*"):
        file.write_bytes(b"no database" * 1000)
    status = reader.read()
    assert "the trials can't be read" in (status.notice or "")
    assert status.regions[0].done == 1
