"""Nodes of a real pool are listed and drained; a real graph waits for its provisioner."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.fleet.mock_aws.moto_account import account as new_account
from tests.fleet.mock_aws.nodes_at_hand import instance
from tests.fleet.mock_aws.small_world import World
from tests.pool.conftest import MakePool, make_pool, session_folder, work  # noqa: F401
from tests.pool.watching import WaitFor, active
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.scaling import draining
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler, Connections, Step
from trialfleet.infra.fleet.scaling.scaling_decision import Removal
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.embedded import Pool
from trialfleet.infra.pool.machines import Machine, Resources, RunningTrial

pytestmark = pytest.mark.pool
REALLY_SLEEP = time.sleep  # sleeps are skipped in a test's own AWS account

# A node of a fleet, with two simulated GPUs. As in production, the manager's user is administrator
# of the collector and not of the node.
NODE = """
GPU_DISCOVERY_EXTRA = -extra -simulate:4,2
TrialfleetFleet = "demo"
TrialfleetInstance = "i-1"
TrialfleetGpuHealthy = True
TrialfleetGpuReason = ""
TrialfleetBandwidth = 1380.5
TRIALFLEET = TrialfleetFleet TrialfleetInstance TrialfleetGpuHealthy TrialfleetGpuReason
STARTD_ATTRS = $(STARTD_ATTRS) $(TRIALFLEET) TrialfleetBandwidth
STARTD.ALLOW_ADMINISTRATOR = nobody@nowhere
"""
COUNTS = """\
#!/bin/bash
touch checkpoint
trap 'sleep 3; echo saved >> checkpoint; exit 85' TERM
while sleep 0.1; do :; done
"""
TRIAL = """
executable = trial.sh
request_gpus = 1
Requirements = HAS_GPU
request_cpus = 1
request_memory = 100MB
request_disk = 20MB
should_transfer_files = YES
when_to_transfer_output = ON_EXIT_OR_EVICT
transfer_output_files = checkpoint
checkpoint_exit_code = 85
transfer_checkpoint_files = checkpoint
log = log
My.TrialfleetRun = "r1"
My.TrialfleetRegion = "JFK"
My.TrialfleetNode = "JFK.l1.t03"
queue
"""


@pytest.fixture
def node_pool(make_pool: MakePool) -> Iterator[Pool]:  # noqa: F811
    with active(make_pool(extra=NODE, cpus=4)) as pool:
        yield pool


def submit_trial(folder: Path) -> None:
    (folder / "trial.sh").write_text(COUNTS)
    (folder / "trial.sub").write_text(TRIAL)
    subprocess.run(["condor_submit", "trial.sub"], cwd=folder, check=True, capture_output=True)


def removal(reason: str, *, only_idle: bool = False) -> Removal:
    return Removal(instance="i-1", reason=reason, only_idle=only_idle)


def the_node() -> Machine:
    (node,) = pool_demand.fleet_machines("demo", named=True)
    return node


@pytest.mark.usefixtures("node_pool")
def test_a_busy_node_is_drained_unless_the_drain_requires_an_idle_node(
    work: Path,  # noqa: F811
    wait_for: WaitFor,
) -> None:
    idle = the_node()
    assert (idle.instance, idle.healthy, idle.bandwidth) == ("i-1", True, 1380.5)
    assert idle.total.gpus == idle.free.gpus == 2
    assert idle.idle_since is not None
    assert 0 <= (datetime.now(UTC) - idle.idle_since).total_seconds() < 120
    assert pool_demand.fleet_machines("another") == ()

    submit_trial(work)
    wait_for(lambda: the_node().trials)
    busy = the_node()
    (unnamed,) = pool_demand.fleet_machines("demo")
    assert unnamed == replace(busy, trials=())
    assert busy.trials == (RunningTrial(run="r1", region="JFK", node="JFK.l1.t03"),)
    assert (busy.idle_since, busy.free.gpus) == (None, 1)
    view = pool_demand.read_pool("demo", "r1")
    assert (view.demand.running_trials, view.demand.waiting_trials) == (1, 0)
    (group,) = view.demand.active
    assert group.need == Resources(gpus=1, cpus=1, memory_mb=100)
    assert "HAS_GPU" in group.requirements
    assert group.since is not None
    assert pool_demand.read_pool(run="r2").demand == pool_demand.Demand()

    refusal = draining.drain(idle, removal("idle", only_idle=True))
    assert refusal.startswith("Draining check expression is false on slot1_1@")
    assert not the_node().draining

    messages: list[str] = []
    left = draining.drain_instances([instance("i-1"), instance("i-2")], "down", messages.append)
    assert left == []
    assert "waiting for JFK.l1.t03 on i-1 to leave" in messages
    drained = the_node()
    assert (drained.draining, drained.drain_reason) == (True, "trialfleet: down")
    assert (drained.idle_since is not None, drained.jobs) == (True, ())
    assert draining.undrained_nodes({"i-1", "i-2"}, pool_demand.fleet_machines()) == []
    # The trial waits with its checkpoint.
    wait_for(lambda: pool_demand.read_pool(run="r1").demand.waiting_trials == 1)
    assert "saved" in checkpoint_of_the_trial()
    assert draining.drain(drained, removal("again")) == ""


def test_grouped_queries_give_the_same_demand_as_a_query_of_each_job(
    make_pool: MakePool,  # noqa: F811
    work: Path,  # noqa: F811
    wait_for: WaitFor,
) -> None:
    with active(make_pool(extra=NODE + "START = False", cpus=4)):
        submit_various(work)
        wait_for(lambda: len(pool_demand.read_pool("demo").demand.idle) == 5)
        for run in ("r1", "r2", ""):
            each = schedd.query(
                pool_demand.TRIALS, pool_demand.GANG_ATTRIBUTES, as_text=pool_demand.AS_TEXT
            )
            plainly = pool_demand.read_demand(pool_demand.select_run(each, run))
            assert pool_demand.read_pool("demo", run).demand == plainly
            assert pool_demand.read_pool("demo", run, named=False).demand == plainly
        assert [group.jobs for group in plainly.idle] == [3, 37, 4, 4, 2]


def submit_various(work: Path) -> None:  # noqa: F811
    """Submit trials of two runs that ask for various things, two gangs and some on hold."""
    (work / "trial.sh").write_text(COUNTS)
    gang, run = "My.TrialfleetGangMin = 2", 'My.TrialfleetRun = "r1"'
    for changes, end in (
        ({}, "queue 30"),
        ({}, "queue"),
        ({"request_gpus = 1": "request_gpus = 2"}, "queue 3"),
        ({"HAS_GPU": "HAS_GPU && TrialfleetBandwidth > 900"}, "queue 2"),
        ({run: f"{run}\n{gang}"}, "queue 4"),
        ({run: f"{run}\n{gang}"}, "queue 4"),
        ({run: f"{run}\nhold = True"}, "queue 5"),
        ({"r1": "r2"}, "queue 6"),
    ):
        text = TRIAL.replace("\nqueue\n", f"\n{end}\n")
        for old, new in changes.items():
            text = text.replace(old, new)
        (work / "trial.sub").write_text(text)
        subprocess.run(["condor_submit", "trial.sub"], cwd=work, check=True, capture_output=True)


def checkpoint_of_the_trial() -> str:
    spool = subprocess.run(
        ["condor_config_val", "SPOOL"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return "".join(file.read_text() for file in Path(spool).rglob("checkpoint") if file.is_file())


@pytest.mark.usefixtures("node_pool")
def test_an_idle_node_is_drained_by_the_reason_given() -> None:
    assert draining.drain(the_node(), removal("idle for 10 minutes", only_idle=True)) == ""
    assert draining.drain_instances([instance("i-1")], "down", lambda _: None) == []
    assert the_node().drain_reason == "trialfleet: idle for 10 minutes"


def test_nodes_that_cannot_be_drained_are_reported(
    node_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(the_node(), slot="slot1@nowhere")
    assert "slot1@nowhere" in draining.drain(gone, removal("down"))
    monkeypatch.setattr(draining, "fleet_machines", lambda **_: [gone])
    (refused,) = draining.drain_instances([instance("i-1")], "down", lambda _: None)
    assert refused.startswith("i-1 can't be drained: ")
    monkeypatch.undo()
    node_pool.down(grace=0)
    (unknown,) = draining.drain_instances([instance("i-1")], "down", lambda _: None)
    assert unknown.startswith("the nodes can't be drained: ")


# --- The autoscaler, with a real pool and moto's AWS ----------------------------------------------


def test_an_idle_node_of_a_real_pool_is_drained_and_its_instance_ended(
    make_pool: MakePool,  # noqa: F811
    work: Path,  # noqa: F811
    wait_for: WaitFor,
) -> None:
    with new_account() as account, mock.patch("time.sleep", REALLY_SLEEP):
        here = World(account, name="demo", idle_minutes=0.05)
        here.waiting = 1
        (name,) = here.autoscaler().step().launched
        node = NODE.replace("i-1", name)
        with active(make_pool(extra=node, cpus=4)):
            scaler = Autoscaler(
                account.aws, here.fleet, Connections(inputs=none, choose=none), run="r1"
            )
            submit_trial(work)
            wait_for(lambda: scaler.step().nodes == {"busy": 1})
            subprocess.run(["condor_rm", "-all"], check=True, capture_output=True)
            steps: list[Step] = []
            while here.living():
                steps.append(scaler.step())
        drained, *_ = [removal for step in steps for removal in step.drained]
        (ended,) = [removal for step in steps for removal in step.terminated]
        assert drained.instance == ended.instance == name
        assert (
            ended.reason
            == f"it is drained: {drained.reason}"
            == "it is drained: idle for 0 minutes"
        )


def none(_aws: Aws, _fleet: Fleet, _tell: object = None) -> Any:
    raise FleetError("nothing may be launched")


# --- The graph's provisioner ----------------------------------------------------------------------

PROVISIONER = """\
import pathlib, time
from trialfleet.infra.fleet.htcondor.provisioning import Graph

graph = Graph()
assert not graph.is_started()
pathlib.Path("alive").touch()
while not pathlib.Path("joined").exists():
    assert not graph.is_over()
    time.sleep(0.2)
graph.start()
assert Graph().is_started()
while not graph.is_over():
    time.sleep(1)
"""
GRAPH = """\
PROVISIONER fleet provisioner.sub
SUBDAG EXTERNAL region region.dag
FINAL report nothing.sub
"""


def write_graph(folder: Path) -> None:
    (folder / "provisioner.py").write_text(PROVISIONER)
    (folder / "study.dag").write_text(GRAPH)
    (folder / "region.dag").write_text("JOB one nothing.sub\nJOB two nothing.sub\n")
    with (folder / "region.dag").open("a") as dag:
        dag.write("PARENT one CHILD two\n")
    (folder / "provisioner.sub").write_text(
        f"universe = scheduler\nexecutable = {sys.executable}\narguments = provisioner.py\n"
        "transfer_executable = false\noutput = out\nerror = err\nlog = provisioner.log\n"
        "getenv = PATH, CONDOR_CONFIG\nqueue\n"
    )
    (folder / "nothing.sub").write_text(
        f"executable = {shutil.which('true')}\ntransfer_executable = false\nlog = nothing.log\n"
        "request_memory = 50MB\nrequest_disk = 1MB\nqueue\n"
    )


@pytest.mark.usefixtures("node_pool")
def test_a_graph_waits_for_its_provisioner_which_ends_with_the_graph(
    work: Path,  # noqa: F811
    wait_for: WaitFor,
) -> None:
    write_graph(work)
    subprocess.run(["condor_submit_dag", "study.dag"], cwd=work, check=True, capture_output=True)
    wait_for((work / "alive").exists)
    assert not (work / "region.dag.condor.sub").exists()  # nothing starts before
    (work / "joined").touch()
    metrics = work / "study.dag.metrics"
    wait_for(metrics.exists)
    assert (work / "err").read_text() == ""
    assert '"exitcode":0' in metrics.read_text().replace(" ", "")
    assert (work / "nothing.log").read_text().count("Job terminated") == 3
