"""`trialfleet why` of a fleet: the real autoscaler, launcher and status against moto.

The run is a planned one with a fleet; its autoscaler reports into the run's folder, as it does on a
manager. That a trial's job waits, and that no slot of the pool is for it, is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.causes import named
from tests.fleet.mock_aws.moto_account import ACCOUNT, AWAY, HOME, IMAGE, Account, candidate, inputs
from tests.fleet.mock_aws.nodes_at_hand import pool_node
from tests.fleet.mock_aws.small_world import World
from tests.unit.plan.test_plan import make_study
from trialfleet.errors import PoolError
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.htcondor.demand import Demand, PoolView
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.scaling.autoscaler_process import Loop
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.machines import Machine
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.slot_matching import Prospects
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.facts import InstanceFacts, Queued
from trialfleet.workflows.views.why.instance_rules import explain_instance
from trialfleet.workflows.views.why.instance_sources import instance_facts
from trialfleet.workflows.views.why.run_sources import RunFactsReader
from trialfleet.workflows.views.why.waiting_job_rules import explain_wait

EMPTY = Prospects(slots=0, fit=0, willing=0, concurrency=0, lacking=(), has_fleet=False)
WAITS = Queued(job="7.0", seconds=90, prospects=EMPTY)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose study has a fleet."""
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "no-pool"))
    fleet = {"aws_regions": [HOME], "name": "demo", "zones": [f"{HOME}a"], "ami": IMAGE}
    study = make_study(tmp_path, fleet=fleet, accelerator="gpu")
    return write_plan(study, run="r1", out=tmp_path / "run")


# --- trials that wait for a node ------------------------------------------------------------------


@pytest.fixture
def scaled(cloud: Account, folder: RunFolder) -> Callable[..., Answer]:
    """Let the autoscaler make a step or two for two trials; return what is said of them."""

    def scale(
        prepare: Callable[[World], None] = lambda _: None, *, steps: int = 2, **fleet: Any
    ) -> Answer:
        here = World(cloud, **fleet)
        here.waiting = 2
        prepare(here)
        made = Loop(
            here.autoscaler("r1"),
            fleet=here.fleet.full_name,
            run="r1",
            report=folder.fleet_state,
        )
        for _ in range(steps):
            made._step()
        return asked(folder)

    return scale


def asked(folder: RunFolder, **changes: Any) -> Answer:
    return explain_wait(replace(RunFactsReader(folder.root).run(), **changes), WAITS)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("capacity", "InsufficientInstanceCapacity"),
        ("quota", "VcpuLimitExceeded"),
        ("spot quota", "MaxSpotInstanceCountExceeded"),
        ("spot price", "SpotMaxPriceTooLow"),
        ("throttle", "RequestLimitExceeded"),
    ],
)
def test_why_names_refusals_of_aws(
    scaled: Callable[..., Answer], cloud: Account, name: str, code: str
) -> None:
    cloud.faults.refuse("CreateFleet", code)
    named(name, scaled())


def test_why_names_a_missing_permission(scaled: Callable[..., Answer], cloud: Account) -> None:
    words = "You are not authorized to perform: ec2:RunInstances on this resource"
    cloud.faults.refuse("CreateFleet", "UnauthorizedOperation", words, status=403)
    answer = scaled()
    named("permission", answer)
    assert answer.command.startswith("trialfleet fleet plan --policy")


def test_why_names_a_policy_that_no_own_policy_outweighs(
    scaled: Callable[..., Answer], cloud: Account
) -> None:
    words = "You are not authorized to perform: ec2:RunInstances on this resource with an explicit "
    denied = f"{words}deny in a service control policy"
    cloud.faults.refuse("CreateFleet", "UnauthorizedOperation", denied, status=403)
    answer = scaled()
    named("policy", answer)
    assert "plan --policy" not in " ".join(answer.lines())


def test_why_names_the_price_cap(scaled: Callable[..., Answer]) -> None:
    dear = candidate(price=2.0)

    def prepare(world: World) -> None:
        world.candidates = [dear]

    named("price cap", scaled(prepare, price_cap={"hour": 1.0}))


def test_why_names_the_maximum_of_nodes(scaled: Callable[..., Answer]) -> None:
    named("max nodes", scaled(nodes={"max": 1}))


def test_why_names_a_booting_node_and_a_missing_autoscaler(
    scaled: Callable[..., Answer], folder: RunFolder
) -> None:
    named("node booting", scaled(nodes={"max": 4}))
    later = datetime.now(UTC) + timedelta(minutes=10)
    named("autoscaler", asked(folder, now=later))


# --- instances ------------------------------------------------------------------------------------


class Nodes:
    """Instances of the run's fleet in moto, and what the pool says of them."""

    def __init__(
        self, account: Account, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._account, self._folder, self._patch = account, folder, monkeypatch
        fleet = load_frozen(folder.study).study.fleet
        assert fleet is not None
        self.fleet: Fleet = fleet
        up.up(account.aws, fleet, inputs(), [candidate()], 1)
        (instance,) = inventory.instances(account.aws, fleet)
        self.instance = instance.id
        monkeypatch.setattr("trialfleet.infra.fleet.aws.clients.Aws", lambda: account.aws)

    def facts(self, *nodes: Machine, **changes: Any) -> InstanceFacts:
        view = PoolView(nodes=nodes, demand=Demand())
        self._patch.setattr(pool_demand, "read_pool", lambda *_: view)
        self._patch.setattr(pool_demand, "fleet_machines", lambda **_: nodes)
        found = instance_facts(self.instance, self._folder.root)
        return replace(found, node=replace(found.node, **changes)) if found.node else found

    def joined(self, **changes: Any) -> Answer:
        return explain_instance(self.facts(pool_node(self.instance, **changes)))


@pytest.fixture
def nodes(cloud: Account, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(cloud, folder, monkeypatch)


def test_why_distinguishes_healthy_sick_and_draining_nodes(nodes: Nodes) -> None:
    assert nodes.joined().kind == "well"
    named("sick", nodes.joined(healthy=False, reason="Xid 79"))
    eaten = (
        "3 jobs failed here within 60 s: 7.0 (exit code 1), 8.0 (exit code 1), 9.0 (exit code 1)"
    )
    named("eats jobs", nodes.joined(draining=True, note=eaten))
    notice = "spot interruption: terminate at 2026-11-20T12:00:00Z"
    named("spot", nodes.joined(draining=True, note=notice))
    assert nodes.joined(draining=True, drain_reason="a new disk").kind == "draining"


def test_why_distinguishes_a_booting_node_from_a_failed_boot(nodes: Nodes) -> None:
    named("booting", explain_instance(nodes.facts()))
    late = datetime.now(UTC) + timedelta(minutes=25)
    named("boot failed", explain_instance(nodes.facts(at=late)))


def test_why_names_an_expired_lease(nodes: Nodes, cloud: Account) -> None:
    past = [{"Key": "trialfleet:expires", "Value": "2020-01-01T00:00:00Z"}]
    cloud.client("ec2").create_tags(Resources=[nodes.instance], Tags=past)
    named("lease", nodes.joined())


def test_why_explains_an_ended_node(nodes: Nodes, cloud: Account) -> None:
    cloud.client("ec2").terminate_instances(InstanceIds=[nodes.instance])
    named("ended", explain_instance(nodes.facts()))
    found = nodes.facts().node
    assert found is not None
    taken = "Server.SpotInstanceTermination: Spot instance termination"
    ended = replace(found.instance, ended=taken)
    named("spot ended", explain_instance(nodes.facts(instance=ended)))
    nodes.instance = "i-0ffffffffffffffff"
    named("lost", explain_instance(nodes.facts()))


def test_unreachable_sources_are_named(
    nodes: Nodes, cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.faults.refuse("DescribeInstances", "AuthFailure")

    def away(*_: object, **__: object) -> PoolView:
        raise PoolError("no HTCondor")

    monkeypatch.setattr(pool_demand, "read_pool", away)
    monkeypatch.setattr(pool_demand, "fleet_machines", away)
    answer = explain_instance(instance_facts(nodes.instance, nodes._folder.root))
    assert answer.kind == "unknown"
    assert "AuthFailure" in answer.why
    assert any("no HTCondor" in line for line in answer.evidence)


def test_a_node_is_not_lost_while_an_aws_region_of_the_fleet_lists_no_nodes(
    nodes: Nodes, cloud: Account
) -> None:
    cloud.client("s3").put_object(
        Bucket=f"trialfleet-demo-{ACCOUNT}", Key=f"fleet/demo/aws-regions/{AWAY}"
    )
    cloud.faults.refuse("DescribeInstances", "AuthFailure", aws_region=AWAY)
    assert nodes.joined().kind == "well"
    nodes.instance = "i-0ffffffffffffffff"
    answer = explain_instance(nodes.facts())
    assert answer.kind == "unknown"
    assert f"the instances in {AWAY}: AWS refused: AuthFailure" in answer.why
