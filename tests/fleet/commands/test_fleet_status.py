from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.fleet.mock_aws.moto_account import AWAY, HOME, IMAGE, Account, candidate, fleet, inputs
from tests.fleet.mock_aws.moto_account import account as new_account
from tests.fleet.mock_aws.nodes_at_hand import ONE_GPU, pool_node
from tests.fleet.mock_aws.small_world import world
from tests.unit.terminal import printed
from trialfleet.errors import FleetError, PoolError
from trialfleet.files import json_text
from trialfleet.infra.fleet.aws import bucket
from trialfleet.infra.fleet.commands import status as fleet_status
from trialfleet.infra.fleet.commands.boot_log import last_line
from trialfleet.infra.fleet.commands.status import FleetStatus
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.htcondor.demand import Demand, Group, PoolView
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.scaling import cost_record
from trialfleet.infra.fleet.scaling.autoscaler_process import Loop
from trialfleet.infra.fleet.scaling.draining import drain_text
from trialfleet.infra.fleet.scaling.instance_costs import Ledger, Lifetime
from trialfleet.infra.pool.machines import Machine, Resources, RunningTrial
from trialfleet.workflows.cli.printing.fleet_tables import status_view

FLEET = fleet(nodes={"min": 1, "max": 5}, price_cap={"hour": 5, "run": 50})
LOG = """2026-11-20T12:00:01Z driver: present
2026-11-20T12:00:09Z htcondor failed: no version 25.14.1 for this release
\n"""


def raised(account: Account, count: int) -> list[str]:
    """Bring this number of nodes up and return their ids."""
    up.up(account.aws, FLEET, inputs(), [candidate()], count)
    return [instance.id for instance in inventory.instances(account.aws, FLEET)]


def seen(
    account: Account,
    monkeypatch: pytest.MonkeyPatch,
    *nodes: Machine,
    minutes: float = 30,
    run: str = "",
) -> FleetStatus:
    """Return the status some minutes later, with these nodes in the pool."""
    waiting = Demand(idle=(Group(need=ONE_GPU, jobs=3),))
    view = PoolView(nodes=nodes, demand=waiting)
    monkeypatch.setattr(pool_demand, "read_pool", lambda _fleet, _run: view)
    now = datetime.now(UTC) + timedelta(minutes=minutes)
    return fleet_status.status(account.aws, FLEET, run=run, now=now)


def test_joined_nodes_are_shown_with_their_hardware_trials_and_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = RunningTrial(run="r1", region="JFK", node="JFK.l1.t03")
    with new_account() as account:
        idle, busy = raised(account, 2)
        status = seen(
            account,
            monkeypatch,
            pool_node(idle, driver_option="already 0"),
            pool_node(busy, idle=None, trials=(trial,)),
        )
        first, second = (json.loads(json_text(node.to_json())) for node in status.nodes)
        found = first["instance"]
        assert (found["id"], found["zone"], found["type"]) == (idle, HOME + "a", "g5.xlarge")
        assert (found["lifecycle"], first["stage"], first["why"]) == ("spot", "joined", "")
        assert (first["gpus"], first["machine"]["gpu"]) == (1, "NVIDIA A10G")
        assert first["machine"]["bandwidth"] == 481.5
        assert (first["machine"]["driver_option"], first["machine"]["trials"]) == ("already 0", [])
        known = second["machine"]
        assert known["trials"] == [{"run": "r1", "region": "JFK", "node": "JFK.l1.t03"}]
        assert known["idle_since"] is None
        assert first["cost"] == pytest.approx(0.2, abs=0.001)
        assert status.spent == pytest.approx(0.4, abs=0.002)
        assert status.price_per_hour == pytest.approx(0.8)
        assert status.stages == {"joined": 2}
        assert status.demand is not None
        assert status.demand.waiting_trials == 3
        assert (status.hour_cap, status.run_cap) == (5, 50)


def test_the_status_is_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_account() as account:
        (name,) = raised(account, 1)
        content = json.loads(json_text(seen(account, monkeypatch, pool_node(name)).to_json()))
        assert content["nodes"][0]["machine"]["bandwidth"] == 481.5
        assert sorted(content["nodes"][0]) == sorted(
            ["instance", "stage", "why", "age_minutes", "cost", "gpus", "machine"]
        )
        assert datetime.fromisoformat(content["nodes"][0]["instance"]["launched"]).tzinfo


def test_a_node_that_has_not_joined_is_shown_with_its_last_log_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with new_account() as account:
        (name,) = raised(account, 1)
        account.client("s3").put_object(
            Bucket=f"trialfleet-f-{account.aws.account(HOME)}",
            Key=f"fleet/f/log/{name}.log",
            Body=LOG.encode(),
        )
        status = seen(account, monkeypatch, minutes=5)
        (node,) = status.nodes
        assert node.instance.id == name
        assert node.reason == (
            "not in the pool 5 minutes after its launch;"
            " its log ends: 2026-11-20T12:00:09Z htcondor failed:"
            " no version 25.14.1 for this release"
        )
        late = seen(account, monkeypatch, minutes=25).nodes[0]
        assert "longer than the 20 minutes allowed" in late.reason


def test_without_a_log_the_console_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_account() as account:
        raised(account, 1)
        console = account.client("ec2").get_console_output  # moto's answer for every instance
        output = console(InstanceId=raised(account, 1)[0])["Output"]
        node = seen(account, monkeypatch).nodes[0]
        assert node.reason.endswith(f"its console ends: {last_line(output)}")
        account.faults.refuse("GetConsoleOutput", "UnauthorizedOperation", status=403)
        node = seen(account, monkeypatch).nodes[0]
        assert node.reason.endswith("no boot log so far")


def test_a_log_without_read_permission_is_not_shown_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with new_account() as account:
        raised(account, 1)
        account.faults.refuse("GetConsoleOutput", "UnauthorizedOperation", status=403)
        reason = "User: me is not authorized to perform: s3:GetObject on resource: y"
        account.faults.refuse("GetObject", "AccessDenied", reason, status=403)
        why = seen(account, monkeypatch).nodes[0].reason
        assert "its log can't be read: the permission s3:GetObject is denied" in why


def test_sick_and_draining_nodes_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_account() as account:
        one, two, three, absent = raised(account, 4)
        status = seen(
            account,
            monkeypatch,
            pool_node(one, healthy=False, reason="Xid 79"),
            pool_node(two, draining=True, drain_reason="trialfleet: idle for 10 minutes"),
            pool_node(three, draining=True, note="3 jobs failed here within 60 s"),
            minutes=4,
        )
        reasons = {node.instance.id: (node.stage, node.reason) for node in status.nodes}
        assert reasons.pop(absent)[0] == "booted"
        assert reasons == {
            one: ("sick", "its GPU failed the probe: Xid 79"),
            two: ("draining", "draining: idle for 10 minutes"),
            three: ("draining", "draining: 3 jobs failed here within 60 s"),
        }
        assert status.has_settled({one, two, three})
        assert not status.has_settled({one, absent})
        assert not status.has_settled({one, "i-unlisted"})


def test_a_node_that_never_joins_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_account() as account:
        (one,) = raised(account, 1)
        assert not seen(account, monkeypatch, minutes=19).has_settled({one})
        late = seen(account, monkeypatch, minutes=20)
        assert late.has_settled({one}), "`fleet up --wait` ends"
        assert [node.instance.id for node in late.unfit_nodes({one})] == [one]


def test_a_sick_gpu_among_others_is_shown_for_a_node_that_takes_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with new_account() as account:
        (one,) = raised(account, 1)
        room = Resources(gpus=4, cpus=4)
        joined = pool_node(one, reason="GPU 1: hung", total=room, free=room, shares=2)
        (node,) = seen(account, monkeypatch, joined).nodes
        assert (node.stage, node.reason) == ("joined", "GPU 1: hung")
        assert node.gpus == 2, "each of which two trials share"


def test_nodes_of_a_fleet_without_gpus_are_not_sick(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_account() as account:
        (one,) = raised(account, 1)
        without = pool_node(one, healthy=False, reason="no GPU", total=Resources(cpus=4))
        view = PoolView(nodes=(without,), demand=Demand())
        monkeypatch.setattr(pool_demand, "read_pool", lambda _fleet, _run: view)
        of_cpus = fleet(instance_types=["c6i.large"])
        (node,) = fleet_status.status(account.aws, of_cpus).nodes
        assert (node.stage, node.reason) == ("joined", "")


def test_nodes_of_an_aws_region_that_the_file_no_longer_has_are_shown() -> None:
    with new_account() as account:
        before = fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})
        up.up(account.aws, before, inputs(), [candidate(AWAY + "a", price=2.0)], 1)
        status = fleet_status.status(account.aws, FLEET)
        assert [node.instance.aws_region for node in status.nodes] == [AWAY]
        assert status.price_per_hour == 2.0
        record, _ = cost_record.current_record(account.aws, FLEET)
        (lifetime,) = record.lifetimes.values()
        assert lifetime.ended is None


def test_an_aws_region_that_lists_no_nodes_hides_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with new_account() as account:
        before = fleet(aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})
        up.up(account.aws, before, inputs(), [candidate(AWAY + "a")], 1)
        up.up(account.aws, FLEET, inputs(), [candidate()], 2)
        account.faults.refuse("DescribeInstances", "AuthFailure", "disabled", aws_region=AWAY)
        status = fleet_status.status(account.aws, FLEET)
        assert [node.instance.aws_region for node in status.nodes] == [HOME]
        line = f"the instances in {AWAY}: AWS refused: AuthFailure: disabled"
        assert status.to_json()["silent"] == {AWAY: line}
        assert line in printed(status_view(status))
        (here,) = (node.instance.id for node in status.nodes)
        assert not status.has_settled({here})
        assert seen(account, monkeypatch, pool_node(here)).has_settled({here})
        assert not seen(account, monkeypatch, pool_node(here)).has_settled({here, "i-away"})
        record, notices = cost_record.current_record(account.aws, FLEET)
        assert (set(record.lifetimes), notices) == ({here}, [line])
        account.faults.refuse("DescribeInstances", "InternalError")
        with pytest.raises(FleetError, match="InternalError"):  # no region lists its nodes
            fleet_status.status(account.aws, FLEET)


def test_a_record_of_costs_that_cannot_be_read_is_a_notice_beside_the_costs() -> None:
    with new_account() as account:
        (one,) = raised(account, 1)
        account.client("s3").put_object(
            Bucket=bucket.fleet_bucket(FLEET, account.aws.account(FLEET.home)),
            Key=cost_record._key(FLEET),
            Body=b"[",
        )
        record, (notice,) = cost_record.current_record(account.aws, FLEET)
        assert set(record.lifetimes) == {one}
        assert notice.startswith("the cost only covers instances that AWS still lists: ")


def test_the_cost_includes_ended_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_account() as account:
        one, two = raised(account, 2)
        begun = datetime.now(UTC)
        record = Ledger().add_listing(inventory.instances(account.aws, FLEET), begun)
        before = begun - timedelta(hours=2)
        old = Lifetime(type="g5.xlarge", price=None, launched=before, ended=begun)
        record = replace(record, lifetimes={**record.lifetimes, "i-old": old})
        run_began = begun + timedelta(minutes=15)
        cost_record.save(account.aws, FLEET, record.begin_run("r1", run_began))
        account.client("ec2").terminate_instances(InstanceIds=[one])
        status = seen(account, monkeypatch, pool_node(two), minutes=30)
        assert status.stages == {"ended": 1, "joined": 1}
        assert status.spent == pytest.approx(0.2 + 0.4 / 60, abs=0.002)  # a minute at least
        assert status.price_per_hour == pytest.approx(0.4)
        assert status.nodes[0].reason.startswith("it has ended")
        of_run = seen(account, monkeypatch, pool_node(two), minutes=30, run="r1")
        assert (status.since, of_run.since) == (None, run_began)
        assert of_run.spent == pytest.approx(0.1, abs=0.002)


def test_an_ended_node_says_why_it_ended_and_who_wanted_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with new_account() as account:
        idle, ours, unknown, alone, spot = raised(account, 5)
        listed = inventory.instances(account.aws, FLEET)
        record = Ledger().add_listing(listed, datetime.now(UTC))
        own = pool_node(idle, draining=True, note="idle for 10 minutes")
        asked = pool_node(ours, draining=True, drain_reason="trialfleet: the run r1 is over")
        whys = {node.instance: drain_text(node) for node in (own, asked)}
        whys[spot] = "spot interruption: terminate at 12:00 (drained by the node itself)"
        cost_record.save(account.aws, FLEET, record.add_reasons(whys))
        codes = {
            alone: "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
            spot: "Server.SpotInstanceTermination: Spot instance termination",
        }
        usual = "Client.UserInitiatedShutdown: User initiated shutdown"
        ended = [replace(one, state="terminated", ended=codes.get(one.id, usual)) for one in listed]
        monkeypatch.setattr(inventory, "list_instances", lambda *_: ended)
        logged = {one.id: "its log ends: failed: no token" for one in listed}
        monkeypatch.setattr(fleet_status, "last_messages", lambda *_: logged)
        reasons = {
            node.instance.id: node.to_json()["why"] for node in seen(account, monkeypatch).nodes
        }
        assert reasons == {
            idle: "it has ended: idle for 10 minutes (drained by the node itself)",
            ours: "it has ended: the run r1 is over (drained by the manager)",
            unknown: f"it has ended: somebody terminated it; {logged[unknown]}",
            alone: f"it has ended: it switched itself off; {logged[alone]}",
            spot: f"it has ended: AWS took the spot instance back ({codes[spot]})",
        }


def test_unknown_earlier_regions_are_reported_in_the_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with new_account() as account:
        raised(account, 1)
        account.faults.refuse("ListObjectsV2", "InternalError")
        (notice,) = seen(account, monkeypatch).notices
        assert notice.startswith("the AWS regions that the fleet used before are unknown, and may ")


def test_an_unreachable_pool_is_reported_in_the_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_fleet: str, _run: str) -> PoolView:
        raise PoolError("the collector does not answer")

    with new_account() as account:
        raised(account, 1)
        monkeypatch.setattr(pool_demand, "read_pool", silent)
        status = fleet_status.status(account.aws, FLEET)
        (notice,) = status.notices
        assert notice.startswith("the pool can't be asked, so it is unknown which nodes are in it")
        assert (status.nodes[0].reason, status.demand) == ("the pool can't be asked", None)


def test_the_consoles_last_line_is_the_bootstraps_if_there_is_one() -> None:
    console = (
        "[    1.2] kernel: hello\r\n"
        "[   10.1] cloud-init[812]: 2026-11-20T12:00:01Z driver: present\r\n"
        "[   11.0] systemd[1]: Started something\r\n"
    )
    assert last_line(console) == "2026-11-20T12:00:01Z driver: present"
    assert last_line("a\r\n\r\nb\r\n\n") == "b"
    assert last_line("") == ""


def test_why_the_autoscaler_launches_no_node_is_in_the_notices(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = PoolView(nodes=(), demand=Demand())
    monkeypatch.setattr(pool_demand, "read_pool", lambda _fleet, _run: view)
    with world() as here:
        found: list[dict[str, tuple[str, ...]]] = []

        class Looking:
            """A graph whose provisioner's reports are read after its first and second step."""

            def is_started(self) -> bool:
                return True

            def start(self) -> None:
                raise AssertionError

            def is_over(self) -> bool:
                found.append(notices())
                return len(found) == 3

        def notices() -> dict[str, tuple[str, ...]]:
            aws = here.account.aws
            return {
                run: fleet_status.status(aws, here.fleet, run=run).notices
                for run in ("", "r1", "r2")
            }

        here.waiting = 1
        here.account.faults.refuse("CreateFleet", "UnauthorizedOperation", status=403)
        Loop(
            here.autoscaler("r1"),
            fleet=here.fleet.full_name,
            run="r1",
            report=cache / "run" / "fleet.json",  # where another program looks for it
            graph=Looking(),  # type: ignore[arg-type]
            pause=0.001,
        ).run()
        for seen_then, words in zip(found[1:], ("no node was", "1 more nodes"), strict=True):
            (notice,) = seen_then[""]
            assert notice.startswith("the autoscaler, at 2")
            assert f": {words}" in notice
            assert "no node was launched: 1 x g5.xlarge spot in eu-west-1a" in notice
            assert seen_then["r1"] == (notice,)
            assert seen_then["r2"] == ()
        assert notices()[""] == (), "it has ended"
