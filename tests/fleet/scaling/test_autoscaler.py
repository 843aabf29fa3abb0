from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import AWAY, HOME, IMAGE, candidate, inputs
from tests.fleet.mock_aws.nodes_at_hand import NOW, ONE_GPU, ago, joined
from tests.fleet.mock_aws.small_world import World, world
from trialfleet.errors import PoolError
from trialfleet.infra.fleet.htcondor.demand import Demand, Group
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import down, up
from trialfleet.infra.fleet.scaling import cost_record, down_note
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler, Step
from trialfleet.infra.fleet.scaling.instance_costs import NOTICES, Ledger
from trialfleet.infra.fleet.scaling.launch_pauses import UnfitNodes, UnmatchedTrials
from trialfleet.infra.pool.machines import Resources


@pytest.fixture(autouse=True)
def aws_reports_no_end_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moto's clock is the real one, not the world's."""
    monkeypatch.setattr(inventory, "_end", lambda _: None)


def test_a_node_is_launched_for_each_trial_that_waits_and_only_once() -> None:
    with world() as here:
        scaler = here.autoscaler("r1")
        here.waiting = 2
        first = scaler.step()
        assert len(first.launched) == 2
        assert {instance.run for instance in here.living()} == {"r1"}
        here.later(minutes=1)
        second = scaler.step()
        assert (second.launched, second.nodes) == ((), {"coming": 2})
        here.join()
        assert scaler.step().nodes == {"idle": 2}
        assert len(here.living()) == 2


def test_trials_that_share_gpus_cost_fewer_nodes() -> None:
    with world(trials_per_gpu=2) as here:
        here.waiting = 3
        assert len(here.autoscaler().step().launched) == 2


def test_instances_that_aws_does_not_list_yet_are_not_launched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world() as here:
        scaler = here.autoscaler()
        here.waiting = 2
        scaler.step()
        monkeypatch.setattr(
            "trialfleet.infra.fleet.instances.inventory.list_instances",
            lambda *_args, **_options: [],
        )
        here.later(minutes=0.5)
        assert scaler.step().nodes == {"coming": 2}
        here.later(minutes=5)  # AWS has lost them
        assert scaler.step().nodes == {}


def test_an_idle_node_is_drained_and_then_terminated() -> None:
    with world(nodes={"min": 1, "max": 4}, idle_minutes=5) as here:
        scaler = here.autoscaler()
        here.waiting = 2
        scaler.step()
        here.waiting = 0
        names = here.join()
        here.later(minutes=5)
        (removal,) = scaler.step().drained
        assert removal.reason == "idle for 5 minutes"
        assert here.pool[removal.instance].draining
        (ended,) = scaler.step().terminated
        assert ended.instance == removal.instance
        assert [i.id for i in here.living()] == [n for n in names if n != ended.instance]
        assert f"terminated {ended.instance}: it is drained: idle for 5 minutes" in here.messages
        scaler.step()
        assert {life.why for life in record_of(here).lifetimes.values()} == {
            "",
            "idle for 5 minutes (drained by the manager)",
        }


def test_the_end_of_a_run_ends_nodes_that_are_no_longer_needed() -> None:
    with world(nodes={"min": 0, "max": 6}) as here:
        scaler = leaver(here)
        here.waiting = 5
        scaler.step()
        here.waiting = 0
        busy, drained, *idle = here.join()
        needed, refusing, gone = sorted(idle)
        here.change(busy, idle_since=None, free=Resources())
        here.change(drained, draining=True, drain_reason="trialfleet: idle for 10 minutes")
        here.undrainable = refusing
        scaler.step()
        here.waiting = 1  # of another run
        here.later(minutes=1)
        step = scaler.release_nodes()
        assert {one.id for one in here.living()} == {busy, refusing, needed}
        assert f"terminated {gone}: the run r1 is over" in here.messages
        assert step.notes == (f"{refusing} can't be drained: condor_drain is not on PATH",)
        assert step.instances[gone].why == "the run r1 is over"
        alive = {name for name, life in step.instances.items() if life.ended is None}
        assert alive == {busy, refusing, needed}


def test_a_fleet_that_was_taken_down_gets_no_node_until_a_person_asks_for_it(
    cache: Path,
) -> None:
    with world(nodes={"min": 1, "max": 4}, lease_minutes=30) as here:
        scaler = here.autoscaler("r1")
        here.waiting = 2
        scaler.step()
        held = here.account.holdings()
        down_note.note_down("f")
        down.down(here.account.aws, here.fleet, lambda _: None)
        here.later(minutes=1)
        step = scaler.step()
        assert step.launched == ()
        assert re.match(
            r"2 more nodes would be useful: the fleet was taken down at .*Z?;", step.notes[0]
        )
        assert not [one for one in here.account.holdings() if "trialfleet" in one]
        assert here.autoscaler("r1").step().launched == (), "nor from a new autoscaler"
        down_note.lift("f")
        here.later(minutes=1)
        assert len(scaler.step().launched) == 2
        assert here.account.holdings() == held
        down_note.note_down("f")  # and was killed before it did anything
        here.join()
        here.later(minutes=25)
        leases = {one.id: one.expires for one in here.living()}
        scaler.step()
        assert {one.id: one.expires for one in here.living()} == leases, "they end with them"


def leaver(here: World) -> Autoscaler:
    """Return an autoscaler of the run r1 that sees what trials of other runs ask for."""
    everyone = replace(here.connections(), read_all=lambda _: here.connections().read_run("f", ""))
    say = here.messages.append
    return Autoscaler(here.account.aws, here.fleet, everyone, run="r1", progress=say)


def test_only_the_minimum_of_joined_nodes_outlives_the_run() -> None:
    with world(nodes={"min": 1, "max": 4}) as here:
        scaler = leaver(here)
        here.waiting = 3
        scaler.step()
        here.waiting = 0
        here.join()
        here.pool.popitem()  # this one is yet to come
        step = scaler.release_nodes()
        assert len(step.terminated) == 2
        assert len(here.living()) == 1


def test_a_node_that_refuses_to_drain_is_kept_and_reported() -> None:
    with world(idle_minutes=5) as here:
        scaler = here.autoscaler()
        here.waiting = 1
        scaler.step()
        here.waiting = 0
        (name,) = here.join()
        here.later(minutes=5)
        here.unwilling = "it runs something by now"
        step = scaler.step()
        assert (step.drained, step.notes) == (
            (),
            (f"{name} can't be drained: it runs something by now",),
        )
        assert len(here.living()) == 1


@pytest.mark.parametrize("notice", NOTICES)
def test_the_replacement_of_an_interrupted_spot_node_is_of_another_pool(notice: str) -> None:
    with world(zones=[]) as here:
        here.candidates = [candidate(), candidate(HOME + "b")]
        scaler = here.autoscaler()
        name = launch_busy_node(here, scaler)
        here.change(name, draining=True, note=f"{notice}: soon")
        here.waiting = 1
        scaler.step()
        assert {one.zone for one in here.living()} == {HOME + "a", HOME + "b"}


def test_a_new_autoscaler_avoids_the_pool_of_an_interrupted_node() -> None:
    with world(zones=[]) as here:
        here.candidates = [candidate(), candidate(HOME + "b")]
        scaler = here.autoscaler()
        name = launch_busy_node(here, scaler)
        here.change(name, note="spot interruption: soon")
        scaler.step()
        scaler.step()  # the record is written when the next look finds it changed
        here.pool.clear()
        down.terminate(here.account.aws, here.living())
        here.later(minutes=60)
        here.waiting = 1
        here.autoscaler().step()
        assert [one.zone for one in here.living()] == [HOME + "b"]


def launch_busy_node(here: World, scaler: Autoscaler) -> str:
    """Let a trial ask for a node and run on it."""
    here.waiting = 1
    scaler.step()
    here.waiting = 0
    (name,) = here.join(idle=None)
    return name


def test_leases_are_renewed_before_they_end() -> None:
    with world(lease_minutes=30) as here:
        scaler = here.autoscaler()
        launch_busy_node(here, scaler)
        for _ in range(6):
            here.later(minutes=15)
            scaler.step()
            (instance,) = here.living()
            assert instance.expires is not None
            assert instance.expires - here.now >= timedelta(minutes=19)


def test_leases_are_renewed_before_the_cost_ledger_is_read() -> None:
    with world(lease_minutes=30) as here:
        launch_busy_node(here, here.autoscaler("r1"))
        here.later(minutes=25)
        here.account.faults.reset()
        here.autoscaler("r1").step()  # the manager was restarted
        calls = here.account.faults.calls
        assert "s3:GetObject" in calls
        before = {*calls[: calls.index("ec2:CreateTags")]}
        assert before <= {"sts:GetCallerIdentity", "ec2:DescribeInstances"}


def test_leases_are_renewed_while_the_pool_does_not_answer_and_no_node_is_ended() -> None:
    with world() as here:
        scaler = here.autoscaler()
        launch_busy_node(here, scaler)
        scaler.step()
        here.silent = True
        for _ in range(4):
            here.later(minutes=30)
            with pytest.raises(PoolError, match="does not answer"):
                scaler.step()
        (instance,) = here.living()
        assert instance.expires is not None
        assert instance.expires > here.now
        # The collector is back, and its nodes come back to it a little later.
        here.silent = False
        before, here.pool = here.pool, {}
        assert scaler.step().nodes == {"silent": 1}
        here.later(minutes=4)
        here.pool = before
        assert scaler.step().nodes == {"busy": 1}
        here.pool = {}
        here.later(minutes=5)
        assert scaler.step().terminated[0].reason == "the pool has not seen it for 5 minutes"


def test_a_node_that_booted_while_the_pool_did_not_answer_gets_its_time_to_join_again() -> None:
    with world() as here:
        scaler = here.autoscaler()
        here.waiting = 1
        scaler.step()
        here.waiting = 0
        here.silent = True
        here.later(minutes=30)
        with pytest.raises(PoolError, match="does not answer"):
            scaler.step()
        here.silent = False
        assert scaler.step().nodes == {"coming": 1}
        here.later(minutes=19)
        assert scaler.step().terminated == ()
        here.later(minutes=1)
        assert len(scaler.step().terminated) == 1


@pytest.mark.parametrize("money", [{}, {"price_cap": {"run": 9.0}}])
def test_an_unreadable_cost_ledger_ends_no_node(money: dict[str, Any]) -> None:
    with world(lease_minutes=30, **money) as here:
        launch_busy_node(here, here.autoscaler("r1"))
        spoil_the_record(here)
        scaler = here.autoscaler("r1")  # the manager was restarted
        here.waiting = 1
        # Without knowing what was spent, a run with a cap asks for no more nodes.
        assert len(scaler.step().launched) == (0 if money else 1)
        here.waiting = 0
        here.join(idle=None)
        for _ in range(4):
            here.later(minutes=15)
            step = scaler.step()
            assert "the cost only covers instances that AWS still lists: " in step.notes[0]
            assert "delete it to begin a new one" in step.notes[0]
            assert step.spent > 0
            assert min(lease_left(here)) > timedelta(minutes=19)


def spoil_the_record(here: World) -> None:
    s3 = here.account.client("s3")
    (found,) = s3.list_buckets()["Buckets"]
    s3.put_object(Bucket=found["Name"], Key="fleet/f/ledger.json", Body=b"{")


def lease_left(here: World) -> list[timedelta]:
    return [one.expires - here.now for one in here.living() if one.expires]


def test_a_refusing_bucket_ends_no_node_and_the_cost_ledger_is_updated_later() -> None:
    with world(lease_minutes=30) as here:
        first = here.autoscaler("r1")
        launch_busy_node(here, first)
        first.step()
        before = record_of(here)
        here.account.faults.refuse("GetObject", "AccessDenied", status=403)
        here.account.faults.refuse("PutObject", "AccessDenied", status=403)
        scaler = here.autoscaler("r1")
        here.later(minutes=25)
        assert "s3:GetObject" not in scaler.step().notes[0]
        assert min(lease_left(here)) > timedelta(minutes=29)
        here.account.faults.reset()
        here.pool.clear()
        here.account.client("ec2").terminate_instances(InstanceIds=[*before.lifetimes])
        assert scaler.step().notes == ()
        after = record_of(here)
        assert after.runs == before.runs
        assert [lifetime.ended for lifetime in after.lifetimes.values()] == [here.now]


def record_of(here: World) -> Ledger:
    return cost_record.load(here.account.aws, here.fleet)


def test_leases_are_renewed_although_another_region_does_not_answer() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images, lease_minutes=30) as here:
        here.candidates = [candidate(price=0.39), candidate(AWAY + "a")]
        here.account.capacity.lack(HOME + "a", times=1)
        scaler = here.autoscaler()
        here.waiting = 1
        scaler.step()
        here.waiting = 2
        here.later(minutes=10)
        scaler.step()
        here.join(idle=None)
        here.waiting = 0
        scaler.step()
        assert {one.aws_region for one in here.living()} == {HOME, AWAY}
        for operation in ("DescribeInstances", "CreateTags"):
            here.account.faults.refuse(operation, "InternalError", aws_region=HOME)
        here.waiting = 1
        here.later(minutes=15)
        step = scaler.step()
        assert step.nodes == {"busy": 2}  # a node that does not answer is not gone
        assert step.launched == ()
        assert "InternalError" in " ".join(step.notes)
        here.account.faults.reset()
        left = {one.aws_region: one.expires - here.now for one in here.living() if one.expires}
        assert left[HOME] < timedelta(minutes=25) < timedelta(minutes=29) < left[AWAY]


def test_a_refusal_for_one_node_does_not_prevent_the_end_of_others() -> None:
    with world(idle_minutes=5, nodes={"max": 2}) as here:
        scaler = here.autoscaler()
        here.waiting = 2
        scaler.step()
        here.waiting = 0
        kept, _ = here.join()
        here.account.client("ec2").modify_instance_attribute(
            InstanceId=kept, DisableApiTermination={"Value": True}
        )
        here.later(minutes=6)
        assert len(scaler.step().drained) == 2
        step = scaler.step()
        assert [one.id for one in here.living()] == [kept]
        assert any("OperationNotPermitted" in note and kept in note for note in step.notes)


def test_a_failed_drain_of_one_node_does_not_prevent_that_of_others() -> None:
    with world(idle_minutes=5, nodes={"max": 2}) as here:
        scaler = here.autoscaler()
        here.waiting = 2
        scaler.step()
        here.waiting = 0
        first, second = here.join()
        here.undrainable = first
        here.later(minutes=6)
        step = scaler.step()
        assert [removal.instance for removal in step.drained] == [second]
        assert step.notes == (f"{first} can't be drained: condor_drain is not on PATH",)
        assert [r.instance for r in scaler.step().terminated] == [second]


def test_a_log_on_a_full_disk_keeps_no_node_from_its_end() -> None:
    with world(idle_minutes=5) as here, Path("/dev/full").open("wb", buffering=0) as full:

        def say(line: str) -> None:
            full.write(line.encode())

        with pytest.raises(OSError, match="No space left"):
            say("as any line")
        scaler = Autoscaler(here.account.aws, here.fleet, here.connections(), progress=say)
        here.waiting = 1
        assert len(scaler.step().launched) == 1
        here.waiting = 0
        here.join()
        here.later(minutes=6)
        assert len(scaler.step().drained) == 1
        assert len(scaler.step().terminated) == 1
        assert not here.living()


def test_nodes_in_regions_that_the_fleet_no_longer_names_count_until_their_leases_end() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images, nodes={"max": 3}) as here:
        here.candidates = [candidate(AWAY + "a")]
        here.waiting = 1
        here.autoscaler("r1").step()
        (before,) = here.living()
        here.join(idle=None)
        everywhere = here.fleet
        here.fleet = everywhere.model_copy(update={"aws_regions": [HOME]})
        here.candidates, here.waiting = [candidate()], 5
        scaler = here.autoscaler("r1")
        step = scaler.step()
        assert (len(step.launched), step.nodes) == (2, {"busy": 1})
        assert step.price_per_hour == pytest.approx(0.4)
        assert "3 more nodes would be useful: the fleet has at most 3 nodes" in step.notes
        here.join(idle=None)
        here.later(minutes=50)
        scaler.step()
        assert all(
            one.expires and one.expires - here.now > timedelta(minutes=59) for one in here.living()
        )
        here.fleet = everywhere
        (same,) = (one for one in here.living() if one.aws_region == AWAY)
        assert same.expires == before.expires, "the lease is not renewed"


def test_nodes_of_a_region_that_others_use_later_count_too() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images, nodes={"max": 2}) as here:
        wide = here.fleet
        here.fleet = here.fleet.model_copy(update={"aws_regions": [HOME]})
        here.waiting = 1
        scaler = here.autoscaler("r1")
        assert scaler.step().nodes == {}
        up.up(here.account.aws, wide, inputs(), [candidate(AWAY + "a")], 2)
        here.later(minutes=10)
        here.waiting = 0
        here.account.faults.refuse("ListObjectsV2", "SlowDown", times=1)
        assert "the fleet used before are unknown" in scaler.step().notes[0]
        here.waiting = 2
        step = scaler.step()
        assert (sum(step.nodes.values()), step.launched) == (2, ())


def test_an_earlier_region_that_refuses_holds_back_no_launch() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images) as here:
        here.candidates = [candidate(AWAY + "a")]
        here.waiting = 1
        here.autoscaler("r1").step()
        here.fleet = here.fleet.model_copy(update={"aws_regions": [HOME]})
        here.candidates = [candidate()]
        here.account.faults.refuse("DescribeInstances", "AuthFailure", aws_region=AWAY)
        step = here.autoscaler("r1").step()
        assert len(step.launched) == 1
        assert any(f"the instances in {AWAY}: AWS refused" in note for note in step.notes)


def test_nodes_of_a_region_that_never_answers_cost_money_until_their_leases_end() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images) as here:
        here.candidates = [candidate(AWAY + "a")]
        here.waiting = 1
        here.autoscaler("r1").step()
        here.waiting = 0
        here.autoscaler("r1").step()  # records the node
        here.account.faults.refuse("DescribeInstances", "AuthFailure", aws_region=AWAY)
        scaler, spent = here.autoscaler("r1"), []
        for _ in range(4):
            here.later(minutes=30)
            spent.append(scaler.step().spent)
        assert spent == sorted(spent)
        assert spent[0] == pytest.approx(0.2, rel=0.1)
        assert spent[1] == pytest.approx(0.4, rel=0.1)
        assert spent[2] == spent[3] < 0.5, "the lease has ended"


def test_a_run_is_not_stopped_before_every_region_has_answered() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    money = {"run": 0.1}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images, price_cap=money) as here:
        here.account.faults.refuse("DescribeInstances", "InternalError", aws_region=AWAY)
        here.waiting = 1
        scaler = here.autoscaler("r1")
        assert scaler.step().stopped == ""
        here.account.faults.reset()
        assert scaler.step().stopped


def test_a_new_autoscaler_gives_old_nodes_time_to_come_back_to_the_pool() -> None:
    with world() as here:
        here.waiting = 1
        here.autoscaler().step()
        here.later(minutes=180)  # the manager is restarted
        scaler = here.autoscaler()
        assert scaler.step().nodes == {"coming": 1}
        here.later(minutes=20)
        assert scaler.step().terminated[0].reason == (
            "it has not joined within 20 minutes of its launch"
        )


def test_requests_after_a_lack_of_capacity_have_growing_pauses() -> None:
    with world() as here:
        here.account.capacity.lack()
        scaler = here.autoscaler()
        here.waiting = 2
        asked = []
        for second in range(0, 600, 15):
            if "CreateFleet" in str(calls_of(here, scaler.step)):
                asked.append(second)
            here.later(minutes=0.25)
        assert asked == [0, 30, 90, 210, 450]
        note = scaler.step().notes[0]
        launched = "2 more nodes would be useful: AWS launched 0 of 2 nodes: g5.xlarge spot in"
        assert note.startswith(launched)
        assert "InsufficientInstanceCapacity" in note
        here.account.capacity.restore()
        here.later(minutes=15)
        assert len(scaler.step().launched) == 2
        # That it had some ends the row of pauses: the next one is the first again.
        here.account.capacity.lack()
        here.waiting = 3
        assert "ec2:CreateFleet" in calls_of(here, scaler.step)
        here.later(minutes=0.5)
        assert "ec2:CreateFleet" in calls_of(here, scaler.step)


@pytest.mark.parametrize("operation", ["CreateFleet", "DescribeSubnets"])
def test_a_step_goes_on_although_no_node_can_be_launched(operation: str) -> None:
    with world() as here:
        scaler = here.autoscaler("r1")
        launch_busy_node(here, scaler)
        (name,) = here.pool
        scaler.step()
        here.change(name, idle_since=here.now, draining=True, drain_reason="trialfleet: done")
        here.account.faults.refuse(operation, "UnauthorizedOperation", status=403)
        here.waiting = 1
        scaler._prepared = None  # as after a restart
        step = scaler.step()
        assert [one.instance for one in step.terminated] == [name]
        assert not here.living()
        assert step.launched == ()
        assert step.waiting == 1
        (note,) = step.notes
        assert note.startswith("no node was launched: ")
        assert f"permission to call {operation} is denied" in note
        assert here.messages[-1] == note
        here.pool = {}
        (held,) = scaler.step().notes
        assert f"useful: {note}; retried at" in held, "and AWS is not asked"
        here.account.faults.reset()
        here.later(minutes=1)
        assert len(scaler.step().launched) == 1


def test_a_region_that_refuses_every_launch_is_named_while_another_gives_the_nodes() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images) as here:
        here.candidates = [candidate(price=0.39), candidate(AWAY + "a")]
        here.account.faults.refuse("CreateFleet", "OptInRequired", aws_region=HOME)
        scaler = here.autoscaler("r1")
        here.waiting = 1
        step = scaler.step()
        assert [one.aws_region for one in here.living()] == [AWAY]
        assert len(step.launched) == 1
        (note,) = step.notes
        assert "g5.xlarge spot in eu-west-1a (0.390 USD/h): AWS refused: OptInRequired" in note
        here.account.capacity.lack(AWAY + "a", room=1)
        here.waiting = 2
        scaler.step()
        (held,) = scaler.step().notes
        assert "AWS launched 0 of 1 nodes: 1 x g5.xlarge spot in eu-west-1a" in held
        assert "InsufficientInstanceCapacity" in held


def calls_of(here: World, step: Callable[[], object]) -> list[str]:
    here.account.faults.calls.clear()
    step()
    return list(here.account.faults.calls)


def test_throttling_costs_nothing_but_time() -> None:
    with world() as here:
        here.account.faults.throttle("CreateFleet", 3)
        here.account.faults.throttle("DescribeInstances", 3)
        here.waiting = 1
        assert len(here.autoscaler().step().launched) == 1


def test_a_step_without_any_list_of_instances_says_so_and_launches_nothing() -> None:
    with world() as here:
        here.account.faults.refuse("DescribeInstances", "UnauthorizedOperation", status=403)
        here.waiting = 1
        step = here.autoscaler().step()
        assert "permission to call DescribeInstances is denied" in step.notes[0]
        assert "1 more nodes would be useful: an AWS region does not list its nodes" in step.notes
        assert (step.launched, step.waiting) == ((), 1)


def test_a_region_without_candidates_is_named_until_it_has_some() -> None:
    images = {HOME: IMAGE, AWAY: IMAGE}
    with world(aws_regions=[HOME, AWAY], zones=[], ami=images) as here:
        scaler = here.autoscaler()
        here.troubles = ["the spot prices of us-east-1: AWS refused"]
        here.waiting = 1
        for _ in range(2):
            step = scaler.step()
            assert here.troubles[0] in step.notes
        assert len(here.living()) == 1
        here.troubles = []
        here.later(minutes=1)
        assert scaler.step().notes == ()


def test_prices_that_can_not_be_had_are_asked_for_no_more_often() -> None:
    with world() as here:
        scaler = here.autoscaler()
        here.troubles = ["no on-demand node starts in us-east-1 of types without a known price"]
        scaler.step()
        here.troubles = []
        here.later(minutes=9)
        assert "no on-demand node starts" in scaler.step().notes[0]
        here.later(minutes=1)
        assert scaler.step().notes == ()


def test_without_candidates_nothing_is_launched_but_nodes_still_go() -> None:
    with world(idle_minutes=5) as here:
        scaler = here.autoscaler()
        here.waiting = 1
        scaler.step()
        here.join(idle=60)
        here.candidates = []
        here.waiting = 0
        here.later(minutes=10)
        assert len(scaler.step().drained) == 1
        here.waiting = 3
        (note,) = scaler.step().notes
        assert note.endswith("no candidate is left: g5.xlarge costs more than the ceiling")


def test_the_cap_per_hour_bounds_the_number_of_nodes() -> None:
    with world(price_cap={"hour": 1.0}) as here:
        scaler = here.autoscaler()
        here.waiting = 4
        step = scaler.step()
        assert len(step.launched) == 2
        assert step.notes == (
            "2 more nodes would be useful: the cap is $1.00 per hour, and the nodes cost $0.00",
        )
        assert scaler.step().price_per_hour == pytest.approx(0.8)


def test_the_runs_cap_includes_costs_recorded_by_an_earlier_autoscaler() -> None:
    with world(price_cap={"run": 1.0}, lease_minutes=600) as here:
        scaler = here.autoscaler("r1")
        name = launch_busy_node(here, scaler)
        here.later(minutes=60)
        assert scaler.step().spent == pytest.approx(0.4, abs=0.01)
        here.pool = {}
        here.account.client("ec2").terminate_instances(InstanceIds=[name])
        another = here.autoscaler("r1")
        launch_busy_node(here, another)
        here.later(minutes=31)
        step = another.step()
        # The ended one's 60 minutes, and 91 of the second: moto knows no clock but the real one.
        assert step.spent == pytest.approx(151 / 60 * 0.4, abs=0.01)
        assert [removal.reason for removal in step.drained] == [
            f"the run's cap of $1.00 is reached: ${step.spent:.2f} is spent"
        ]
        (instance,) = here.living()
        here.change(instance.id, idle_since=here.now)
        here.later(minutes=590)
        assert another.step().terminated[0].instance == instance.id != name
        gone = inventory.instances(here.account.aws, here.fleet, gone=True)
        assert [i.expires for i in gone if i.id == instance.id] == [instance.expires]  # not renewed
        assert not here.living()


@pytest.mark.parametrize("tag", ["nan", "inf", "-3", "cheap"])
def test_a_price_tag_that_is_no_price_counts_as_none(tag: str) -> None:
    with world(price_cap={"run": 1.0, "hour": 5.0}) as here:
        scaler = here.autoscaler("r1")
        name = launch_busy_node(here, scaler)
        here.account.client("ec2").create_tags(
            Resources=[name], Tags=[{"Key": "trialfleet:price", "Value": tag}]
        )
        here.later(minutes=10)
        step = scaler.step()
        assert (step.spent, step.price_per_hour) == (0, 0)


def test_another_run_begins_with_its_money_unspent() -> None:
    with world(price_cap={"run": 1.0}) as here:
        scaler = here.autoscaler("r1")
        launch_busy_node(here, scaler)
        here.later(minutes=180)
        assert scaler.step().drained
        step = here.autoscaler("r2").step()
        assert (step.spent, step.since) == (0, here.now)


def test_the_record_is_written_only_when_something_changed() -> None:
    with world() as here:
        scaler = here.autoscaler("r1")
        here.waiting = 1
        scaler.step()
        assert "s3:PutObject" in calls_of(here, scaler.step)
        here.join(idle=None)
        assert "s3:PutObject" not in calls_of(here, scaler.step)


@pytest.mark.thorough
def test_unfit_nodes_slow_down_launches() -> None:
    with world(idle_minutes=1, nodes={"max": 1}) as here:
        scaler = here.autoscaler()
        here.waiting = 1
        launches: list[int] = []
        notes: set[str] = set()
        for minute in range(120):
            step = scaler.step()
            launches += [minute] if step.launched else []
            notes |= {note.split(";")[0] for note in step.notes}
            here.join(healthy=False, reason="no driver")
            here.pool = {i.id: here.pool[i.id] for i in here.living()}
            here.later(minutes=1)
        gaps = [later - earlier for earlier, later in itertools.pairwise(launches)]
        assert gaps[0] < 5 <= gaps[-2] < gaps[-1]
        assert "1 more nodes would be useful: the last 3 nodes were never fit for a trial" in notes


def test_three_unfit_nodes_in_a_row_hold_back_launches_until_a_fit_node_joins() -> None:
    unfit = UnfitNodes()
    assert unfit.reason({"a": "coming", "b": "coming"}, [], NOW) == ""
    assert unfit.reason({"b": "sick"}, [], NOW) == ""  # a ended itself before it joined
    assert unfit.reason({"b": "sick", "c": "late"}, [], NOW) == (
        "the last 3 nodes were never fit for a trial; retried at 12:05:00 UTC"
    )
    assert unfit.reason({"b": "sick", "c": "late"}, [], NOW) != ""
    assert unfit.reason({"b": "sick", "d": "idle"}, [], NOW) == ""
    assert unfit.reason({"b": "sick", "d": "sick"}, [], NOW) == ""  # it was fit once: no dud


def test_nodes_ended_by_the_price_cap_or_a_person_are_not_unfit() -> None:
    with world(nodes={"max": 5}) as here:
        here.waiting = 5
        here.autoscaler().step()
        cap = here.fleet.price_cap.model_copy(update={"hour": 0.8})
        here.fleet = here.fleet.model_copy(update={"price_cap": cap})
        scaler = here.autoscaler()  # restarted by a person who has added the cap
        assert len(scaler.step().terminated) == 3
        down.terminate(here.account.aws, here.living()[:1])
        assert len(scaler.step().launched) == 1


def test_trials_that_match_no_node_launch_nodes_less_and_less_often() -> None:
    with world(idle_minutes=5, nodes={"max": 2}) as here:
        scaler = here.autoscaler()
        here.waiting, here.waiting_since = 6, here.now
        launches: list[int] = []
        notes: set[str] = set()
        for minute in range(105):
            step = scaler.step()
            launches += [minute] if step.launched else []
            notes |= {note.split(";")[0] for note in step.notes if "ask for" in note}
            here.pool = {i.id: here.pool[i.id] for i in here.living() if i.id in here.pool}
            here.join()
            here.later(minutes=1)
        assert launches == [0, 35, 100]
        assert len(notes) == 2  # each names the node that was free
        assert all(
            note.startswith("6 trial(s) that ask for 1 GPU, 1 cpu, 4000 MB wait though i-")
            for note in notes
        )


def test_an_unmatched_trial_that_runs_after_all_counts_again() -> None:
    group, unmatched = Group(need=ONE_GPU, jobs=2, since=ago(9)), UnmatchedTrials()
    waiting = Demand(idle=(group,))
    without, (line,) = unmatched.remove_unmatched(waiting, [(group, joined("i-1", idle=9))], NOW)
    assert without == Demand()
    assert "though i-1 is free and has room; retried at 12:30:00 UTC" in line
    assert unmatched.remove_unmatched(waiting, [], NOW)[0] == Demand()
    running = Demand(idle=(group,), active=(replace(group, jobs=1),))
    assert unmatched.remove_unmatched(running, [], NOW) == (running, [])


def test_a_larger_type_than_the_first_counts_by_its_own_size() -> None:
    with world() as here:
        big = candidate(name="g5.12xlarge", price=3.0)
        big_type = big.type
        object.__setattr__(big_type, "gpus", 4)
        object.__setattr__(big_type, "vcpus", 48)
        object.__setattr__(big_type, "memory_mb", 196_608)
        here.candidates = [candidate(), big]
        here.account.capacity.lack(kind="g5.xlarge")
        scaler = here.autoscaler()
        here.waiting = 1
        assert len(scaler.step().launched) == 1
        here.waiting = 4
        here.later(minutes=1)
        assert scaler.step().launched == ()


def test_a_graph_gets_a_node_before_anything_waits() -> None:
    with world() as here:
        scaler = here.autoscaler()
        assert scaler.step().launched == ()
        step = scaler.step(least=1)
        assert (len(step.launched), step.joined_nodes) == (1, 0)
        here.join()
        assert scaler.step(least=1).joined_nodes == 1


@pytest.mark.thorough
def test_ten_trials_complete_and_no_node_is_left() -> None:
    """Ten trials of 20 minutes on nodes that need 3 to join, stepped each minute."""
    with world(idle_minutes=5, nodes={"max": 4}) as here:
        scaler = here.autoscaler("r1")
        here.waiting = 10
        ends: dict[str, datetime] = {}
        steps: list[Step] = []
        for _ in range(120):
            steps.append(scaler.step())
            here.pool = {i.id: here.pool[i.id] for i in here.living() if i.id in here.pool}
            if steps[-1].nodes.get("coming") and not here.pool:
                here.later(minutes=3)
            here.join()
            run_trials(here, ends)
            here.later(minutes=1)
        assert here.waiting == 0
        assert not ends
        assert not here.living()
        assert max(sum(step.nodes.values()) for step in steps) == 4
        minutes = 10 * 20 + 4 * (3 + 5 + 6)  # training; joining and being idle, and some slack
        assert 10 * 20 / 60 * 0.4 < steps[-1].spent < minutes / 60 * 0.4


def run_trials(here: World, ends: dict[str, datetime]) -> None:
    """Let trials end whose time has come, and others begin where there is room."""
    for name, node in here.pool.items():
        if name in ends and ends[name] <= here.now:
            del ends[name]
            here.change(name, idle_since=here.now, jobs=())
        if name not in ends and here.waiting and not node.draining:
            here.waiting -= 1
            ends[name] = here.now + timedelta(minutes=20)
            here.change(name, idle_since=None, jobs=("1.0",))
