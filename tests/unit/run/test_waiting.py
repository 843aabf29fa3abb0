"""Reasons why trials of a run with a fleet wait: the notes of its autoscaler."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import classad2
import pytest

from tests.unit.plan.test_plan import make_study
from trialfleet.classads import JobStatus
from trialfleet.errors import PoolError
from trialfleet.infra.fleet.scaling import last_report
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.facts.dagman import job_queue, pool_slots
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.spending import read_spending
from trialfleet.workflows.status import waiting_reasons
from trialfleet.workflows.status.waiting_reasons import Waiting
from trialfleet.workflows.study.frozen import load_frozen

NOTE = "3 trial(s) ask for more than a node has, e.g. 1 GPU, 4 cpus, 900000 MB"
TRIAL = {
    "JobStatus": JobStatus.IDLE,
    "JobUniverse": 5,
    "EnteredCurrentStatus": 0,
    "TrialfleetNode": "A.l1",
    "TrialfleetRegion": "A",
}
RUNS = TRIAL | {"JobStatus": JobStatus.RUNNING, "TrialfleetNode": "A.l2"}
RUNNING = frozenset({"A.l2"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    fleet = {"aws_regions": ["eu-west-1"]}
    study = make_study(tmp_path, fleet=fleet, accelerator="gpu")
    planned = write_plan(study, run="r1", out=tmp_path / "run")
    monkeypatch.setattr(waiting_reasons, "has_negotiator", lambda: True)
    planned.fleet_state.write_text(json.dumps({"run": "r1", "step": {"notes": [NOTE]}}))
    return planned


def queued(*ads: dict[str, Any], running: frozenset[str] = frozenset()) -> QueuedRun:
    return QueuedRun(
        root="1.0",
        root_held=None,
        running=running,
        idle=frozenset(),
        held=(),
        regions=frozenset(),
        ads=ads,
    )


def test_the_autoscalers_notes_are_shown_while_trials_wait_and_none_runs(folder: RunFolder) -> None:
    frozen = load_frozen(folder.study)
    assert Waiting(folder, frozen).reasons(queued(TRIAL)) == (f"trials wait: {NOTE}",)
    assert Waiting(folder, frozen).reasons(queued()) == ()
    assert Waiting(folder, frozen).reasons(queued(TRIAL, RUNS, running=RUNNING)) == ()


@pytest.mark.parametrize(("cpus", "waits"), [(1, True), (4, False)])
def test_the_notes_are_shown_for_a_region_that_no_node_can_run_while_another_trains(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, cpus: int, waits: bool
) -> None:
    slot = classad2.ClassAd({"State": "Claimed", "Cpus": cpus})
    job = classad2.ClassAd({"RequestCpus": 2, "EnteredCurrentStatus": 0})
    job["Requirements"] = classad2.ExprTree("true")
    monkeypatch.setattr(pool_slots, "slot_ads", lambda _constraint: [slot])
    monkeypatch.setattr(job_queue, "one_idle", lambda _folder, _node: job)
    other = RUNS | {"AutoClusterId": 2}
    found = Waiting(folder, load_frozen(folder.study)).reasons(
        queued(TRIAL | {"AutoClusterId": 1}, other, running=RUNNING)
    )
    assert found == ((f"A: trials wait: {NOTE}",) if waits else ())


@pytest.mark.parametrize(
    ("cpus", "avoids", "is_hopeless"), [(1, False, True), (2, False, False), (2, True, False)]
)
def test_a_run_needs_a_person_if_no_slot_can_ever_run_a_waiting_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, avoids: bool, is_hopeless: bool
) -> None:
    """A retry avoids the machine of its last attempt for two minutes only."""
    planned = write_plan(make_study(tmp_path), run="r1", out=tmp_path / "run")
    slot = classad2.ClassAd({"State": "Claimed", "Cpus": cpus, "TotalSlotCpus": cpus})
    slot["Machine"] = "a"
    job = classad2.ClassAd({"RequestCpus": 2, "EnteredCurrentStatus": 0, "QDate": int(time.time())})
    elsewhere = 'TARGET.Machine =!= "a" || time() - QDate > 120' if avoids else "true"
    job["Requirements"] = classad2.ExprTree(f"TARGET.Cpus >= RequestCpus && ({elsewhere})")
    monkeypatch.setattr(waiting_reasons, "has_negotiator", lambda: True)
    monkeypatch.setattr(pool_slots, "slot_ads", lambda _constraint: [slot])
    monkeypatch.setattr(job_queue, "one_idle", lambda _folder, _node: job)
    waiting = Waiting(planned, load_frozen(planned.study))
    found = waiting.reasons(queued(TRIAL))
    assert waiting.hopeless == (found if is_hopeless else ())
    assert bool(found) == is_hopeless


def test_notes_of_an_autoscaler_whose_nodes_boot_need_no_person(folder: RunFolder) -> None:
    waiting = Waiting(folder, load_frozen(folder.study))
    assert waiting.reasons(queued(TRIAL))
    assert waiting.hopeless == ()


def test_notes_of_an_autoscaler_of_all_trials_are_shown_too(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder.fleet_state.unlink()
    report = tmp_path / "of-the-fleet.json"
    report.write_text(json.dumps({"run": "", "step": {"notes": [NOTE], "spent": 7.0}}))
    monkeypatch.setattr(last_report, "default_report", lambda _fleet: report)
    frozen = load_frozen(folder.study)
    assert Waiting(folder, frozen).reasons(queued(TRIAL)) == (f"trials wait: {NOTE}",)
    assert read_spending(folder, frozen.run, frozen.study.fleet) is None


@pytest.mark.parametrize(
    ("mode", "said", "why"),
    [
        ("off", "", "the pool has no slots now"),
        ("service", "", "the fleet's autoscaler has not reported"),
        ("service", "a\nno keys\n", "the fleet's autoscaler has not reported: no keys"),
    ],
)
def test_an_autoscaler_that_never_reported_is_shown_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, said: str, why: str
) -> None:
    fleet = {"aws_regions": ["eu-west-1"], "autoscale": mode}
    folder = write_plan(make_study(tmp_path, fleet=fleet), run="r1", out=tmp_path / "run")
    job = classad2.ClassAd({"RequestCpus": 1, "EnteredCurrentStatus": 0})
    job["Requirements"] = classad2.ExprTree("true")
    monkeypatch.setattr(waiting_reasons, "has_negotiator", lambda: True)
    monkeypatch.setattr(pool_slots, "slot_ads", lambda _constraint: [])
    monkeypatch.setattr(job_queue, "one_idle", lambda _folder, _node: job)
    folder.fleet_output.write_text(said)
    found = Waiting(folder, load_frozen(folder.study)).reasons(queued(TRIAL))
    assert found == (f"A: trials wait: {why}",)
    if mode == "service":
        begun = queued(TRIAL | {"EnteredCurrentStatus": time.time()})
        assert Waiting(folder, load_frozen(folder.study)).reasons(begun) == ()


def test_trials_that_wait_while_the_collector_is_away_are_not_passed_over(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> bool:
        raise PoolError("HTCondor's collector does not answer: timeout")

    monkeypatch.setattr(waiting_reasons, "has_negotiator", away)
    waiting = Waiting(folder, load_frozen(folder.study))
    (line,) = waiting.reasons(queued(TRIAL))
    assert line.endswith("their reason is unknown: HTCondor's collector does not answer: timeout")
    assert waiting.hopeless == ()
    assert Waiting(folder, load_frozen(folder.study)).reasons(queued()) == ()


def test_a_graph_that_waits_for_its_first_node_shows_why_there_is_none(tmp_path: Path) -> None:
    fleet = {"aws_regions": ["eu-west-1"], "autoscale": "provisioner"}
    folder = write_plan(make_study(tmp_path, fleet=fleet), run="r1", out=tmp_path / "run")
    frozen, begins = load_frozen(folder.study), "no trial starts before a node has joined: "
    silent = "the fleet's autoscaler has not reported"
    assert Waiting(folder, frozen).reasons(queued()) == (begins + silent,)
    folder.fleet_state.write_text(json.dumps({"run": "r1", "step": {"notes": [NOTE]}}))
    assert Waiting(folder, frozen).reasons(queued()) == (begins + NOTE,)
    of_region = replace(queued(), regions=frozenset("A"))
    assert Waiting(folder, frozen).reasons(of_region) == ()
    assert Waiting(folder, frozen).reasons(replace(queued(), root=None)) == ()


@pytest.mark.parametrize(
    ("negotiates", "waits", "state", "words"),
    [
        (False, 1, "Unclaimed", "negotiator"),
        (True, 601, "Unclaimed", "a job has waited for 10 min, but HTCondor doesn't start it"),
        (True, 1, "Unclaimed", ""),
        (True, 601, "Claimed", ""),
    ],
)
def test_a_job_that_htcondor_starts_in_no_free_slot_is_shown(
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    negotiates: bool,
    waits: float,
    state: str,
    words: str,
) -> None:
    slot = classad2.ClassAd({"State": state, "Cpus": 1, "TotalSlotCpus": 1})
    job = classad2.ClassAd({"RequestCpus": 1, "EnteredCurrentStatus": int(time.time() - waits)})
    job["Requirements"] = classad2.ExprTree("true")
    monkeypatch.setattr(waiting_reasons, "has_negotiator", lambda: negotiates)
    monkeypatch.setattr(pool_slots, "slot_ads", lambda _constraint: [slot])
    monkeypatch.setattr(job_queue, "one_idle", lambda _folder, _node: job)
    folder.fleet_state.unlink()
    found = Waiting(folder, load_frozen(folder.study)).reasons(queued(TRIAL))
    assert words in " ".join(found)
    assert bool(found) == bool(words)


def test_notes_of_another_run_are_not_shown(folder: RunFolder) -> None:
    folder.fleet_state.write_text(json.dumps({"run": "r0", "step": {"notes": [NOTE]}}))
    assert NOTE not in "".join(Waiting(folder, load_frozen(folder.study)).reasons(queued(TRIAL)))
