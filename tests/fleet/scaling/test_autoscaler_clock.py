"""Changes of the manager's clock while a fleet works: they cost no node, trial or money."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fleet.mock_aws.small_world import World, world
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler, Step

FLEET = {"idle_minutes": 5, "lease_minutes": 60, "price_cap": {"run": 10}}


def steps(here: World, scaler: Autoscaler, minutes: float) -> list[Step]:
    """Run the steps of this number of minutes."""
    found = []
    for _ in range(round(minutes * 6)):
        here.later(minutes=1 / 6)
        found.append(scaler.step())
    return found


def start_two_nodes(here: World) -> Autoscaler:
    """Return an autoscaler with a node that trains and one that is free."""
    scaler = here.autoscaler("r1")
    here.waiting = 2
    scaler.step()
    here.waiting = 0
    busy, _ = here.join()
    here.change(busy, idle_since=None)
    steps(here, scaler, 1)
    return scaler


def idles(here: World) -> None:
    """Tell the collector of the free node, by the collector's own clock."""
    for name, node in here.pool.items():
        if node.idle_since:
            here.change(name, idle_since=here.now)


@pytest.mark.parametrize("wrong", [-60.0, -3.0, 2.0, 20.0, 60.0, 24 * 60.0])
def test_a_clock_that_is_set_costs_no_node_and_no_trial(wrong: float) -> None:
    with world(**FLEET) as here:
        scaler = start_two_nodes(here)
        pool = dict(here.pool)
        here.set_clock(minutes=wrong)
        here.pool.clear()  # the collector has forgotten all ads, which had grown old at once
        done = steps(here, scaler, 0.3)
        here.pool.update(pool)
        done += steps(here, scaler, 0.2)
        here.set_clock(minutes=-wrong)
        done += steps(here, scaler, 2.5)
        assert [step for step in done if step.launched or step.drained or step.terminated] == []
        assert here.stops == []
        assert len(here.living()) == 2
        assert done[-1].nodes == {"busy": 1, "idle": 1}
        assert done[-1].spent < 0.2


@pytest.mark.parametrize("wrong", [-60.0, 60.0])
def test_a_clock_that_stays_changed_is_used_after_a_while(wrong: float) -> None:
    with world(**FLEET) as here:
        scaler = start_two_nodes(here)
        here.set_clock(minutes=wrong)
        (first, *_) = steps(here, scaler, 2)
        assert first.nodes == {}
        assert first.notes == ("this machine's clock was set: no scaling for 120 s",)
        idles(here)
        assert steps(here, scaler, 0.5)[-1].nodes == {"busy": 1, "idle": 1}
        idle = next(name for name, node in here.pool.items() if node.idle_since)
        gone = {removal.instance for step in steps(here, scaler, 5) for removal in step.drained}
        assert gone == {idle}


@pytest.mark.parametrize("wrong", [-60.0, 60.0])
def test_leases_are_renewed_by_the_previous_time_after_a_clock_change(wrong: float) -> None:
    with world(**FLEET) as here:
        scaler = start_two_nodes(here)
        here.later(minutes=30)
        right = here.now
        here.set_clock(minutes=wrong)
        steps(here, scaler, 1)
        for instance in here.living():
            assert instance.expires is not None
            left = instance.expires - right
            assert timedelta(minutes=59) < left < timedelta(minutes=62)
