from __future__ import annotations

from typing import Any

import classad2
import pytest

from trialfleet.infra.pool.machines import Machine, Resources, parse_machines
from trialfleet.slots import IS_FREE, is_held, runs_job

WHOLE: dict[str, Any] = {
    "Name": "slot1@n1",
    "Machine": "n1",
    "SlotType": "Partitionable",
    "TotalSlotCpus": 8,
    "TotalSlotGPUs": 1,
}
CUT: dict[str, Any] = {"Name": "slot1_1@n1", "Machine": "n1", "SlotType": "Dynamic"}


def machine(**says: Any) -> Machine:
    """Return a machine with a GPU, of no fleet unless it says so."""
    (found,) = parse_machines([WHOLE | says])
    return found


@pytest.mark.parametrize(
    ("ad", "runs"),
    [
        (CUT | {"State": "Claimed", "Activity": "Busy", "JobId": "1.0"}, True),
        ({"Name": "slot2@n1", "SlotType": "Static", "State": "Claimed", "JobId": "1.0"}, True),
        ({"Name": "slot2@n1", "State": "Claimed", "JobId": "1.0"}, True),
        (CUT | {"State": "Claimed", "Activity": "Idle"}, False),
        (CUT | {"State": "Claimed", "JobId": "1.0", "IsDataSlot": True}, False),
        (CUT | {"State": "Claimed", "JobId": "1.0", "IsDataSlot": False}, True),
        (WHOLE | {"State": "Unclaimed", "JobId": "1.0"}, False),
        (WHOLE | {"State": "Unclaimed"}, False),
    ],
)
def test_only_a_claimed_slot_with_a_job_runs_a_job(ad: dict[str, Any], runs: bool) -> None:
    assert runs_job(ad) is runs


@pytest.mark.parametrize(
    ("ad", "held"),
    [
        (CUT | {"State": "Claimed", "Activity": "Busy", "JobId": "1.0"}, True),
        (CUT | {"State": "Claimed", "Activity": "Idle"}, True),  # kept for the next job
        (CUT | {"State": "Preempting", "JobId": "1.0"}, True),
        (WHOLE | {"State": "Matched"}, True),
        (WHOLE | {"State": "Unclaimed", "JobId": "1.0"}, False),
        (
            CUT | {"Name": "data1_2@n1", "State": "Claimed", "JobId": "1.0", "IsDataSlot": True},
            False,
        ),
    ],
)
def test_python_and_htcondor_agree_which_slots_are_held_for_jobs(
    ad: dict[str, Any], held: bool
) -> None:
    assert is_held(ad) is held
    assert classad2.ClassAd(ad | {"Free": classad2.ExprTree(IS_FREE)}).eval("Free") is not held


def test_a_machine_counts_the_jobs_and_resources_of_its_slots() -> None:
    (found,) = parse_machines(
        [
            WHOLE | {"State": "Unclaimed", "Cpus": 5, "GPUs": 0, "JobId": "1.0"},
            CUT | {"State": "Claimed", "Cpus": 2, "GPUs": 1, "JobId": "1.0"},
            CUT | {"Name": "data1_2@n1", "State": "Claimed", "JobId": "1.0", "IsDataSlot": True},
            CUT | {"Name": "slot1_3@n1", "State": "Claimed", "Activity": "Idle", "Cpus": 1},
        ]
    )
    assert found.jobs == ("1.0",)
    assert (found.total, found.free) == (Resources(gpus=1, cpus=8), Resources(cpus=5))
    assert found.in_use == Resources(gpus=1, cpus=3)
    assert found.idle_since is None


def test_machines_differ_by_name_and_instance_and_are_sorted_by_name() -> None:
    other = WHOLE | {"Name": "slot1@n0", "Machine": "n0"}
    instances = [WHOLE | {"TrialfleetInstance": name} for name in ("i-1", "i-2")]
    found = parse_machines([*instances, other, CUT | {"TrialfleetInstance": "i-2", "JobId": "1.0"}])
    assert [(each.name, each.instance) for each in found] == [
        ("n0", ""),
        ("n1", "i-1"),
        ("n1", "i-2"),
    ]
    assert [each.jobs for each in found] == [(), (), ("1.0",)]


FAILED = {"TrialfleetGpuHealthy": False, "TrialfleetGpuReason": "ECC"}
NODE = {"TrialfleetInstance": "i-1"}


@pytest.mark.parametrize(
    ("says", "state", "why"),
    [
        ({"TrialfleetGpuHealthy": True}, "well", ""),
        (
            {"TrialfleetGpuHealthy": True, "TrialfleetGpuReason": "GPU 1: hung"},
            "well",
            "GPU 1: hung",
        ),
        (FAILED, "sick", "its GPU failed the probe: ECC"),
        ({"TrialfleetGpuHealthy": False}, "sick", "its GPU failed the probe: no reason given"),
        ({}, "well", ""),
        (FAILED | {"Draining": True, "DrainReason": "trialfleet: idle"}, "draining", "idle"),
        (
            {"Draining": True, "TrialfleetNote": "spot interruption"},
            "draining",
            "spot interruption",
        ),
    ],
)
def test_a_machine_has_a_state_and_an_explanation(
    says: dict[str, Any], state: str, why: str
) -> None:
    found = machine(**says)
    assert (found.state(), found.explanation()) == (state, why)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("c5.xlarge", "well"),
        ("g4ad.xlarge", "well"),
        ("g5.xlarge", "sick"),
        ("p4d.24xlarge", "sick"),
    ],
)
def test_a_machine_without_a_gpu_is_sick_only_if_its_type_has_one(kind: str, state: str) -> None:
    lacking = NODE | {"TotalSlotGPUs": 0, "TrialfleetInstanceType": kind}
    failed = machine(**FAILED, **lacking)
    assert failed.state() == state
    assert failed.explanation() == ("its GPU failed the probe: ECC" if state == "sick" else "")


def test_a_slot_whose_owner_keeps_it_is_free_and_offers_nothing() -> None:
    found = machine(State="Owner", Cpus=8)
    assert (found.free, found.offered_room) == (Resources(cpus=8), Resources())
