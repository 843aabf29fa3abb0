"""States of runs, regions and trials, and their page in the documentation."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.optimizer.stored_trials import TrialState as StoredState
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.region_records import (
    RegionRecords,
    read_end_files,
    read_records,
)
from trialfleet.workflows.rules.region_state import region_phase, region_state
from trialfleet.workflows.rules.states import (
    RunState,
    Stage,
    TrialState,
    region_stage,
    trial_state,
    unfinished_state,
)

PAGE = (Path(__file__).parents[3] / "docs" / "states.md").read_text()


@pytest.mark.parametrize("words", [RunState, Stage, TrialState])
def test_the_page_lists_exactly_the_known_states(words: type[StrEnum]) -> None:
    section = PAGE.split(f"(`{words.__name__}`)")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!word|---)([a-z, ]+) \|", section, re.MULTILINE)
    listed = {word for row in rows for word in row.split(", ")}
    assert listed == set(words) - ({"waiting"} if words is RunState else set())


@pytest.mark.parametrize("state", RunState)
def test_every_state_of_a_region_has_a_stage(state: RunState) -> None:
    stages = {region_stage(state, phase, published=True) for phase in ("trials", "best", "publish")}
    if state is RunState.RUNNING:
        assert stages == {Stage.TUNING, Stage.TRAINING, Stage.PUBLISHING}
    elif state is RunState.DONE:
        assert stages == {Stage.PUBLISHED}
        assert region_stage(state, "done", published=False) is Stage.TUNED
        assert region_stage(state, "done", published=True, not_current=True) is Stage.KEPT
    else:
        assert stages == {Stage(state.value)}


def test_only_trials_of_a_region_under_way_run_or_wait() -> None:
    for region in RunState:
        word = unfinished_state(region, running=True, held=False)
        goes_on = region in {RunState.RUNNING, RunState.WAITING, RunState.HELD}
        assert (word is TrialState.RUNNING) == goes_on
    assert unfinished_state(RunState.RUNNING, running=False, held=False) is TrialState.QUEUED
    assert unfinished_state(RunState.RUNNING, running=False, held=True) is TrialState.HELD
    assert unfinished_state(RunState.STOPPED, running=False, held=True) is TrialState.INTERRUPTED


def test_a_trials_state_in_the_study_has_priority_over_the_queue() -> None:
    running = {"n": TrialState.RUNNING}

    def state(stored: StoredState, node: str = "n") -> TrialState:
        return trial_state(
            StoredTrial(
                number=0,
                state=stored,
                value=None,
                datetime_start=None,
                datetime_complete=None,
                user_attrs={"node": node},
            ),
            running,
        )

    assert state(StoredState.COMPLETE) is TrialState.COMPLETE
    assert state(StoredState.FAIL) is TrialState.FAILED
    assert state(StoredState.PRUNED) is TrialState.PRUNED
    assert state(StoredState.RUNNING) is TrialState.RUNNING
    assert state(StoredState.RUNNING, "asked since") is TrialState.QUEUED


def test_the_page_has_the_exit_code_of_each_state() -> None:
    section = PAGE.split("(`RunState`)")[1].split("\n## ")[0]
    codes = dict(re.findall(r"^\| (\w+) \| .* \| ([01]) \|$", section, re.MULTILINE))
    states = set(RunState) - {RunState.WAITING}
    assert codes == {state.value: "0" if state.is_well else "1" for state in states}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_status_fails_if_the_runs_state_is_unknown(make_run: MakeRun, options: list[str]) -> None:
    run = make_run()
    command = ["status", str(run.folder), *options]
    assert CliRunner().invoke(main, command).exit_code == 0
    (run.folder / "study.dag.condor.sub").touch()  # it was submitted, and there is no HTCondor
    done = CliRunner().invoke(main, command)
    assert "unknown" in done.output
    assert done.exit_code == 1
    assert CliRunner().invoke(main, ["status", str(run.folder / "no"), *options]).exit_code == 2


def test_a_region_is_in_the_gate_phase_only_if_a_job_measures(
    make_run: MakeRun, work: Path
) -> None:
    """A first model is promoted without a job, and a training may leave no model to measure."""
    run = make_run(publish="models", gate={})
    region, files = build_graph(run.study).regions[0], RunFolder(run.folder).region("A")

    def phase(queued: QueuedRun | None = None, *, has_best: bool = True) -> str:
        return region_phase(
            read_records(files),
            region,
            queued,
            region.trials,
            lambda: read_end_files(files),
            has_best=has_best,
        )

    assert phase(has_best=False) == "trials", "all trials failed, so none is trained in full"
    assert phase() == "best"
    files.best.result.parent.mkdir(parents=True, exist_ok=True)
    files.best.result.write_text('{"status": "complete"}')
    files.best.model.mkdir(parents=True)
    assert phase() == "best", "it left no model"
    (files.best.model / "weights").touch()
    assert phase() == "publish", "there is no job that measures"
    nothing: dict[str, Any] = dict.fromkeys(("running", "regions"), frozenset())
    waits = QueuedRun(
        root=None, root_held=None, held=(), ads=(), idle=frozenset({region.gate}), **nothing
    )
    assert phase(waits) == "gate"
    files.gate.trial_json.parent.mkdir(parents=True, exist_ok=True)
    files.gate.trial_json.touch()
    assert phase() == "gate"
    files.verdict.touch()
    assert phase() == "publish"


def test_a_region_has_the_state_of_its_ended_run_while_its_dagman_runs(
    make_run: MakeRun,
) -> None:
    run = make_run()
    region = build_graph(run.study).regions[0]
    nothing: dict[str, Any] = dict.fromkeys(("running", "idle"), frozenset())
    leaves = QueuedRun(
        root=None, root_held=None, held=(), ads=(), regions=frozenset({region.slug}), **nothing
    )
    for state in (RunState.STOPPED, RunState.FAILED):
        assert region_state(RegionRecords(), region, leaves, None, state) is state
    assert region_state(RegionRecords(), region, leaves, None, RunState.RUNNING) is RunState.RUNNING
