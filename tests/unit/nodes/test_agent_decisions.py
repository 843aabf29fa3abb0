"""Decisions of the agent, without clock, metadata or HTCondor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trialfleet.nodes.node_agent.decisions import (
    CAUSES,
    LEASE_GRACE,
    Decision,
    Departure,
    Memory,
    Observations,
    Startd,
    changes,
    decide,
)
from trialfleet.nodes.node_agent.history import Failure

IDLE_MINUTES = 10.0
IDLE = Startd(held=0, draining=None, started=100)
BUSY = Startd(held=1, draining=None, started=100)
DRAINING = Startd(held=1, draining="why", started=100)
DRAINED = Startd(held=0, draining="why", started=100)
JOINED = Memory(joined=True)
NOW = 1_795_200_000.0
FAILURES = tuple(Failure(f"{i}.0", NOW - 10 + i, "exit code 1") for i in range(3))


def seen(startd: Startd | None = BUSY, **more: Any) -> Observations:
    usual = {"now": NOW, "uptime": 5_000.0, "busy": startd is not None and startd.held > 0}
    return Observations(**(usual | {"startd": startd, "in_collector": True} | more))


def leaving(cause: str, since: float = 5_000.0, drained: float = 0) -> Memory:
    return Memory(joined=True, leaving=Departure(cause, f"because of {cause}", since, drained))


def decided(memory: Memory, sight: Observations, idle_minutes: float = IDLE_MINUTES) -> Decision:
    return decide(memory, sight, idle_minutes)


def test_a_node_at_work_is_left_alone() -> None:
    decision = decided(JOINED, seen(expires=NOW + 60))
    assert decision.drain is None
    assert decision.power_off is None
    assert decision.memory.leaving is None


def test_a_spot_notice_drains_and_leaves_switching_off_to_aws() -> None:
    decision = decided(JOINED, seen(interruption="terminate at 2026-11-20T12:00:00Z"))
    assert decision.drain == "spot interruption: terminate at 2026-11-20T12:00:00Z"
    assert not decision.only_idle
    after = decided(decision.memory, seen(DRAINED))
    assert after.drain is None
    assert after.power_off is None


def test_a_rebalance_recommendation_drains_the_node_and_switches_it_off() -> None:
    decision = decided(JOINED, seen(rebalance="2026-11-20T12:00:00Z"))
    assert decision.drain == "rebalance recommendation of 2026-11-20T12:00:00Z"
    assert decided(decision.memory, seen(DRAINING, uptime=9_999)).power_off is None
    assert decided(decision.memory, seen(DRAINED)).power_off == decision.drain


def test_a_node_whose_token_has_expired_drains_and_is_switched_off() -> None:
    assert decided(JOINED, seen(token_expires=NOW + 1)).drain is None
    decision = decided(JOINED, seen(token_expires=NOW))
    assert decision.drain == (
        "the node's token expired at 2026-11-20T18:40:00Z: without it, the node can't connect to "
        "the manager again"
    )
    assert decided(decision.memory, seen(DRAINING)).power_off is None
    assert decided(decision.memory, seen(DRAINED)).power_off == decision.drain


def test_a_node_without_its_fence_drains_and_stays_until_idle_for_ten_minutes() -> None:
    decision = decided(JOINED, seen(unfenced="jobs could reach the metadata: why"))
    assert decision.drain == "jobs could reach the metadata: why"
    assert not decision.only_idle
    memory = decided(decision.memory, seen(DRAINED, uptime=5_010)).memory
    assert decided(memory, seen(DRAINED, uptime=5_600)).power_off is None
    over = decided(memory, seen(DRAINED, uptime=5_610)).power_off
    assert over == "idle for 10 minutes; before that: jobs could reach the metadata: why"


def test_an_expired_lease_drains_at_once_and_waits_for_the_jobs() -> None:
    decision = decided(JOINED, seen(expires=NOW))
    assert decision.drain is not None
    assert decision.drain.startswith("lease expired at 2026-11-20T")
    assert decision.power_off is None
    assert decided(decision.memory, seen(DRAINING, expires=NOW, uptime=5_299)).power_off is None


def test_an_expired_lease_ends_the_machine_when_it_is_empty_or_after_five_minutes() -> None:
    memory = leaving("lease")
    assert decided(memory, seen(DRAINED)).power_off == "because of lease"
    late = decided(memory, seen(DRAINING, uptime=5_300)).power_off
    assert late == "because of lease; jobs did not leave in time"


def test_a_missing_lease_tag_keeps_the_last_known_lease() -> None:
    memory = decided(JOINED, seen(expires=NOW + 10)).memory
    assert decided(memory, seen(now=NOW + 9)).drain is None
    assert decided(memory, seen(now=NOW + 10)).drain is not None


def test_a_renewed_lease_keeps_the_node() -> None:
    memory = decided(JOINED, seen(expires=NOW + 10)).memory
    assert decided(memory, seen(now=NOW + 11, expires=NOW + 600)).drain is None


def test_a_node_that_never_had_a_lease_stays() -> None:
    assert decided(JOINED, seen(now=NOW * 2)).memory.leaving is None


def test_an_idle_node_drains_only_while_no_slot_is_claimed() -> None:
    memory = decided(JOINED, seen(IDLE, uptime=1_000)).memory
    assert decided(memory, seen(IDLE, uptime=1_599)).drain is None
    decision = decided(memory, seen(IDLE, uptime=1_600))
    assert decision.drain == "idle for 10 minutes"
    assert decision.only_idle
    assert decision.power_off is None  # first it must take no more jobs
    assert decided(decision.memory, seen(DRAINED, uptime=1_602)).power_off == "idle for 10 minutes"


def test_a_job_that_comes_before_an_idle_node_drains_keeps_the_node() -> None:
    memory = replace(leaving("idle"), idle_since=1_000.0)
    decision = decided(memory, seen(BUSY))
    assert decision.memory.leaving is None
    assert decision.power_off is None
    assert decision.drain is None
    assert decision.memory.idle_since is None


def test_each_job_restarts_the_idle_time() -> None:
    memory = decided(JOINED, seen(IDLE, uptime=1_000)).memory
    memory = decided(memory, seen(BUSY, uptime=1_500)).memory
    memory = decided(memory, seen(IDLE, uptime=1_700)).memory
    assert decided(memory, seen(IDLE, uptime=2_299)).drain is None
    assert decided(memory, seen(IDLE, uptime=2_300)).drain is not None


def test_an_idle_node_stays_if_idle_minutes_is_0() -> None:
    memory = decided(JOINED, seen(IDLE, uptime=0), 0).memory
    assert decided(memory, seen(IDLE, uptime=1e9), 0).memory.leaving is None


def test_a_node_that_has_not_joined_yet_is_not_idle() -> None:
    memory = decided(Memory(), seen(None, in_collector=False, uptime=0)).memory
    assert decided(memory, seen(None, in_collector=False, uptime=1e6)).power_off is None


def test_a_node_with_an_unreachable_startd_ends_when_no_job_runs() -> None:
    memory = decided(JOINED, seen(None, uptime=0)).memory
    assert decided(memory, seen(None, uptime=600)).power_off == "idle for 10 minutes"
    working = decided(memory, seen(None, uptime=600, busy=True))
    assert working.power_off is None


def test_three_jobs_that_fail_within_a_minute_drain_the_node_and_are_named() -> None:
    decision = decided(JOINED, seen(failures=FAILURES))
    assert decision.drain == (
        "3 jobs failed here within 60 s: 0.0 (exit code 1), 1.0 (exit code 1), 2.0 (exit code 1)"
    )
    assert decided(decision.memory, seen(DRAINED, failures=FAILURES)).power_off is None


def test_a_node_with_failing_jobs_ends_after_its_idle_time() -> None:
    memory = replace(leaving("failures"), idle_since=1_000.0)
    off = decided(memory, seen(DRAINED, uptime=1_600, failures=FAILURES)).power_off
    assert off == "idle for 10 minutes; before that: because of failures"


def test_a_startd_that_was_restarted_drains_again() -> None:
    memory = decided(leaving("failures"), seen(DRAINED)).memory
    restarted = replace(IDLE, started=200)
    assert decided(memory, seen(restarted, failures=FAILURES)).drain == "because of failures"


def test_a_node_stays_after_a_person_cancels_its_drain() -> None:
    memory = decided(leaving("failures"), seen(DRAINED)).memory
    decision = decided(memory, seen(IDLE, failures=FAILURES))
    assert decision.drain is None
    assert decision.memory.leaving is None
    again = decided(decision.memory, seen(IDLE, failures=FAILURES, now=NOW + 60))
    assert again.drain is None  # earlier failures no longer count


@pytest.mark.parametrize("cause", ["interruption", "lease", "rebalance", "token"])
def test_a_node_that_must_end_drains_again_after_a_cancelled_drain(cause: str) -> None:
    memory = decided(leaving(cause), seen(DRAINED)).memory
    assert decided(memory, seen(IDLE)).drain == f"because of {cause}"


def test_a_stronger_cause_replaces_a_weaker_one_and_never_the_reverse() -> None:
    memory = decided(leaving("failures"), seen(DRAINED, expires=NOW - 1)).memory
    assert memory.leaving is not None
    assert memory.leaving.cause == "lease"
    after = decided(memory, seen(DRAINED, failures=FAILURES, rebalance="soon")).memory
    assert after.leaving is not None
    assert after.leaving.cause == "lease"


def test_the_dead_mans_switch_is_cancelled_once_the_startd_is_in_the_collector() -> None:
    for early in (seen(None), seen(IDLE, in_collector=False)):
        assert not decided(Memory(), early).cancel_switch
        assert not decided(Memory(), early).memory.joined
    decision = decided(Memory(), seen(IDLE))
    assert decision.cancel_switch
    assert not decided(decision.memory, seen(IDLE)).cancel_switch


def test_a_node_drained_by_others_ends_after_its_idle_time() -> None:
    memory = decided(JOINED, seen(DRAINED, uptime=0)).memory
    decision = decided(memory, seen(DRAINED, uptime=600))
    assert decision.drain is None
    assert decision.power_off == "idle for 10 minutes"


startds = st.one_of(
    st.none(),
    st.builds(
        Startd,
        held=st.integers(0, 2),
        draining=st.sampled_from([None, "why"]),
        started=st.sampled_from([100.0, 200.0]),
    ),
)
memories = st.builds(
    Memory,
    joined=st.booleans(),
    expires=st.sampled_from([None, NOW - 1, NOW + 1]),
    idle_since=st.sampled_from([None, 0.0, 4_999.0]),
    leaving=st.one_of(
        st.none(),
        st.builds(
            Departure,
            cause=st.sampled_from(CAUSES),
            reason=st.just("why"),
            since=st.sampled_from([0.0, 4_999.0]),
            drained=st.sampled_from([0.0, 100.0]),
        ),
    ),
)


@given(memories, startds, st.booleans(), st.booleans())
def test_only_a_long_expired_lease_cuts_off_a_job(
    memory: Memory, startd: Startd | None, notice: bool, starter: bool
) -> None:
    busy = starter if startd is None else startd.held > 0
    sight = seen(startd, busy=busy, failures=FAILURES, rebalance="soon" if notice else None)
    decision = decided(memory, sight)
    if not decision.power_off:
        return
    leaving = decision.memory.leaving
    assert leaving is not None
    if leaving.cause == "lease" and sight.uptime - leaving.since >= LEASE_GRACE:
        return
    assert not busy
    if startd is not None:
        assert startd.draining is not None  # no job can come between the look and the end


@example(leaving("lease", since=0.0), Startd(held=0, draining=None, started=100.0))
@given(memories, startds)
def test_a_long_expired_lease_ends_the_node_in_any_state(
    memory: Memory, startd: Startd | None
) -> None:
    over = replace(memory, leaving=Departure("lease", "why", 0.0))
    assert decided(over, seen(startd, uptime=LEASE_GRACE)).power_off


def test_each_event_is_reported_once() -> None:
    before, after = Memory(), leaving("lease")
    assert changes(before, replace(after, expires=0.0)) == [
        "the node has joined the pool",
        "the lease ends at 1970-01-01T00:00:00Z",
        "the node leaves the pool (lease): because of lease",
    ]
    assert changes(after, after) == []
    assert changes(leaving("idle"), JOINED) == ["the node no longer leaves the pool (idle)"]


SICK = replace(BUSY, sick=("GPU-1",))


def test_sick_gpus_go_offline_once_and_come_back_when_healthy() -> None:
    first = decided(JOINED, seen(SICK))
    assert first.offline == ("GPU-1",)
    again = decided(first.memory, seen(SICK))
    assert again.offline is None
    assert decided(again.memory, seen(replace(SICK, sick=()))).offline == ()
    assert decided(JOINED, seen(replace(SICK, sick=()))).offline is None


def test_a_probe_without_a_healthy_gpu_changes_no_gpu() -> None:
    offline = replace(JOINED, offline=("GPU-1",))
    for startd in (BUSY, None):
        decision = decided(offline, seen(startd))
        assert decision.offline is None
        assert decision.memory.offline == ("GPU-1",)


def test_sick_gpus_are_logged() -> None:
    after = decided(JOINED, seen(SICK)).memory
    assert changes(JOINED, after) == ["sick GPUs: GPU-1"]
    assert changes(after, JOINED) == ["sick GPUs: none now"]
