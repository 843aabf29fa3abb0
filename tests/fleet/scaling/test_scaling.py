from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.mock_aws.nodes_at_hand import (
    LIMITS,
    NOW,
    ONE_GPU,
    ROOM,
    ago,
    dynamic_ad,
    joined,
    launched,
    slot_ad,
)
from trialfleet.infra.fleet.htcondor.demand import Demand, Group
from trialfleet.infra.fleet.scaling.packing import least_new, pack
from trialfleet.infra.fleet.scaling.scaling_decision import (
    GONE,
    LEAVING,
    OPEN,
    Decision,
    Node,
    decide,
    decide_downscale,
    phase,
    unmatched_trials,
)
from trialfleet.infra.fleet.spec.limits import Limits
from trialfleet.infra.pool.machines import Resources, parse_machines

NOTHING = Demand()


def waiting(jobs: int, need: Resources = ONE_GPU) -> Demand:
    return Demand(idle=(Group(need=need, jobs=jobs),))


def ids(removals: Sequence[object]) -> list[str]:
    return [removal.instance for removal in removals]  # type: ignore[attr-defined]


def test_nodes_are_asked_for_at_once_and_no_more_than_needed() -> None:
    assert decide(waiting(3), [], LIMITS, NOW).launch == 3
    assert decide(waiting(3), [launched("i-1")], LIMITS, NOW).launch == 2
    four_gpus = replace(LIMITS, room=Resources(gpus=4, cpus=16, memory_mb=60_000))
    assert decide(waiting(9), [], four_gpus, NOW).launch == 3
    memory = waiting(8, Resources(gpus=1, cpus=1, memory_mb=30_000))
    assert decide(memory, [], four_gpus, NOW).launch == 4


def test_small_trials_fill_what_large_ones_leave_of_new_nodes() -> None:
    four_gpus = replace(LIMITS, room=Resources(gpus=4, cpus=16, memory_mb=60_000))
    three = Group(need=replace(ONE_GPU, gpus=3), jobs=2)
    assert decide(Demand(idle=(Group(need=ONE_GPU, jobs=2), three)), [], four_gpus, NOW).launch == 2


def test_trials_that_wait_long_despite_a_free_node_do_not_match_it() -> None:
    def group(minutes: float, need: Resources = ONE_GPU) -> Demand:
        return Demand(idle=(Group(need=need, jobs=2, since=ago(minutes)),))

    free = joined(idle=5)
    assert unmatched_trials(group(5), [free], LIMITS, NOW) == [(group(5).idle[0], free)]
    assert unmatched_trials(group(4.9), [free], LIMITS, NOW) == []
    assert unmatched_trials(group(5), [joined(idle=4.9)], LIMITS, NOW) == []
    assert unmatched_trials(group(5), [joined(idle=None)], LIMITS, NOW) == []
    assert unmatched_trials(group(5, replace(ONE_GPU, gpus=2)), [free], LIMITS, NOW) == []


def test_a_trial_that_no_node_can_hold_is_reported_and_makes_no_node() -> None:
    decision = decide(waiting(2, Resources(gpus=8, cpus=1, memory_mb=1)), [], LIMITS, NOW)
    assert decision.launch == 0
    (reason,) = decision.reasons
    assert reason == (
        "2 trial(s) ask for more than a node has, e.g. 8 GPUs, 1 cpu, 1 MB; a new node has"
        " 1 GPU, 4 cpus, 15000 MB: choose larger instance types, or request less"
    )


def test_the_caps_hold_back_nodes_and_say_so() -> None:
    at_most = decide(waiting(9), [], LIMITS, NOW)
    assert (at_most.launch, at_most.reasons) == (
        8,
        ("1 more nodes would be useful: the fleet has at most 8 nodes",),
    )
    by_hour = decide(waiting(9), [joined(idle=None)], replace(LIMITS, hour_cap=1.6), NOW)
    assert (by_hour.launch, by_hour.reasons) == (
        2,
        ("7 more nodes would be useful: the cap is $1.60 per hour, and the nodes cost $0.50",),
    )
    by_run = decide(waiting(9), [], replace(LIMITS, run_cap=10, spent=9.5), NOW)
    assert by_run.launch == 3  # the rest pays three nodes for the 20 minutes of a boot
    beside = decide(waiting(9), [joined(idle=None)], replace(LIMITS, run_cap=10, spent=9.5), NOW)
    assert beside.launch == 2  # the one that is there is paid for as well
    paused = decide(waiting(1), [], replace(LIMITS, paused="AWS has none"), NOW)
    assert (paused.launch, paused.reasons) == (0, ("1 more nodes would be useful: AWS has none",))


def test_a_node_idle_for_long_is_drained_then_terminated() -> None:
    young, old = joined("i-young", idle=9.9), joined("i-old", idle=10)
    decision = decide(NOTHING, [young, old, joined("i-busy", idle=None)], LIMITS, NOW)
    assert ids(decision.drain) == ["i-old"]
    assert decision.drain[0].reason == "idle for 10 minutes"
    assert decision.drain[0].only_idle
    reason = "trialfleet: idle for 10 minutes"
    drained = joined("i-old", idle=0, draining=True, drain_reason=reason)
    ended = decide(NOTHING, [drained], LIMITS, NOW)
    assert ids(ended.terminate) == ["i-old"]
    assert ended.terminate[0].reason == "it is drained: idle for 10 minutes"
    leaving = joined("i-old", idle=None, draining=True)
    assert decide(NOTHING, [leaving], LIMITS, NOW) == Decision()


def test_a_node_drained_by_others_is_kept_for_a_while() -> None:
    reason = "3 jobs failed here within 60 s"
    for idle, phase_then in ((0, "withdrawn"), (9.9, "withdrawn"), (10, "drained")):
        node = joined(idle=idle, draining=True, drain_reason=reason)
        assert phase(node, LIMITS, NOW) == phase_then
        decision = decide(waiting(1), [node], LIMITS, NOW)
        assert (decision.launch, len(decision.terminate)) == (1, int(phase_then == "drained"))


def test_an_idle_node_that_a_waiting_trial_fits_is_kept() -> None:
    nodes = [joined("i-cheap", idle=60), joined("i-dear", idle=60, price=2.0)]
    assert ids(decide(waiting(1), nodes, LIMITS, NOW).drain) == ["i-dear"]
    assert decide(waiting(2), nodes, LIMITS, NOW) == Decision()


def test_the_minimum_is_kept_and_the_dearest_go_first() -> None:
    nodes = [joined(f"i-{n}", idle=60, price=0.1 * n) for n in range(5)]
    assert ids(decide(NOTHING, nodes, replace(LIMITS, min_nodes=3), NOW).drain) == ["i-4", "i-3"]
    assert decide(NOTHING, [], replace(LIMITS, min_nodes=3), NOW).launch == 3


def test_a_node_whose_gpu_failed_its_probe_is_replaced_and_drained() -> None:
    sick = joined(idle=10, healthy=False, reason="2 uncorrected ECC errors")
    decision = decide(waiting(1), [sick], LIMITS, NOW)
    assert decision.launch == 1
    assert decision.drain[0].reason == "its GPU failed the probe: 2 uncorrected ECC errors"


def test_a_node_that_does_not_join_or_becomes_unreachable_is_ended() -> None:
    late, coming = launched("i-late", 20), launched("i-coming", 19)
    lost = launched("i-lost", 60, seen=ago(5))
    silent = launched("i-silent", 60, seen=ago(4))
    stopped = launched("i-stopped", 60, state="stopped")
    decision = decide(NOTHING, [late, coming, lost, silent, stopped], LIMITS, NOW)
    assert {removal.instance: removal.reason for removal in decision.terminate} == {
        "i-late": "it has not joined within 20 minutes of its launch",
        "i-lost": "the pool has not seen it for 5 minutes",
        "i-stopped": "it is stopped",
    }


def test_a_run_at_its_cap_drains_joined_nodes_and_terminates_coming_ones() -> None:
    nodes = [joined("i-busy", idle=None), joined("i-idle"), launched("i-coming")]
    spent = replace(LIMITS, run_cap=10, spent=10.2, min_nodes=2)
    decision = decide(waiting(5), nodes, spent, NOW)
    assert (decision.launch, ids(decision.drain)) == (0, ["i-idle", "i-busy"])
    assert ids(decision.terminate) == ["i-coming"]
    assert decision.reasons == ("the run's cap of $10.00 is reached: $10.20 is spent",)


def test_over_the_cap_per_hour_the_least_useful_nodes_go() -> None:
    nodes = [
        joined("i-busy", idle=None),
        joined("i-idle"),
        joined("i-sick", healthy=False),
        launched("i-coming"),
    ]
    order = ["i-sick", "i-coming", "i-idle", "i-busy"]
    for gone in range(5):
        decision = decide(waiting(9), nodes, replace(LIMITS, hour_cap=2 - gone * 0.5), NOW)
        assert decision.launch == 0
        assert {*ids(decision.drain), *ids(decision.terminate)} == {*order[:gone]}


def test_manual_downscaling_removes_the_least_useful_nodes() -> None:
    nodes = [joined("i-busy", idle=None), joined("i-idle"), launched("i-coming")]
    one = decide_downscale(1, nodes, LIMITS, NOW)
    assert (ids(one.drain), ids(one.terminate)) == (["i-idle"], ["i-coming"])
    assert ids(decide_downscale(0, nodes, LIMITS, NOW).drain) == ["i-idle", "i-busy"]
    assert decide_downscale(3, nodes, LIMITS, NOW) == Decision()


# --- Properties -----------------------------------------------------------------------------------

minutes = st.floats(0, 120)
rooms = st.builds(
    Resources, gpus=st.integers(0, 4), cpus=st.integers(1, 8), memory_mb=st.integers(1, 20_000)
)
demands = st.builds(
    Demand,
    idle=st.lists(st.builds(Group, need=rooms, jobs=st.integers(1, 20)), max_size=4).map(tuple),
)
caps = st.none() | st.floats(0.01, 20)
limits_ = st.builds(
    Limits,
    min_nodes=st.integers(0, 3),
    max_nodes=st.integers(3, 12),
    idle_minutes=st.floats(1, 60),
    boot_minutes=st.floats(1, 30),
    room=st.sampled_from([ROOM, Resources(gpus=4, cpus=16, memory_mb=60_000)]),
    price=st.floats(0.05, 5),
    hour_cap=caps,
    run_cap=caps,
    spent=st.floats(0, 10),
    paused=st.sampled_from(["", "AWS has none"]),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Node]:
    return [_drawn(draw, f"i-{n}") for n in range(draw(st.integers(0, 10)))]


def _drawn(draw: st.DrawFn, name: str) -> Node:
    price = draw(st.none() | st.floats(0.05, 5))
    if draw(st.booleans()):
        state = draw(st.sampled_from(["pending", "running", "running", "stopped"]))
        seen = draw(st.none() | minutes.map(ago))
        return launched(name, draw(minutes), state=state, price=price, seen=seen)
    return joined(
        name,
        idle=draw(st.none() | minutes),
        price=price,
        healthy=draw(st.sampled_from([True, True, False, None])),
        draining=draw(st.booleans()),
    )


def rate(nodes: Sequence[Node], limits: Limits) -> float:
    prices = [node.instance.price for node in nodes]
    return sum(limits.price if price is None else price for price in prices)


def left_after(nodes: Sequence[Node], decision: Decision) -> list[Node]:
    gone = {*ids(decision.drain), *ids(decision.terminate)}
    return [node for node in nodes if node.id not in gone]


@given(demands, fleets(), limits_)
def test_no_cap_is_ever_crossed_by_a_launch(
    demand: Demand, nodes: list[Node], limits: Limits
) -> None:
    launch = decide(demand, nodes, limits, NOW).launch
    assert launch >= 0
    if not launch:
        return
    assert not limits.paused
    assert len(nodes) + launch <= limits.max_nodes
    paid = [node for node in nodes if phase(node, limits, NOW) not in GONE]
    after = rate(paid, limits) + launch * limits.price
    if limits.hour_cap is not None:
        assert after <= limits.hour_cap + 1e-6
    if limits.run_cap is not None:
        assert limits.spent + after * limits.boot_minutes / 60 <= limits.run_cap + 1e-6


@given(demands, fleets(), limits_)
def test_no_running_trial_is_disturbed_unless_a_cap_is_exceeded(
    demand: Demand, nodes: list[Node], limits: Limits
) -> None:
    decision = decide(demand, nodes, limits, NOW)
    busy = {node.id for node in nodes if node.machine and node.machine.idle_since is None}
    assert busy.isdisjoint(ids(decision.terminate))
    staying = [node for node in nodes if phase(node, limits, NOW) not in LEAVING]
    over_hour = limits.hour_cap is not None and rate(staying, limits) > limits.hour_cap
    over_run = limits.run_cap is not None and limits.spent >= limits.run_cap
    if not over_hour and not over_run:
        assert busy.isdisjoint(ids(decision.drain))
        assert all(removal.only_idle for removal in decision.drain)


@given(demands, fleets(), limits_)
def test_only_nodes_idle_for_long_go_and_never_below_the_minimum(
    demand: Demand, nodes: list[Node], limits: Limits
) -> None:
    free = replace(limits, hour_cap=None, run_cap=None)
    decision = decide(demand, nodes, free, NOW)
    by_id = {node.id: node for node in nodes}
    for name in ids(decision.drain):
        machine = by_id[name].machine
        assert machine is not None
        assert machine.idle_since is not None
        assert (NOW - machine.idle_since).total_seconds() / 60 >= limits.idle_minutes
    before = sum(phase(node, limits, NOW) in OPEN for node in nodes)
    after = sum(phase(node, limits, NOW) in OPEN for node in left_after(nodes, decision))
    assert after >= min(before, limits.min_nodes)


@given(demands, fleets(), limits_, st.floats(0.01, 20))
def test_removals_bring_the_price_under_the_cap_per_hour(
    demand: Demand, nodes: list[Node], limits: Limits, cap: float
) -> None:
    capped = replace(limits, run_cap=None, hour_cap=cap)
    decision = decide(demand, nodes, capped, NOW)
    staying = [n for n in left_after(nodes, decision) if phase(n, capped, NOW) not in LEAVING]
    silent = [n for n in staying if phase(n, capped, NOW) == "silent"]
    assert rate(staying, capped) <= cap + 1e-6 or staying == silent


@given(demands, fleets(), limits_)
def test_a_decision_names_each_node_once_and_gives_a_reason(
    demand: Demand, nodes: list[Node], limits: Limits
) -> None:
    decision = decide(demand, nodes, limits, NOW)
    removals = [*decision.drain, *decision.terminate]
    assert len({*ids(removals)}) == len(removals)
    assert all(removal.reason and "\n" not in removal.reason for removal in removals)
    assert {node.id for node in nodes} >= {*ids(removals)}


@given(demands, fleets(), limits_)
def test_every_node_is_removed_after_the_money_is_spent(
    demand: Demand, nodes: list[Node], limits: Limits
) -> None:
    spent = replace(limits, run_cap=1.0, spent=1.0)
    decision = decide(demand, nodes, spent, NOW)
    assert decision.launch == 0
    for node in left_after(nodes, decision):
        assert phase(node, spent, NOW) in {"draining", "withdrawn", "silent"}


@given(st.integers(1, 40), rooms, st.integers(0, 5), st.integers(4, 8))
def test_trials_of_one_kind_get_exactly_the_nodes_that_they_fill(
    jobs: int, need: Resources, coming: int, gpus: int
) -> None:
    room = Resources(gpus=gpus, cpus=gpus * 4, memory_mb=gpus * 15_000)
    packing = pack([Group(need=need, jobs=jobs)], {f"i-{n}": room for n in range(coming)}, room)
    nodes = math.ceil(jobs / room.count_fitting(need))
    assert packing.new == max(0, nodes - coming)
    assert len(packing.used) == min(nodes, coming)


@given(demands, st.lists(rooms, max_size=5))
def test_every_trial_gets_room_or_is_reported_as_unfit(
    demand: Demand, free: list[Resources]
) -> None:
    packing = pack(demand.idle, {f"i-{n}": room for n, room in enumerate(free)}, ROOM)
    here = pack(demand.idle, {f"i-{n}": room for n, room in enumerate(free)}, Resources())
    homeless = sum(group.jobs for group in here.unfit)
    unfit = sum(group.jobs for group in packing.unfit)
    assert unfit <= homeless
    assert packing.new <= homeless - unfit
    assert (packing.new == 0) == (homeless == unfit)
    assert all(not ROOM.count_fitting(group.need) for group in packing.unfit)


def test_twenty_thousand_trials_wait_for_a_thousand_nodes() -> None:
    """Looked at one by one, with all the nodes that they could fill, they would take for ever."""
    limits = replace(LIMITS, max_nodes=1_000)
    demand = Demand(
        idle=tuple(
            Group(need=replace(ONE_GPU, memory_mb=4_000 + n), jobs=400, since=ago(9))
            for n in range(50)
        )
    )
    nodes = [joined(f"i-{n}", idle=None) for n in range(900)]
    decision = decide(demand, nodes, limits, NOW)
    assert decision.launch == 100
    assert decision.reasons == (
        "19900 more nodes would be useful: the fleet has at most 1000 nodes",
    )
    idle = [joined(f"i-{n}", idle=60) for n in range(1_000)]
    assert len(unmatched_trials(demand, idle, limits, NOW)) == 50


@given(st.integers(1, 12), st.lists(rooms, max_size=4), st.integers(1, 12))
def test_least_new_is_the_smallest_useful_number_of_new_nodes(
    jobs: int, free: list[Resources], most: int
) -> None:
    waiting = [
        Group(need=ONE_GPU, jobs=jobs, least=max(1, jobs - 1)),
        Group(need=replace(ONE_GPU, cpus=2), jobs=3, least=3),
    ]
    here = {f"i-{n}": room for n, room in enumerate(free)}
    tried = [pack(waiting, here, ROOM, few).new for few in range(1, most + 1)]
    assert least_new(waiting, here, ROOM, most) == next(filter(None, tried), 0)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_manual_downscaling_keeps_the_requested_number_of_nodes(count: int) -> None:
    nodes = [joined(f"i-{n}", idle=None if n % 2 else 3.0) for n in range(5)]
    assert len(left_after(nodes, decide_downscale(count, nodes, LIMITS, NOW))) == count


def test_idle_nodes_that_only_keep_common_files_are_drained() -> None:
    """Two jobs run on two of five nodes, each of which has files that the five's jobs shared."""
    long_ago = int(ago(LIMITS.idle_minutes).timestamp())
    ads = []
    for name in ("i-1", "i-2", "i-3", "i-4", "i-5"):
        runs = name in {"i-1", "i-2"}
        ads += [slot_ad(name, NumDynamicSlots=1 + runs, NumDynamicSlotsTime=long_ago)]
        files: dict[str, Any] = {"State": "Claimed", "Activity": "Busy", "IsDataSlot": True}
        ads += [dynamic_ad(name, Name=f"data1_1@{name}", **files)]
        ads += [dynamic_ad(name, Name=f"slot1_2@{name}", State="Claimed")] if runs else []
    nodes = [replace(joined(one.instance), machine=one) for one in parse_machines(ads)]
    assert ids(decide(NOTHING, nodes, LIMITS, NOW).drain) == ["i-3", "i-4", "i-5"]
    assert decide(NOTHING, nodes, LIMITS, ago(0.1)).drain == ()


def test_a_node_without_a_gpu_is_fit_for_trials_in_a_fleet_that_also_has_gpu_types() -> None:
    plain: dict[str, Any] = {
        "instance_type": "c5.xlarge",
        "total": Resources(cpus=4),
        "healthy": False,
    }
    assert phase(joined(**plain), LIMITS, NOW) == "idle"
    assert phase(joined(**plain | {"instance_type": "g5.xlarge"}), LIMITS, NOW) == "sick"
