"""`up` and `down` killed between any two of their calls, and run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.fleet.mock_aws.moto_account import (
    AWAY,
    HOME,
    IMAGE,
    Account,
    account,
    candidate,
    fleet,
    inputs,
    manager_instance,
)
from tests.fleet.mock_aws.moto_faults import Faults, kills
from trialfleet.infra.fleet.lifecycle import down, up

FLEET = fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE}, key_pair="k")
FULL = HOME + "a"  # this zone has no capacity, so that the fallback is killed in its middle too
each_call = pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.thorough)])
CANDIDATES = [candidate(FULL), candidate(AWAY + "b"), candidate(HOME + "b")]


@dataclass
class Scene:
    """An account with the manager's instance in it."""

    cloud: Account
    given: up.NodeInputs

    def up(self) -> None:
        up.up(self.cloud.aws, FLEET, self.given, CANDIDATES, 3)

    def down(self) -> list[str]:
        return down.down(self.cloud.aws, FLEET, lambda _: None)

    @property
    def faults(self) -> Faults:
        return self.cloud.faults

    @property
    def holdings(self) -> list[str]:
        return self.cloud.holdings()


@contextmanager
def new_scene() -> Iterator[Scene]:
    with account() as cloud:
        cloud.capacity.lack(FULL)
        cloud.capacity.lack(HOME + "b", room=1)
        yield Scene(cloud, inputs(own=manager_instance(cloud)))


def bare_and_raised() -> tuple[list[str], list[str]]:
    """Return what an account holds without the fleet, and with it."""
    with new_scene() as scene:
        bare = scene.holdings
        scene.up()
        return bare, scene.holdings


def test_up_makes_the_resources_that_these_tests_expect() -> None:
    bare, raised = bare_and_raised()
    manager = "instance eu-west-1 t3.small"
    made = list((Counter(raised) - Counter(bare)).elements())
    assert made == [
        "bucket trialfleet-f-123456789012",
        "group eu-west-1 trialfleet-f",
        "group us-east-1 trialfleet-f",
        "instance eu-west-1 g5.xlarge ['trialfleet-f']",
        f"{manager} ['default', 'trialfleet-f']",
        *["instance us-east-1 g5.xlarge ['trialfleet-f']"] * 2,
        "object fleet/f/aws-regions/eu-west-1",
        "object fleet/f/aws-regions/us-east-1",
        "object fleet/f/bundle-ab12.tar.gz",
        "parameter /trialfleet/f/node-token",
        "profile trialfleet-f 1",
        "role trialfleet-f",
        "template eu-west-1 trialfleet-f-x86_64",
        "template us-east-1 trialfleet-f-x86_64",
    ]
    assert list((Counter(bare) - Counter(raised)).elements()) == [f"{manager} ['default']"]


@each_call
def test_up_killed_after_any_call_and_run_again_makes_one_fleet_that_down_removes(
    every: int,
) -> None:
    bare, raised = bare_and_raised()
    for scene, when in kills(every, new_scene, Scene.up):
        scene.up()
        assert scene.holdings == raised, when
        assert scene.down() == [], when
        assert scene.holdings == bare, when


@each_call
def test_down_removes_all_that_a_killed_up_left(every: int) -> None:
    bare, _ = bare_and_raised()
    for scene, when in kills(every, new_scene, Scene.up):
        assert scene.down() == [], when
        assert scene.holdings == bare, when


@each_call
def test_down_killed_after_any_call_and_run_again_leaves_nothing(every: int) -> None:
    bare, _ = bare_and_raised()
    for scene, when in kills(every, new_scene, Scene.down, Scene.up):
        assert scene.down() == [], when
        assert scene.holdings == bare, when


@each_call
def test_up_after_a_killed_down_restores_the_complete_fleet(every: int) -> None:
    _, raised = bare_and_raised()
    for scene, when in kills(every, new_scene, Scene.down, Scene.up):
        scene.up()
        assert scene.holdings == raised, when
