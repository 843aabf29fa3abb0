from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import classad2
import pytest

from tests.fleet.mock_aws.nodes_at_hand import NOW, ROOM, ago, dynamic_ad, job_ad, slot_ad
from trialfleet.errors import PoolError
from trialfleet.files import json_text
from trialfleet.infra.fleet.htcondor.demand import Demand, Group, read_demand, select_run
from trialfleet.infra.pool.machines import ATTRIBUTES, Resources, RunningTrial, parse_machines


def test_an_idle_nodes_ad_gives_its_resources_and_idle_time() -> None:
    (node,) = parse_machines([slot_ad()])
    assert (node.instance, node.slot) == ("i-1", "slot1@i-1")
    assert (node.total, node.free) == (ROOM, ROOM)
    assert (node.healthy, node.reason, node.gpu) == (True, "", "NVIDIA A10G")
    assert (node.bandwidth, node.launch_microseconds) == (481.5, None)
    assert node.idle_since == NOW - timedelta(seconds=60)
    assert not node.draining
    assert json.loads(json_text(node))["idle_since"] == "2026-11-20T11:59:00+00:00"


def test_the_query_of_the_collector_has_all_attributes_that_are_read() -> None:
    ad = slot_ad(TrialfleetTrialsPerGpu=2, TrialfleetDriverOption="set", DrainReason="why")
    asked = {name: ad[name] for name in ATTRIBUTES if name in ad}
    assert parse_machines([asked]) == parse_machines([ad])
    assert parse_machines([asked])[0].shares == 2


def test_idleness_is_right_where_the_nodes_clock_is_wrong() -> None:
    seconds = int(NOW.timestamp()) + 4_000
    ad = slot_ad(MyCurrentTime=seconds, NumDynamicSlotsTime=seconds - 300)
    (node,) = parse_machines([ad])
    assert node.idle_since == NOW - timedelta(seconds=300)


def test_a_busy_nodes_ads_give_its_running_trials() -> None:
    whole = slot_ad(NumDynamicSlots=2, GPUs=0, Cpus=2, Memory=7_000)
    ads = [dynamic_ad(job="8.0"), whole, dynamic_ad(job="7.0")]
    (node,) = parse_machines(ads, [job_ad("7.0"), job_ad("9.0")])
    assert node.idle_since is None
    assert node.free == Resources(gpus=0, cpus=2, memory_mb=7_000)
    assert node.jobs == ("7.0", "8.0")  # 8.0 is not a trial
    assert node.trials == (RunningTrial(run="r1", region="JFK", node="JFK.l1.t03"),)


def test_a_slot_that_keeps_common_files_runs_no_trial() -> None:
    claimed: dict[str, Any] = {"State": "Claimed", "Activity": "Busy", "IsDataSlot": True}
    kept = dynamic_ad(job="7.0", Name="data1_2@i-1", **claimed)  # and 7.0 is its first trial
    whole, job = slot_ad(NumDynamicSlots=2), job_ad("7.0")
    (node,) = parse_machines([whole, kept, dynamic_ad(job="7.0")], [job])
    assert (node.jobs, len(node.trials), node.idle_since) == (("7.0",), 1, None)
    (node,) = parse_machines([slot_ad(NumDynamicSlots=1), kept], [])
    assert (node.jobs, node.trials) == ((), ())
    assert node.idle_since == ago(1), "when its last trial's slot was given back"


def test_a_slot_that_is_claimed_but_runs_nothing_is_not_idle() -> None:
    (node,) = parse_machines([slot_ad(NumDynamicSlots=1)])
    assert (node.idle_since, node.jobs) == (None, ())


def test_runs_of_one_id_are_distinguished_by_their_folders() -> None:
    jobs = [job_ad(TrialfleetFolder=f"/runs/{study}/r1") for study in ("one", "one", "other")]
    assert select_run(jobs, "r1", "/runs/other/r1") == jobs[2:]
    assert select_run(jobs[:2], "r1") == jobs[:2]
    assert select_run(jobs, "r2") == []
    assert select_run(jobs, "") == jobs
    with pytest.raises(PoolError, match=r"several runs called 'r1'.*/runs/one/r1, /runs/other/r1"):
        select_run(jobs, "r1")


def test_expressions_are_evaluated_and_odd_values_pass_for_unknown() -> None:
    ad = slot_ad(
        TrialfleetBandwidth=classad2.ExprTree("Cpus * 100.5"),
        TrialfleetGpuHealthy=classad2.ExprTree("NoSuchAttribute > 1"),
        TrialfleetGpuReason=7,
    )
    (node,) = parse_machines([ad])
    assert (node.bandwidth, node.healthy, node.reason) == (402.0, None, "")


def test_values_that_the_probe_did_not_measure_are_unknown() -> None:
    nothing = classad2.Value.Undefined
    ad = slot_ad(TrialfleetBandwidth=nothing, TrialfleetLaunchMicroseconds=nothing, Cpus=nothing)
    (node,) = parse_machines([ad])
    assert (node.bandwidth, node.launch_microseconds, node.free.cpus) == (None, None, 0)


def test_the_later_ad_of_a_restarted_startd_is_used() -> None:
    old, new = slot_ad(LastHeardFrom=int(NOW.timestamp()) - 50, GPUs=0), slot_ad()
    assert parse_machines([new, old]) == parse_machines([old, new]) == parse_machines([new])


def test_a_machine_with_only_dynamic_slots_is_left_out() -> None:
    assert parse_machines([dynamic_ad("i-2")]) == ()


def test_demand_counts_trials_that_wait_and_that_run() -> None:
    ads = [job_ad(JobStatus=status) for status in (2, 9, 1, 5)]
    ads.append(job_ad(JobStatus=1, RequestGPUs=4))
    one, four = (Resources(gpus=n, cpus=1, memory_mb=4_000) for n in (1, 4))
    demand = read_demand([*ads, job_ad(JobStatus=1, EnteredCurrentStatus=1_795_000_000)])
    moment = datetime(2026, 11, 18, 11, 6, 40, tzinfo=UTC)
    assert demand == Demand(
        idle=(Group(need=four, jobs=1), Group(need=one, jobs=2, since=moment)),
        active=(Group(need=one, jobs=2),),
    )
    assert (demand.waiting_trials, demand.running_trials) == (3, 2)


def test_trials_with_other_requirements_are_a_group_of_their_own() -> None:
    fast = classad2.ExprTree("TARGET.TrialfleetBandwidth > 900")
    demand = read_demand([job_ad(JobStatus=1), job_ad(JobStatus=1, Requirements=fast)])
    assert [group.requirements for group in demand.idle] == [
        "TARGET.TrialfleetBandwidth > 900",
        "",
    ]


def test_a_trial_without_a_gpu_asks_for_none() -> None:
    ad = job_ad(JobStatus=1)
    del ad["RequestGPUs"]
    assert read_demand([ad]).idle[0].need == Resources(gpus=0, cpus=1, memory_mb=4_000)
