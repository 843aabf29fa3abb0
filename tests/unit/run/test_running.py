"""Progress of a running trial, by the reports that its job's agent brought."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trialfleet.infra.pool import schedd
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.status.unfinished_trials import RunningTrial, running_trials

AD = {"JobStatus": 2, "RemoteHost": "slot1_1@node-1", "JobCurrentStartExecutingDate": 1763632805}
EMPTY = QueuedRun(
    root="1.0", root_held=None, running=frozenset(), idle=frozenset(), held=(),
    regions=frozenset(), ads=(),
)  # fmt: skip
REGION = RegionGraph(
    name="A", slug="A", trials=2, lanes=(("A.l1.t01", "A.l1.t02"),), priority=0, publishes=True
)


def read(files: RegionFolder, node: str) -> RunningTrial:
    ads = ({**AD, "TrialfleetNode": node}, {**AD, "TrialfleetNode": "B.l1.t01"})
    nodes = frozenset({node, "B.l1.t01"})
    (found,) = running_trials(files, REGION, replace(EMPTY, ads=ads, running=nodes), "auc")
    assert (found.node, found.slot, found.started) == (node, "slot1_1@node-1", 1763632805.0)
    return found


@pytest.mark.parametrize("node", ["A.l1.t01", "A.best"])
def test_the_last_report_that_came_is_shown(tmp_path: Path, node: str) -> None:
    files = RegionFolder(tmp_path / "A")
    place = files.best if node == "A.best" else files.trial(node)
    assert (read(files, node).step, read(files, node).value) == (None, None)
    place.words.mkdir(parents=True)
    lines = ['{"step": 4, "metrics": {"auc": 0.5}}', '{"step": 5, "metrics": {"auc": 0.75}}']
    place.reports.write_text("\n".join([*lines, ""]))
    assert (read(files, node).step, read(files, node).value) == (5, 0.75)


def test_only_jobs_that_wait_for_a_person_are_shown_as_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trial = {"ProcId": 0, "JobUniverse": 5, "JobStatus": 5, "HoldReason": "why"}
    own = {**trial, "JobUniverse": 7, "DAGManJobId": 1}  # on the access point
    ads = [
        {**trial, "ClusterId": 1, "TrialfleetNode": "A.l1.t01", "HoldReasonCode": 3},  # its memory
        {**trial, "ClusterId": 2, "TrialfleetNode": "A.l2.t01", "HoldReasonCode": 1},
        {**own, "ClusterId": 3, "DAGNodeName": "optimizer", "HoldReasonCode": 6},
        {**own, "ClusterId": 4, "DAGNodeName": "fleet"},
        {**own, "ClusterId": 5, "DAGNodeName": "A.keeper"},
        {**own, "ClusterId": 6, "DAGNodeName": "report", "JobUniverse": 12},
    ]
    monkeypatch.setattr(schedd, "query", lambda *_: ads)
    queued = job_queue.look_up(RunFolder(tmp_path))
    names = [job.node for job in queued.held]
    assert names == ["A.l2.t01", "optimizer", "fleet", "A.keeper", "report"]
    assert queued.running == {"A.l1.t01"}
