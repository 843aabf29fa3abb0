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
from trialfleet.workflows.rules.region_state import region_stage, region_state
from trialfleet.workflows.rules.states import (
    RunState,
    Stage,
    TrialState,
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


def test_every_state_of_a_region_has_a_stage(make_run: MakeRun) -> None:
    run = make_run()
    region, files = build_graph(run.study).regions[0], RunFolder(run.folder).region("A")
    published = RegionRecords(published={"path": "models/demo/A/r1"})

    def stage(state: RunState, records: RegionRecords, *, not_current: bool = False) -> Stage:
        return region_stage(
            records,
            region,
            None,
            state,
            0,
            lambda: read_end_files(files),
            has_best=False,
            not_current=not_current,
        )

    for state in set(RunState) - {RunState.DONE}:
        shown = Stage.WAITING if state is RunState.RUNNING else Stage(state.value)
        assert stage(state, RegionRecords()) is shown
    assert stage(RunState.DONE, published) is Stage.PUBLISHED
    assert stage(RunState.DONE, published, not_current=True) is Stage.KEPT
    assert stage(RunState.DONE, RegionRecords()) is Stage.TUNED


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


def test_a_region_is_gating_only_if_a_job_measures(make_run: MakeRun, work: Path) -> None:
    """A first model is promoted without a job, and a training may leave no model to measure."""
    run = make_run(publish="models", gate={})
    region, files = build_graph(run.study).regions[0], RunFolder(run.folder).region("A")

    def stage(queued: QueuedRun | None = None, *, has_best: bool = True) -> Stage:
        return region_stage(
            read_records(files),
            region,
            queued,
            RunState.RUNNING,
            region.trials,
            lambda: read_end_files(files),
            has_best=has_best,
        )

    assert stage(has_best=False) is Stage.TUNING, "all failed, so none is trained in full"
    assert stage() is Stage.TRAINING
    files.best.result.parent.mkdir(parents=True, exist_ok=True)
    files.best.result.write_text('{"status": "complete"}')
    files.best.model.mkdir(parents=True)
    assert stage() is Stage.TRAINING, "it left no model"
    (files.best.model / "weights").touch()
    assert stage() is Stage.PUBLISHING, "there is no job that measures"
    nothing: dict[str, Any] = dict.fromkeys(("running", "regions"), frozenset())
    waits = QueuedRun(
        root=None, root_held=None, held=(), ads=(), idle=frozenset({region.gate}), **nothing
    )
    assert stage(waits) is Stage.GATING
    files.gate.trial_json.parent.mkdir(parents=True, exist_ok=True)
    files.gate.trial_json.touch()
    assert stage() is Stage.GATING
    files.verdict.touch()
    assert stage() is Stage.PUBLISHING


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
