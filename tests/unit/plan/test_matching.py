"""Slots that can run a job, and the reasons why others can't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import classad2
import pytest

from tests.conftest import MakeRun
from trialfleet.infra.fleet.scaling.suitable_types import SuitableTypes
from trialfleet.infra.pool.machines import Resources
from trialfleet.workflows.control.plan.accelerator_and_python import PoolFacts, settle
from trialfleet.workflows.control.plan.pool_check import PoolCheck
from trialfleet.workflows.rules.slot_matching import Prospects, prospects, split_clauses
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.why.slot_sources import _draining

GB = 1024  # MiB

# As condor_submit makes them of a trial's submit file.
REQUIREMENTS = (
    '{own}(TARGET.Arch == "X86_64") && (TARGET.OpSys == "LINUX") && '
    '(versionGE(split(TARGET.CondorVersion)[1],"25.12.0") || (TARGET.Disk >= RequestDisk)) && '
    "(TARGET.Memory >= RequestMemory) && (TARGET.HasFileTransfer)"
)


def job(own: str = "", **asked: object) -> classad2.ClassAd:
    wants = {"RequestCpus": 1, "RequestMemory": 2 * GB, "RequestDisk": 2 * GB * 1024, **asked}
    ad = classad2.ClassAd(wants)
    ad["Requirements"] = classad2.ExprTree(REQUIREMENTS.format(own=f"({own}) && " if own else ""))
    return ad


def slot(**more: Any) -> classad2.ClassAd:
    """Return a partitionable slot as `pool_slots` gives it."""
    has = {
        "SlotID": 1,
        "Arch": "X86_64",
        "OpSys": "LINUX",
        "CondorVersion": "$CondorVersion: 25.14.1 2026-10-16 $",
        "HasFileTransfer": True,
        "Cpus": 4,
        "Memory": 23 * GB,
        "Disk": 100 * GB * 1024,
        "GPUs": 0,
        "Start": True,
    }
    ad = classad2.ClassAd({**has, **more})
    ad["Requirements"] = classad2.ExprTree("Start && TARGET.RequestMemory <= MY.Memory")
    return ad


def draining(machine: str, reason: str, **more: Any) -> classad2.ClassAd:
    return slot(Machine=machine, Name=machine, Draining=True, DrainReason=reason, **more)


def test_the_reason_of_a_drain_is_that_of_a_slot_that_fits() -> None:
    small = draining("a", "too small", Memory=GB)
    assert _draining(job(), [small, draining("b", "a new disk"), slot(Memory=GB)]) == "a new disk"
    assert _draining(job(), [draining("b", "a new disk"), slot()]) == ""
    assert _draining(job(), [small]) == ""


def test_a_job_that_every_slot_can_run_lacks_nothing() -> None:
    found = prospects(job(), [slot(), slot()])
    assert found == Prospects(slots=2, fit=2, willing=2, concurrency=2, lacking=(), has_fleet=False)
    assert not found.hopeless
    assert str(found) == "2 of 2 slot(s) of the pool can run them"


def test_a_partitionable_slot_runs_as_many_at_a_time_as_it_has_room_for() -> None:
    whole = slot(PartitionableSlot=True)  # 4 cores, 23 GB
    assert prospects(job(), [whole, slot()]).concurrency == 4 + 1
    line = str(prospects(job(), [whole]))  # plan's text on them two lines earlier
    assert line == (
        "1 of 1 slot(s) of the pool can run them; it is divided among them: 4 run at a time"
    )
    assert "; they are divided among them: 8 run" in str(prospects(job(), [whole, whole]))
    assert prospects(job(RequestMemory=8 * GB), [whole]).concurrency == 2
    assert (
        prospects(job(RequestMemory=23 * GB - 1), [whole]).concurrency == 1
    )  # rounded up to 23 GB
    assert prospects(job(RequestMemory=30 * GB), [whole]).concurrency == 0
    assert prospects(job(), [slot(PartitionableSlot=True, Start=False)]).concurrency == 0


def test_too_much_memory_is_named_with_the_most_that_there_is() -> None:
    found = prospects(job(RequestMemory=900 * GB), [slot(), slot(Memory=8 * GB)])
    assert found.hopeless
    assert str(found) == (
        "no slot of the pool can run them: memory: needs 900 GB, the most is 23 GB"
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"RequestCpus": 64}, "cpus: needs 64, the most is 4"),
        ({"RequestDisk": 900 * GB * GB}, "disk: needs 900 GB, the most is 100 GB"),
        ({"RequestGPUs": 1}, "gpus: needs 1, the most is 0"),
        ({"own": "HAS_GPU"}, "accelerator: gpu needs HAS_GPU, no slot has that"),
        (
            {"own": "HAS_GPU && (TrialfleetTrialsPerGpu ?: 1) == 4"},
            "gpus: needs GPUs that 4 trial(s) share (TrialfleetTrialsPerGpu), no slot has that",
        ),
        (
            {"own": 'HAS_GPU =!= true && (OpSysAndVer == "Debian13" || Memory < 3)'},
            'requirements: OpSysAndVer == "Debian13" || Memory < 3, no slot has that',
        ),
    ],
)
def test_the_clause_that_no_slot_meets_is_named(asked: dict[str, Any], why: str) -> None:
    found = prospects(job(**asked), [slot(), slot()])
    assert found.hopeless
    assert why in found.lacking


def test_clauses_that_exclude_slots_are_reported_with_the_number_left() -> None:
    slots = [slot(), slot(Arch="aarch64"), slot(Memory=GB)]
    found = prospects(job(), slots)
    assert (found.slots, found.fit, found.hopeless) == (3, 1, False)
    assert found.lacking == (
        "memory: needs 2048 MB, 2 of 3 slots have that",
        'requirements: TARGET.Arch == "X86_64", 2 of 3 slots have that',
    )


def test_no_slot_meets_clauses_that_are_each_met_by_another() -> None:
    slots = [slot(Memory=GB), slot(Arch="aarch64")]
    found = prospects(job(), slots)
    assert found.hopeless
    assert str(found).count("1 of 2 slots have that") == 2


def test_a_slot_that_refuses_by_its_own_start_may_take_the_job_later() -> None:
    found = prospects(job(), [slot(Start=False), slot(Memory=GB)])
    assert (found.fit, found.willing, found.has_only_unwilling_slots) == (1, 0, True)
    assert not found.hopeless
    assert "because of its START expression" in str(found)


def test_where_nodes_of_a_fleet_join_the_pool_nothing_is_hopeless() -> None:
    found = prospects(job(RequestGPUs=1), [slot(TrialfleetFleet="demo")])
    assert (found.fit, found.hopeless) == (0, False)


def test_a_pool_without_slots_says_so() -> None:
    found = prospects(job(), [])
    assert (str(found), found.hopeless) == ("the pool has no slots now", False)


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a && b", ["a", "b"]),
        ("((a && (b)) && (c || d))", ["a", "b", "c || d"]),
        ("a || b && c", ["a || b && c"]),
        ("a ? b && c : d", ["a ? b && c : d"]),
        ("a ?: b && c", ["a ?: b && c"]),
        ("(a ?: 1) == 1 && b =?= true", ["(a ?: 1) == 1", "b =?= true"]),
        (r'n == "x \" && (y" && f(a && b) && l[1]', [r'n == "x \" && (y"', "f(a && b)", "l[1]"]),
        ("(a) && (b)", ["a", "b"]),
        ("true", ["true"]),
    ],
)
def test_an_expression_is_split_only_at_ands_of_its_top_level(
    expression: str, parts: list[str]
) -> None:
    assert split_clauses(expression) == parts


NO_SLOT = Prospects(slots=1, fit=0, willing=0, concurrency=0, lacking=("gpus: …",), has_fleet=False)
SLOT = replace(NO_SLOT, fit=1, willing=1, concurrency=1, lacking=())
NEED = Resources(gpus=1, cpus=1, memory_mb=2 * GB)
LARGE, SMALL = ({"g5.xlarge": Resources(gpus=1, cpus=4, memory_mb=mb)} for mb in (15_000, 1_000))


@pytest.mark.parametrize(
    ("pool_check", "hopeless"),
    [
        (PoolCheck(prospects=NO_SLOT), "no slot of the pool can run them: gpus: …"),
        (PoolCheck(prospects=NO_SLOT, has_fleet=True), ""),
        (
            PoolCheck(
                prospects=NO_SLOT, has_fleet=True, suitable=SuitableTypes(need=NEED, rooms=LARGE)
            ),
            "",
        ),
        (
            PoolCheck(
                prospects=NO_SLOT, has_fleet=True, suitable=SuitableTypes(need=NEED, rooms=SMALL)
            ),
            "no instance type of the study's fleet can hold one: it needs 1 GPU, 1 cpu, 2048 MB",
        ),
        (PoolCheck(prospects=None, troubles=("no pool",)), ""),
        (PoolCheck(prospects=SLOT, has_fleet=True, largest=("B", NO_SLOT)), ""),
        (
            PoolCheck(
                prospects=SLOT,
                has_fleet=True,
                largest=("B", NO_SLOT),
                suitable_for_largest=SuitableTypes(need=NEED, rooms=LARGE),
            ),
            "",
        ),
        (
            PoolCheck(
                prospects=SLOT,
                has_fleet=True,
                largest=("B", NO_SLOT),
                suitable_for_largest=SuitableTypes(need=NEED, rooms=SMALL),
            ),
            "trials of B: no instance type of the study's fleet can hold one: it needs 1 GPU",
        ),
    ],
)
def test_a_trial_is_hopeless_if_neither_pool_nor_fleet_can_run_it(
    pool_check: PoolCheck, hopeless: str
) -> None:
    assert pool_check.hopeless.startswith(hopeless)
    assert bool(pool_check.hopeless) == bool(hopeless)
    assert pool_check.to_json()["hopeless"] == bool(hopeless)


# -- settings left to the pool ------------------------------------------------------------------


def study(**changes: Any) -> Study:
    values = {
        "name": "demo",
        "regions": ["A"],
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "trainer": {"command": ["sh"]},
    }
    return Study.model_validate({**values, **changes})


FLEET = {"aws_regions": ["eu-west-1"]}
CPU_FLEET = {**FLEET, "instance_types": ["c7i.xlarge"]}
GPU_FLEET = {**FLEET, "instance_types": ["c7i.xlarge", "g6e.xlarge"]}


@pytest.mark.parametrize(
    ("changes", "slots", "chosen", "why"),
    [
        ({}, [slot(), slot(HAS_GPU=True)], "gpu", "because 1 of 2 slot(s) have HAS_GPU"),
        ({}, [slot(HAS_GPU=False)], "cpu", "because no slot of the pool has a GPU"),
        ({}, [slot(GPUs=2)], "cpu", "none of the 1 slot(s) with GPUs advertises HAS_GPU"),
        ({"fleet": FLEET}, [slot()], "gpu", "because the study's fleet has GPUs"),
        ({"fleet": GPU_FLEET}, [], "gpu", "because the study's fleet has GPUs"),
        ({"fleet": CPU_FLEET}, [slot()], "cpu", "because no slot of the pool has a GPU"),
    ],
)
def test_a_missing_accelerator_is_chosen_from_the_slots_of_the_pool(
    changes: dict[str, Any], slots: list[classad2.ClassAd], chosen: str, why: str
) -> None:
    settled, notes = settle(study(**changes), PoolFacts(slots=tuple(slots)))
    assert settled.accelerator == chosen
    assert notes[0].startswith(f"accelerator: {chosen}, ")
    assert why in notes[0]


def test_without_a_pool_the_plan_says_which_accelerator_it_took_and_why() -> None:
    settled, notes = settle(study(), PoolFacts(trouble="it is down"))
    assert settled.accelerator == "cpu"
    assert "no pool answers" in notes[0]
    assert "write accelerator: gpu" in notes[0]


def test_without_a_pool_the_plan_says_how_to_start_one(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONDOR_CONFIG")
    (trouble,) = make_run().check_pool().troubles
    assert trouble.startswith("not compared with the pool: the pool in ")
    assert trouble.endswith(" is not up: start it by `trialfleet pool up`")


def test_an_accelerator_that_is_given_stays() -> None:
    settled, notes = settle(study(accelerator="gpu"), PoolFacts(slots=(slot(),)))
    assert settled.accelerator == "gpu"
    assert not any(note.startswith("accelerator") for note in notes)
