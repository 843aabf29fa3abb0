"""Trials that were to be retried when their region was abandoned count as failed in every view."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from click.testing import CliRunner
from optuna.trial import TrialState

from tests.conftest import MakeRun
from tests.stored_runs import stored, stored_trial, turns
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.serve.live_runs import LiveRun, NodeReader
from trialfleet.workflows.views.serve.run_page import build_tile, header

FAILED = {"1": {"time": "2026-11-22T07:00:00+00:00", "error": "exit code 1: no module x"}}


@pytest.mark.usefixtures("empty_queue")
@pytest.mark.parametrize("is_given_up", [True, False])
def test_trials_that_an_abandoned_region_was_to_retry_count_as_failed(
    make_run: MakeRun, *, is_given_up: bool
) -> None:
    run = make_run()
    files = RunFolder(run.folder)
    with stored(run) as opened:
        nodes = turns(opened.graph["A"], 3, datetime(2026, 11, 22, 7))
        for at, (node, start) in enumerate(nodes):
            failures: dict[str, Any] = {"failures": FAILED} if at < 2 else {}
            opened.add("A", stored_trial(node, start, None, state=TrialState.RUNNING, **failures))
    files.dag_files.submit.touch()
    files.region("A").dag_files.submit.touch()
    if is_given_up:
        write_json(files.region("A").stopped, {"reason": "no trial can succeed: no module x"})
    else:
        write_json(files.stopped, {"by": "me", "time": "2026-11-22T08:00:00+00:00"})
    (region,) = StatusReader(files).read().regions
    assert (region.stage is Stage.FAILED) == is_given_up
    assert (region.failed, region.cut_off) == (0, 2 if is_given_up else 0)
    snapshot = LiveRun(files, NodeReader()).read()
    text = "2 of 3 · 2 failed" if is_given_up else "0 of 3"
    assert build_tile(snapshot, snapshot.run.status.regions[0]).trials == text
    assert ("2 failed" in header(snapshot)[2][2]) == is_given_up
    (reported,) = read_report(files).regions
    assert reported.all_failed == region.all_failed == region.cut_off
    if is_given_up:
        said = CliRunner().invoke(main, ["status", str(run.folder)]).output
        row = next(line for line in said.splitlines() if line.startswith("A "))
        assert row.split()[:4] == ["A", "failed", "2/3", "2"]
