"""Nodes for gangs: enough for one to begin, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.mock_aws.moto_account import HOME, candidate, fleet
from tests.fleet.mock_aws.nodes_at_hand import (
    LIMITS,
    NOW,
    ONE_GPU,
    ROOM,
    ago,
    job_ad,
    joined,
    launched,
)
from tests.fleet.mock_aws.small_world import world
from trialfleet.infra.fleet.htcondor.demand import Demand, Group, PoolView, read_demand
from trialfleet.infra.fleet.scaling.packing import least_new, pack
from trialfleet.infra.fleet.scaling.scaling_decision import decide, unmatched_trials
from trialfleet.infra.fleet.scaling.suitable_types import GangNeed, gang_price

TWO_GPUS = replace(ROOM, gpus=2)


def gang(least: int, jobs: int, minutes: float = 1) -> Group:
    return Group(need=ONE_GPU, jobs=jobs, least=least, since=ago(minutes))


def waiting(*groups: Group) -> Demand:
    return Demand(idle=groups)


def jobs_of(cluster: int, *statuses: int, least: int = 3) -> list[dict[str, Any]]:
    return [
        job_ad(f"{cluster}.{proc}", ClusterId=cluster, JobStatus=status, TrialfleetGangMin=least)
        for proc, status in enumerate(statuses)
    ]


# --- What the queue says --------------------------------------------------------------------------


def test_a_waiting_gang_needs_its_minimum_and_a_training_one_any_number() -> None:
    whole, begun, short = (
        read_demand(jobs_of(7, 1, 1, 1, 1)),
        read_demand(jobs_of(7, 2, 2, 2, 1)),
        read_demand(jobs_of(7, 2, 1, 1, 1)),
    )
    assert [(group.jobs, group.least) for group in whole.idle] == [(4, 3)]
    assert [(group.jobs, group.least) for group in begun.idle] == [(1, 1)]
    assert [(group.jobs, group.least) for group in short.idle] == [(3, 2)]
    assert begun.running_trials == 3


def test_each_gang_is_one_group_and_other_trials_form_another() -> None:
    alone = [job_ad(f"{n}.0", ClusterId=n, JobStatus=1) for n in (1, 2)]
    gangs = [*jobs_of(9, 1, 1, 1, 1, least=4), *jobs_of(8, 1, 1, 1, least=2)]
    found = read_demand([*gangs, *alone]).idle
    assert [(group.jobs, group.least) for group in found] == [(2, 1), (3, 2), (4, 4)]


# --- Up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "launch", "least"), [(2, 0, 1), (3, 3, 3), (4, 4, 3), (8, 4, 3)])
def test_fewer_nodes_than_a_gang_begins_with_are_never_asked_for(
    most: int, launch: int, least: int
) -> None:
    decision = decide(waiting(gang(3, 4)), [], replace(LIMITS, max_nodes=most), NOW)
    assert (decision.launch, decision.least) == (launch, least)
    if launch < 4:
        assert decision.reasons == (
            f"{4 - launch} more nodes would be useful: the fleet has at most {most} nodes",
        )


def test_a_second_gang_gets_no_nodes_on_which_it_could_not_begin() -> None:
    decision = decide(waiting(gang(3, 3), gang(3, 3)), [], replace(LIMITS, max_nodes=5), NOW)
    assert (decision.launch, decision.least) == (3, 3)


def test_existing_and_coming_nodes_and_their_slots_count_for_a_gang() -> None:
    there = [joined("i-1"), launched("i-2")]
    assert decide(waiting(gang(3, 3)), there, LIMITS, NOW).launch == 1
    two = replace(LIMITS, room=TWO_GPUS, max_nodes=2)
    assert decide(waiting(gang(4, 4)), [], two, NOW).launch == 2
    assert decide(waiting(gang(4, 4)), [], replace(two, max_nodes=1), NOW).launch == 0


def test_training_gangs_and_single_trials_get_a_launch_of_any_size() -> None:
    few = replace(LIMITS, max_nodes=3)
    trains = [joined(name, idle=None) for name in ("i-1", "i-2")]
    more = decide(waiting(gang(1, 4)), trains, few, NOW)
    assert (more.launch, more.least) == (1, 1)
    alone = Group(need=replace(ONE_GPU, cpus=2), jobs=1)
    beside = decide(waiting(gang(3, 3), alone), trains, few, NOW)
    assert (beside.launch, beside.least) == (1, 1)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=5),
    st.integers(0, 3),
    st.integers(0, 12),
)
def test_each_packed_gang_has_enough_slots_to_begin(
    sizes: list[tuple[int, int]], free: int, most: int
) -> None:
    groups = [gang(least, least + more) for least, more in sizes]
    rooms = {f"i-{n}": ROOM for n in range(free)}
    packing = pack(groups, rooms, ROOM, most)
    slots = len(packing.used) + packing.new
    assert packing.new <= most
    assert slots == 0 or slots >= min(group.least for group in groups)
    few = least_new(groups, rooms, ROOM, packing.new)
    assert few <= packing.new
    assert pack(groups, rooms, ROOM, few).new == few
    if few:
        assert pack(groups, rooms, ROOM, few - 1).new == 0


# --- Down -----------------------------------------------------------------------------------------


def test_a_node_of_a_gang_that_trains_stays_while_idle_ones_go() -> None:
    trains = [joined(name, idle=None, price=0.9) for name in ("i-1", "i-2")]
    decision = decide(Demand(), [*trains, joined("i-3", idle=30)], LIMITS, NOW)
    assert [removal.instance for removal in decision.drain] == ["i-3"]
    assert decision.terminate == ()


def test_idle_nodes_wait_for_a_gangs_other_nodes_unless_launches_are_paused() -> None:
    idle = [joined(name, idle=30) for name in ("i-1", "i-2")]
    assert decide(waiting(gang(3, 3)), idle, LIMITS, NOW).drain == ()
    held = replace(LIMITS, paused="AWS launched 0 of 1 nodes")
    going = decide(waiting(gang(3, 3)), idle, held, NOW)
    assert {removal.instance for removal in going.drain} == {"i-1", "i-2"}
    assert going.launch == 0


def test_a_gang_with_too_few_free_nodes_is_not_unmatched() -> None:
    idle = [joined(name, idle=30) for name in ("i-1", "i-2")]
    assert unmatched_trials(waiting(gang(3, 3, 30)), idle, LIMITS, NOW) == []
    assert unmatched_trials(waiting(gang(2, 3, 30)), idle, LIMITS, NOW)


# --- With AWS -------------------------------------------------------------------------------------


def ask(demand: Demand) -> Callable[[], PoolView]:
    return lambda: PoolView(nodes=(), demand=demand)


def test_a_zone_that_has_too_few_for_a_gang_gives_none_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world(zones=[], gangs={}, nodes={"max": 4}) as here:
        here.candidates = [candidate(HOME + "a"), candidate(HOME + "b")]
        here.account.capacity.lack(HOME + "a", room=2)
        monkeypatch.setattr(here, "_look", ask(waiting(gang(3, 4))))
        step = here.autoscaler("r1").step()
        assert len(step.launched) >= 3
        assert {one.zone for one in here.living()} == {HOME + "b"}
        [request] = here.account.capacity.requests
        assert request["SpotOptions"]["MinTargetCapacity"] == 3
        assert request["TargetCapacitySpecification"]["TotalTargetCapacity"] == 4


@pytest.mark.parametrize("group", [Group(need=replace(ONE_GPU, gpus=4), jobs=1), gang(4, 4)])
def test_types_too_small_for_the_waiting_jobs_are_skipped(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(gangs={} if group.least > 1 else None, nodes={"max": 1}) as here:
        small, large = candidate(price=0.4), candidate(name="g5.12xlarge", price=3.0)
        kind = replace(large.type, gpus=4, vcpus=48, memory_mb=196_608)
        here.candidates = [small, replace(large, type=kind)]
        monkeypatch.setattr(here, "_look", ask(waiting(group)))
        step = here.autoscaler("r1").step()
        assert (len(step.launched), step.notes) == (1, ())
        assert {one.type for one in here.living()} == {"g5.12xlarge"}


def test_a_run_ends_if_its_money_pays_for_too_few_nodes_for_a_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world(gangs={}, nodes={"max": 4}, price_cap={"run": 0.25}) as here:
        monkeypatch.setattr(here, "_look", ask(waiting(gang(2, 3))))  # a node costs $0.13 to boot
        step = here.autoscaler("r1").step()
        assert (step.launched, here.stops) == ((), [("r1", here.stops[0][1])])
        assert step.stopped == (
            "no money is left: $0.25 of the run's cap of $0.25 is left, less than the 2 new nodes "
            "with which a gang begins cost until they can train ($0.80 per hour for 20 minutes)"
        )
        large = candidate(name="g5.12xlarge", price=0.7)  # one holds the gang
        kind = replace(large.type, gpus=4, vcpus=48, memory_mb=196_608)
        here.candidates = [candidate(), replace(large, type=kind)]
        assert len(here.autoscaler("r1").step().launched) == 1
        assert {one.type for one in here.living()} == {"g5.12xlarge"}
        assert len(here.stops) == 1


def test_a_training_gang_or_a_single_trial_needs_money_for_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Group(need=replace(ONE_GPU, cpus=2), jobs=1)
    for groups in ([gang(1, 3)], [gang(2, 2), alone]):
        with world(gangs={}, nodes={"max": 4}, price_cap={"run": 0.25}) as here:
            monkeypatch.setattr(here, "_look", ask(waiting(*groups)))
            assert len(here.autoscaler("r1").step().launched) == 1


@pytest.mark.parametrize("changes", [{"nodes": {"max": 1}}, {"price_cap": {"hour": 3.5}}])
def test_the_price_of_a_gang_is_that_of_the_first_type_on_which_it_can_begin(
    changes: dict[str, Any],
) -> None:
    small, large = candidate(price=1.0), candidate(name="g5.12xlarge", price=3.0)
    kind = replace(large.type, gpus=4, vcpus=48, memory_mb=196_608)
    need = GangNeed(min=4, max=4, need=ONE_GPU)
    price = gang_price(fleet(**changes), need, [small, replace(large, type=kind)])
    assert (price.min_nodes, price.max_nodes, price.min_per_hour) == (1, 1, 3.0)
    assert price.type == "g5.12xlarge spot"
