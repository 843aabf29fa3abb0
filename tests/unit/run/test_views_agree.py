"""All views of runs in random states: no view contradicts another."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import MakeRun
from tests.unit.terminal import printed
from trialfleet import Run
from trialfleet.classads import JobStatus
from trialfleet.errors import PoolError
from trialfleet.files import write_json
from trialfleet.optimizer.stored_trials import StoredTrial, TrialState
from trialfleet.workflows.control.notify.run_alerts import RunEvents
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status import status_reader as status_module
from trialfleet.workflows.status import waiting_reasons
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.status_types import RunStatus
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.serve.live_runs import LiveRun, NodeReader, PoolNodes, Snapshot
from trialfleet.workflows.views.serve.metrics import exposition
from trialfleet.workflows.views.serve.run_page import header, list_concerns, tiles
from trialfleet.workflows.views.terminal.status_view import run_view
from trialfleet.workflows.views.why.answer import Blame
from trialfleet.workflows.views.why.region_rules import explain_region
from trialfleet.workflows.views.why.run_sources import RunFactsReader

NAMES = ("A", "B")
BEGAN = datetime.now() - timedelta(hours=1)
TIMED: dict[str, dict[tuple[str, ...], float]] = {"trialfleet_run_look_seconds": {}}
UNWELL = {Stage.FAILED, Stage.STOPPED, Stage.HELD, Stage.LOST}


@dataclass(frozen=True)
class Scene:
    """The contents of a run's sources.

    Attributes:
        trials: of each region, the states of its trials.
        ends: how each ended: by its records, or not yet.
        queue: "away", "empty" or "runs".
        jobs: which of the nodes run; the others wait.
        submitted: whether it was handed to HTCondor.
        storage: whether its trials can be read.
        failing: whether a script of the first region fails.
    """

    trials: tuple[tuple[TrialState, ...], ...]
    ends: tuple[str, ...]
    queue: str
    jobs: frozenset[str]
    submitted: bool
    storage: bool
    failing: bool


STATES = st.sampled_from(
    [TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING, TrialState.PRUNED]
)
ENDS = st.sampled_from(["", "", "published", "gave up", "removed", "removed by DAGMan"])
SCENES = st.builds(
    Scene,
    trials=st.tuples(*[st.lists(STATES, max_size=3).map(tuple) for _ in NAMES]),
    ends=st.tuples(*[ENDS for _ in NAMES]),
    queue=st.sampled_from(["away", "empty", "runs"]),
    jobs=st.frozensets(st.sampled_from([f"{name}.l{lane}" for name in NAMES for lane in (1, 2)])),
    submitted=st.booleans(),
    storage=st.booleans(),
    failing=st.booleans(),
)


def trials_of(region: str, states: tuple[TrialState, ...]) -> list[StoredTrial]:
    """Trials on a region's first lane and the second in turn."""
    failure = {"1": {"time": BEGAN.isoformat(), "error": "exit code 1: KeyError: 'x'"}}
    return [
        StoredTrial(
            number=at,
            state=state,
            value=0.5 + at if state is TrialState.COMPLETE else None,
            datetime_start=BEGAN,
            datetime_complete=BEGAN + timedelta(minutes=1) if state.is_finished() else None,
            user_attrs={
                "node": f"{region}.l{at % 2 + 1}.t{at // 2 + 1:02}",
                **({"error": "abandoned"} if state is TrialState.PRUNED else {}),
                **({"failures": failure} if state is TrialState.FAIL else {}),
            },
        )
        for at, state in enumerate(states)
    ]


def queued(scene: Scene, nodes: set[str]) -> QueuedRun:
    runs = scene.queue == "runs"
    common = {"JobUniverse": 5, "ProcId": 0, "EnteredCurrentStatus": time.time()}
    return QueuedRun(
        root="1.0" if runs else None,
        root_held=None,
        running=frozenset(scene.jobs if runs else ()),
        idle=frozenset(nodes - scene.jobs if runs else ()),
        held=(),
        regions=frozenset(NAMES if runs else ()),
        ads=tuple(
            {
                **common, "ClusterId": job, "TrialfleetNode": node, "TrialfleetRegion": node[0],
                "JobStatus": JobStatus.RUNNING if node in scene.jobs else JobStatus.IDLE,
            }
            for job, node in enumerate(sorted(nodes), start=1) if runs
        ),
    )  # fmt: skip


def write_records(folder: RunFolder, scene: Scene) -> None:
    folder.dag_files.submit.unlink(missing_ok=True)
    folder.failing.unlink(missing_ok=True)
    if scene.submitted or scene.queue == "runs":
        folder.dag_files.submit.touch()
    for name, end in zip(NAMES, scene.ends, strict=True):
        files = folder.region(name)
        for record in (files.published, files.stopped, files.failing):
            record.unlink(missing_ok=True)
        if end == "published":
            model = folder.root.parent / "models" / name / folder.root.name
            model.mkdir(parents=True, exist_ok=True)
            write_json(files.published, {"path": str(model)})
        elif end:
            reason = {} if end == "removed by DAGMan" else {"reason": f"it {end}"}
            write_json(files.stopped, reason | ({} if end == "gave up" else {"removed": True}))
    script = {
        "node": "A.l1", "script": "ask", "error": "KeyError: 'x'", "cause": "error", "times": 3,
        "since": "2026-11-20T02:10:00+00:00",
    }  # fmt: skip
    if scene.failing:
        write_json(folder.region("A").failing, {"A.l1": script})


@dataclass(frozen=True)
class Views:
    """Each view's account of one run."""

    status: RunStatus
    text: str
    metrics: dict[str, dict[tuple[str, ...], float]]
    snapshot: Snapshot
    again: Snapshot
    blames: dict[str, Blame]
    events: list[str]
    failed: set[str]
    is_over: bool


def seen(folder: RunFolder, scene: Scene, live: LiveRun) -> Views:
    """Return all views of a run whose sources say so; `live` has looked at it before."""
    write_records(folder, scene)
    graph = build_graph(load_frozen(folder.study).study)
    trials = {
        name: trials_of(name, states) for name, states in zip(NAMES, scene.trials, strict=True)
    }
    found = (trials, None) if scene.storage else ({name: [] for name in NAMES}, "it is away")

    def look_up(_: RunFolder) -> QueuedRun:
        if scene.queue == "away":
            raise PoolError("no pool is up")
        return queued(scene, {node for region in graph.regions for node in region.trial_nodes})

    with ExitStack() as stack:
        for place, name, value in (
            (RunTrials, "read_all", lambda _: found),
            (status_module, "look_up", look_up),
            (NodeReader, "read", lambda _: PoolNodes()),
            (RunFactsReader, "_waiting_job", lambda *_: None),
            (waiting_reasons, "_LOOK_EVERY", 0.0),  # each example is another run's state
        ):
            stack.enter_context(patch.object(place, name, value))
        snapshot, again = (one.read() for one in (LiveRun(folder, NodeReader()), live))
        facts_reader, events = RunFactsReader(folder.root), RunEvents(folder)
        run = facts_reader.run()
        answers = {
            region.name: explain_region(run, facts_reader.region(region)).blame
            for region in graph.regions
        }
        polled = events.poll()
    status = snapshot.run.status
    return Views(
        status=status,
        text=printed(run_view(status)),
        metrics=scraped(snapshot),
        snapshot=snapshot,
        again=again,
        blames=answers,
        events=[event.kind for event in polled],
        failed={str(event.region) for event in polled if event.kind == "region-failed"},
        is_over=events.is_over,
    )


def timeless(status: RunStatus) -> RunStatus:
    """Return a status without what changes with the clock."""
    regions = tuple(replace(region, seconds_left=None) for region in status.regions)
    return replace(status, regions=regions, seconds_left=None)


def scraped(snapshot: Snapshot) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples of /metrics, by name and labels but the study."""
    text = exposition([snapshot], [], PoolNodes(), "")[0].decode()
    other = exposition([snapshot], [], PoolNodes(), "application/openmetrics-text; version=1.0.0")[
        0
    ]
    families = openmetrics(other.decode())  # type: ignore[no-untyped-call]
    assert len(list(families)) == text.count("# TYPE")
    return {
        family.name: {
            tuple(value for label, value in sorted(sample.labels.items()) if label != "study"):
                sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }  # fmt: skip


@pytest.fixture
def run(make_run: MakeRun, work: Path) -> Iterator[Run]:
    made = make_run(
        regions=list(NAMES),
        budget={"trials": 3, "lanes": 2, "trials_per_job": "all"},
        publish="models",
        notify=[{"command": "true"}],
    )
    yield made
    shutil.rmtree(made.folder)


@pytest.fixture
def live(run: Run) -> LiveRun:
    return LiveRun(RunFolder(run.folder), NodeReader())


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(scene=SCENES)
@pytest.mark.slow
def test_no_view_of_a_run_contradicts_another(run: Run, live: LiveRun, scene: Scene) -> None:
    views = seen(RunFolder(run.folder), scene, live)
    status, metrics = views.status, views.metrics
    assert timeless(views.again.run.status) == timeless(status)
    assert tiles(views.again) == tiles(views.snapshot)
    assert {**scraped(views.again), **TIMED} == {**metrics, **TIMED}
    plain: dict[str, Any] = status.to_json()
    states = {labels[0]: value for labels, value in metrics["trialfleet_run_state"].items()}
    assert {state for state, value in states.items() if value} == {status.state} == {plain["state"]}
    assert header(views.snapshot)[0][1].lower() == status.state
    assert status.state in views.text.splitlines()[0]
    assert views.is_over == status.ended
    assert ("run-done" in views.events) == (status.state in {RunState.DONE, RunState.FAILED})
    shown = {tile.name: tile for tile in tiles(views.snapshot)}
    for region, noted in zip(status.regions, plain["regions"], strict=True):
        name = region.name
        counted = {
            "complete": region.done, "failed": region.failed, "pruned": region.pruned,
            "stopped early": region.stopped_early,
        }  # fmt: skip
        for word, count in counted.items():
            assert metrics["trialfleet_trials"][name, word] == count
        pending = {"running": region.running, "queued": region.queued, "held": region.on_hold}
        for word, count in pending.items():
            assert metrics["trialfleet_trials_pending"][name, word] == count
        own = {
            s for (n, s), value in metrics["trialfleet_region_state"].items() if n == name and value
        }
        assert own == {region.stage} == {noted["stage"]} == {shown[name].stage}
        assert shown[name].trials.startswith(f"{region.finished} of {region.budget}")
        row = next(line for line in views.text.splitlines() if line.startswith(name))
        assert row.split()[1] == region.stage
        assert f"{region.finished}/{region.budget}" in row
        if region.stage in UNWELL:
            assert views.blames[name] is not Blame.NOBODY
        if region.stage.is_good:
            assert views.blames[name] is Blame.NOBODY
    failed = {region.name for region in status.regions if region.stage is Stage.FAILED}
    assert views.failed == failed
    assert failed <= {concern.what for concern in list_concerns(views.snapshot)}
    if all(region.stage.is_good for region in status.regions) and scene.submitted:
        assert status.state in {RunState.DONE, RunState.RUNNING}
