"""Limits of a run's money: what the cap still pays for, and what ends at the cap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fleet.mock_aws.moto_account import candidate
from tests.fleet.mock_aws.nodes_at_hand import ONE_GPU
from tests.fleet.mock_aws.small_world import World, world
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler
from trialfleet.infra.fleet.scaling.price_cap_stop import required_stop
from trialfleet.infra.fleet.spec.limits import NO_MONEY, Limits


def limits(spent: float, cap: float | None = 10.0, reserve: float = 0.2) -> Limits:
    """Return limits of a fleet whose nodes cost 0.60 USD an hour, and 0.20 until they are used."""
    return Limits(
        min_nodes=0,
        max_nodes=4,
        idle_minutes=10,
        boot_minutes=20,
        room=ONE_GPU,
        price=0.6,
        run_cap=cap,
        reserve=reserve,
        spent=spent,
    )


def finals_end(*of: float, nodes: int = 1, needed: int = 1, **more: float) -> list[bool | None]:
    found = [required_stop(limits(spent, **more), nodes, needed) for spent in of]
    return [one.finals if one else None for one in found]


def test_trials_end_at_their_share_and_full_trainings_at_the_cap() -> None:
    assert finals_end(0, 7.99, 8.0, 9.99, 10.0, 12.0) == [None, None, False, False, True, True]
    assert finals_end(9.99, 10.0, reserve=0.0) == [None, True]


def test_without_a_cap_nothing_ends() -> None:
    assert required_stop(limits(1e6, cap=None), 0, needed=1) is None


def test_money_that_is_too_little_for_a_useful_node_counts_as_spent() -> None:
    assert finals_end(9.79, 9.81, nodes=0) == [False, True]
    assert finals_end(9.81, nodes=1) == [False]  # it continues until the cap
    assert finals_end(9.81, nodes=0, needed=0) == [False]
    assert finals_end(0.0, nodes=0, cap=0.19) == [True]


KEPT = "trials have spent $8.00; $2.00 of the run's cap of $10.00 is kept for the full trainings"
TOO_LITTLE = (
    "$0.10 of the run's cap of $10.00 is left, less than a new node costs until it can train "
    "($0.60 per hour for 20 minutes)"
)


@pytest.mark.parametrize(
    ("spent", "nodes", "reason"),
    [
        (8, 1, KEPT),
        (11, 1, "the run's cap of $10.00 is reached: $11.00 is spent"),
        (9.9, 0, TOO_LITTLE),
    ],
)
def test_the_reason_says_what_is_spent(spent: float, nodes: int, reason: str) -> None:
    found = required_stop(limits(spent), nodes, needed=1)
    assert found
    assert found.reason == NO_MONEY + reason


# --- The autoscaler -------------------------------------------------------------------------------


def launch_busy_node(here: World, run: str = "r1") -> Autoscaler:
    """Let a trial of a run have a node."""
    scaler = here.autoscaler(run)
    here.waiting = 1
    scaler.step()
    here.join(idle=None)
    here.waiting = 0
    return scaler


def ended(here: World) -> list[tuple[str, bool]]:
    return [(run, one.finals) for run, one in here.stops]


def test_trials_end_at_their_share_and_nodes_are_kept_for_full_trainings() -> None:
    with world(price_cap={"run": 1.0}) as here:
        scaler = launch_busy_node(here)
        here.waiting = 3
        here.later(minutes=121)  # at 0.40 per hour
        step = scaler.step()
        assert ended(here) == [("r1", False)]
        assert (step.ended, step.launched, step.drained) == (3, (), ())
        assert step.stopped.startswith(NO_MONEY + "trials have spent $0.8")
        assert here.messages[-1] == f"removed 3 job(s): {step.stopped}"
        here.waiting = 1  # a region's full training
        (name,) = here.pool
        here.change(name, idle_since=here.now)
        assert scaler.step().launched == ()
        here.change(name, idle_since=None)
        assert len(here.living()) == 1


def test_full_trainings_get_nodes_of_the_reserve() -> None:
    with world(price_cap={"run": 1.0, "reserve": 0.5}) as here:
        scaler = launch_busy_node(here)
        here.later(minutes=80)
        assert scaler.step().stopped
        scaler.step()
        here.waiting, here.finals = 1, True
        assert len(scaler.step().launched) == 1
        assert {one.finals for _, one in here.stops} == {False}


def test_at_the_cap_all_of_the_run_ends_and_its_nodes_go() -> None:
    with world(price_cap={"run": 1.0}) as here:
        scaler = launch_busy_node(here)
        here.waiting = 3
        here.later(minutes=151)
        step = scaler.step()
        assert ended(here) == [("r1", True)]
        assert (step.ended, len(step.drained)) == (3, 1)
        assert f"the run's cap of $1.00 is reached: ${step.spent:.2f} is spent" in step.stopped


def test_a_run_without_money_for_any_node_ends() -> None:
    with world(price_cap={"run": 0.1}) as here:
        here.waiting = 2
        step = here.autoscaler("r1").step()
        assert (step.launched, ended(here)) == ((), [("r1", True)])


@pytest.mark.parametrize("cap", [{"run": 0.1}, {"hour": 0.9}])
def test_a_cheaper_candidate_is_taken_if_the_cap_does_not_pay_for_the_best(
    cap: dict[str, float],
) -> None:
    with world(price_cap=cap) as here:
        best, cheap = candidate(price=0.35), candidate(name="g4dn.xlarge", price=0.2)
        here.candidates = [best, replace(cheap, type=replace(cheap.type, gpu="T4"))]
        here.waiting = 4
        scaler = here.autoscaler("r1")
        for _ in range(4):
            scaler.step()
        assert not here.stops
        # $0.10 pay for 20 minutes at $0.30 per hour.
        prices = [0.2] if "run" in cap else [0.2, 0.35, 0.35]
        assert sorted(one.price or 0.0 for one in here.living()) == prices


def test_an_unaffordable_on_demand_share_does_not_hold_back_spot() -> None:
    with world(price_cap={"run": 0.1}, spot={"share": 0.5}) as here:
        here.candidates = [candidate(price=0.1), candidate(price=0.6, lifecycle="on-demand")]
        here.waiting = 1
        assert len(here.autoscaler("r1").step().launched) == 1


def test_a_graph_that_waits_for_an_unaffordable_node_ends() -> None:
    with world(price_cap={"run": 0.1}) as here:
        assert here.autoscaler("r1").step(least=1).stopped
        assert not here.autoscaler("r1").step().stopped


def test_an_autoscaler_without_a_run_ends_no_trials() -> None:
    with world(price_cap={"run": 1.0}) as here:
        scaler = launch_busy_node(here, run="")
        here.waiting = 3
        here.later(minutes=151)
        assert len(scaler.step().drained) == 1
        assert here.stops == []


@pytest.mark.parametrize("minutes", [121, 151])
def test_a_queue_that_does_not_answer_is_reported_and_asked_again(minutes: int) -> None:
    with world(price_cap={"run": 1.0}) as here:
        scaler = launch_busy_node(here)
        here.waiting = 3
        here.later(minutes=minutes)
        here.ends = False
        step = scaler.step()
        assert step.notes[0] == "the schedd does not answer"
        assert (step.launched, step.ended) == ((), 0)
        here.ends = True
        assert scaler.step().ended == 3
