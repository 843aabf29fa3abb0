"""The record of who ended a run, and its regions' messages on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeRun
from trialfleet.optimizer.service_client import TROUBLE
from trialfleet.workflows.facts.dagman.failing_scripts import note_failure
from trialfleet.workflows.facts.dagman.files import NodeStatus
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.region_records import RegionRecords
from trialfleet.workflows.rules.region_state import early_end_reason, last_error, region_state
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status import status_reader as status
from trialfleet.workflows.status.status_reader import StatusReader

REGION = RegionGraph(name="A", slug="A", lanes=(), trials=1, priority=0, publishes=True)
STARTED = "001 (001.000.000) 2026-11-23 06:03:02.120 Job executing on host: <127.0.0.1:1>\n...\n"
ENDED = "005 (001.000.000) 2026-11-23 06:03:17.346 Job terminated.\n\t(1) Normal termination\n...\n"
REMOVED = "009 (001.000.000) 2026-11-23 06:03:17.346 Job was aborted.\n\t{}\n...\n"
BY_RM = REMOVED.format("via condor_rm (by user me)")
NOBODY = QueuedRun(
    root=None, root_held=None, held=(), ads=(), idle=frozenset(), running=frozenset(),
    regions=frozenset(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("by_stop", "expected"),
    [(True, "stopped by trialfleet stop"), (False, "the run's jobs were removed")],
)
def test_a_region_of_a_stopped_run_shows_the_stop_and_no_status_of_dagman(
    by_stop: bool, expected: str
) -> None:
    node = NodeStatus(submitted=False, failed=True, details="Was STATUS_SUBMITTED")
    said = early_end_reason(RegionRecords(), node, RunState.STOPPED, by_stop=by_stop, error="")
    assert said == expected


def test_a_failed_region_shows_dagmans_status_details() -> None:
    none = RegionRecords()
    node = NodeStatus(submitted=False, failed=True, details="POST script failed with status 3")
    assert region_state(none, REGION, None, node, RunState.FAILED) is RunState.FAILED
    error = last_error(none, node, Path("log"), "", Path("service.log"))
    said = early_end_reason(none, node, RunState.FAILED, by_stop=False, error=error)
    assert said
    assert "POST script failed with status 3" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "is_recorded", "state"),
    [
        (STARTED + BY_RM, False, RunState.STOPPED),
        (STARTED + ENDED, True, RunState.STOPPED),
        (STARTED + ENDED, False, RunState.FAILED),
        (BY_RM + STARTED + ENDED, False, RunState.FAILED),  # it was resumed since
        ("", False, RunState.FAILED),  # without a record it was not stopped
    ],
)
def test_a_run_is_stopped_only_if_the_record_names_who_stopped_it(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    is_recorded: bool,
    state: RunState,
) -> None:
    folder = RunFolder(make_run().folder)
    folder.dag_files.submit.touch()
    folder.dag_files.log.write_text(log)
    if is_recorded:
        folder.stopped.write_text('{"by": "me", "time": "2026-11-23T06:03:17+00:00"}')
    monkeypatch.setattr(status, "look_up", lambda _: NOBODY)
    found = StatusReader(folder).read()
    assert (found.state, found.regions[0].state) == (state, state)


def test_a_region_without_a_recorded_end_shows_its_last_failure(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(make_run().folder)
    folder.dag_files.submit.touch()
    note_failure(folder.region("A").failing, "A.best", "ask-best", "the data can't be read: /d/a")
    monkeypatch.setattr(status, "look_up", lambda _: NOBODY)
    region = StatusReader(folder).read().regions[0]
    assert region.stage is Stage.FAILED
    assert (region.reason or "").startswith("the data can't be read: /d/a; see ")
    (folder.root / TROUBLE).write_text(
        '{"error": "the service ended with exit code 1", "waiting": false, "time": 1}'
    )
    region = StatusReader(folder).read().regions[0]
    assert (region.reason or "").startswith("the service ended with exit code 1; see ")
