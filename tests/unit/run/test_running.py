"""How far a running trial has come: read where it executes, else as HTCondor carries it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trialfleet.workflows.dagman import job_queue
from trialfleet.workflows.dagman.job_queue import QueuedRun
from trialfleet.workflows.plan.folder import RegionFolder, RunFolder
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.status.running import RunningTrial, running_trials

LOG = """\
000 (007.000.000) 2026-11-20 10:00:00 Job submitted from host: <127.0.0.1:1>
...
001 (007.000.000) 2026-11-20 10:00:05 Job executing on host: <127.0.0.1:1>
\tSlotName: slot1_1@node-1
\tCondorScratchDir = "{sandbox}"
\tCpus = 1
...
"""
EVICTED = """\
004 (007.000.000) 2026-11-20 10:00:09 Job was evicted. Code 1022 Subcode 0
\t(0) CPU times
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t279  -  Run Bytes Sent By Job
\t978  -  Run Bytes Received By Job
...
"""
REPORT = '{"step": 9, "metrics": {"auc": 0.5}}\n'
AD = {"JobStatus": 2, "RemoteHost": "slot1_1@node-1", "JobCurrentStartExecutingDate": 1763632805}
CARRIED = {**AD, "ChirpTrialfleetStep": 3, "ChirpTrialfleetValue": 0.25}
EMPTY = QueuedRun(
    root="1.0", root_held=None, running=frozenset(), idle=frozenset(), held=(),
    regions=frozenset(), ads=(),
)  # fmt: skip
REGION = RegionGraph(
    name="A", slug="A", trials=2, lanes=(("A.l1.t01", "A.l1.t02"),), priority=0, publishes=True
)


class Place:
    """A region's folder, and a job of it that executes on this machine."""

    def __init__(self, root: Path) -> None:
        self.files = RegionFolder(root / "A")
        self.sandbox = root / "execute" / "dir_1" / "scratch"
        for trial in (self.files.trial("A.l1.t01"), self.files.best):
            name = trial.root.name
            for folder in (trial.root, self.sandbox / "trials" / name):
                folder.mkdir(parents=True)
                (folder / "trial.json").write_text(json.dumps({"run": "r1", "node": name}))
            (self.sandbox / "trials" / name / "progress.jsonl").write_text(REPORT)
            trial.log.write_text(LOG.format(sandbox=self.sandbox))

    def read(self, node: str, ad: dict[str, Any]) -> RunningTrial:
        ads = ({**ad, "TrialfleetNode": node}, {**AD, "TrialfleetNode": "B.l1.t01"})
        nodes = frozenset({node, "B.l1.t01"})
        (found,) = running_trials(self.files, REGION, replace(EMPTY, ads=ads, running=nodes), "auc")
        assert (found.node, found.slot, found.started) == (node, "slot1_1@node-1", 1763632805.0)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("node", ["A.l1.t01", "A.best"])
def test_a_report_on_this_machine_is_read_there(place: Place, node: str) -> None:
    found = place.read(node, CARRIED)
    assert (found.step, found.value) == (9, 0.5)


def test_a_folder_of_the_same_name_that_is_another_jobs_is_not_read(place: Place) -> None:
    theirs = place.sandbox / "trials" / "A.l1.t01" / "trial.json"
    theirs.write_text('{"run": "r2", "node": "A.l1.t01"}')
    found = place.read("A.l1.t01", CARRIED)
    assert (found.step, found.value) == (3, 0.25)


def test_on_another_machine_htcondors_word_counts(place: Place) -> None:
    log = place.files.trial("A.l1.t01").log
    log.write_text(LOG.format(sandbox="/no/such/folder"))
    assert place.read("A.l1.t01", CARRIED).step == 3
    log.unlink()
    assert place.read("A.l1.t01", CARRIED).step == 3


def test_the_reports_come_from_other_machines_too(place: Place) -> None:
    trial = place.files.trial("A.l1.t01")
    trial.log.write_text(LOG.format(sandbox="/no/such/folder"))
    trial.words.mkdir()
    trial.reports.write_text('{"step": 5, "metrics": {"auc": 0.75}}\n')
    found = place.read("A.l1.t01", CARRIED)
    assert (found.step, found.value) == (5, 0.75)


def test_what_nobody_says_is_not_known(place: Place) -> None:
    place.files.trial("A.l1.t01").log.write_text(LOG.format(sandbox=place.sandbox) + EVICTED)
    found = place.read("A.l1.t01", AD)
    assert (found.step, found.value) == (None, None)
    unset = {**CARRIED, "ChirpTrialfleetStep": "x", "ChirpTrialfleetValue": None}
    assert place.read("A.l1.t01", unset).step is None


def test_only_what_waits_for_a_person_is_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trial = {"ProcId": 0, "JobUniverse": 5, "JobStatus": 5, "HoldReason": "why"}
    ads = [
        {**trial, "ClusterId": 1, "TrialfleetNode": "A.l1.t01", "HoldReasonCode": 3},  # its memory
        {**trial, "ClusterId": 2, "TrialfleetNode": "A.l2.t01", "HoldReasonCode": 1},
        {**trial, "ClusterId": 3, "JobUniverse": 12, "HoldReasonCode": 6},  # the optimiser's
    ]
    monkeypatch.setattr(job_queue, "query", lambda *_: ads)
    queued = job_queue.look_up(RunFolder(tmp_path))
    assert [job.node for job in queued.held] == ["A.l2.t01", "optimizer"]
    assert queued.running == {"A.l1.t01"}
