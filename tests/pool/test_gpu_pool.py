"""Nodes with GPUs, really configured: sick ones, shared ones, and which a trial prefers.

The GPUs are HTCondor's simulated ones, and the probe's words are played; the trials' submit files
are those of a study.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.pool.conftest import MakePool
from tests.pool.machines import Machine
from tests.pool.test_quoting import make_study, new_run
from tests.pool.watching import active
from trialfleet import RunState
from trialfleet.infra.fleet.nodes import configuration as node_config
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.manager import tokens
from trialfleet.infra.pool.user_namespace import identity
from trialfleet.nodes.bootstrap import configuration
from trialfleet.nodes.bootstrap.instance import Instance
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.facts.jobs.unpacking import unpack_result
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

REPOSITORY = Path(__file__).parents[2]
WaitFor = Callable[..., None]
# Names of condor_gpu_discovery's simulated GPUs, in the order in which it hands them out.
FIRST, SECOND, THIRD = "GPU-a0223334", "GPU-b1223334", "GPU-c2223334"
PROBE = """#!/bin/sh
cat {folder}/verdict
echo -
"""
# A machine among others on loopback, with simulated GPUs; its root is the account of this test.
PLACE = """
STARTD_NAME = {name}
SHARED_PORT_PORT = 0
SEC_TOKEN_SYSTEM_DIRECTORY = $(ETC)/tokens.d
SEC_TOKEN_DIRECTORY = $(ETC)/tokens.d
ALLOW_READ = $(ALLOW_READ), {account}@*
ALLOW_ADMINISTRATOR = $(ALLOW_ADMINISTRATOR), {account}@*
GPU_DISCOVERY_EXTRA = $(GPU_DISCOVERY_EXTRA) -simulate:4,{gpus}
STARTD_CRON_TRIALFLEET_PROBE_PERIOD = 1
UPDATE_INTERVAL = 2
NUM_CPUS = {cpus}
"""
# Some steps of the node's agent; there are no metadata, and nothing can be switched off.
AGENT = """
import sys
from pathlib import Path
from trialfleet.nodes.node_agent.htcondor_tools import Condor
from trialfleet.nodes.node_agent.watch import Agent
off = dict(cancel_switch=lambda: None, power_off=print, raise_fence=lambda _: False)
told = dict(tell_probe=lambda told: print(told.pool))
Agent({}, Condor(), 10.0, Path(sys.argv[1]), **off, **told).step()
"""


@dataclass
class Node:
    """A node; `probe` says what its probe finds from now on."""

    name: str
    machine: Machine

    def probe(self, bandwidth: float, sick: str = "") -> None:
        lines = [
            "TrialfleetGpuHealthy = true",
            f'TrialfleetSickGpus = "{sick}"',
            'TrialfleetGpuName = "A100"',
            f"TrialfleetBandwidth = {bandwidth}",
        ]
        beside = self.machine.folder / "verdict.new"
        beside.write_text("\n".join(lines) + "\n")
        beside.replace(self.machine.folder / "verdict")

    def agent_steps(self) -> str:
        state = str(self.machine.folder / "agent.json")
        done = self.machine.run(sys.executable, "-c", AGENT, state)
        assert done.returncode == 0, done.stderr
        return done.stdout


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(session_folder: Path, manager: Machine, port: int) -> Iterator[MakeNode]:
    made: list[Node] = []

    def make(name: str, *, gpus: int = 1, shares: int = 1, price: float | None = 1.0) -> Node:
        table = {"name": "demo", "aws_regions": ["eu-west-1"], "trials_per_gpu": shares}
        shared = node_config.render(Fleet.model_validate(table), f"127.0.0.1:{port}")
        place = PLACE.format(name=name, account=identity().account, gpus=gpus, cpus=2 + gpus)
        machine = Machine(session_folder / name, shared + place)
        made.append(Node(name, machine))
        probe = machine.folder / "probe"
        probe.write_text(PROBE.format(folder=machine.folder))
        probe.chmod(0o755)
        instance = Instance(
            id=f"i-{name}", type="p4d", zone="eu-west-1a", lifecycle="spot", price=price
        )
        own = configuration.text(instance, "no", str(machine.folder / "execute"), str(probe))
        (machine.folder / "etc/config.d/40-instance.conf").write_text(own)
        machine.give_token(manager.run(*tokens.command()).stdout)
        made[-1].probe(bandwidth=1000.0)
        machine.start()
        return made[-1]

    yield make
    for node in made:
        node.machine.remove()


def ads(manager: Machine, name: str, *attributes: str) -> str:
    """Return attributes of a node's own slot; nothing while the collector hasn't got it."""
    condition = f'PartitionableSlot && TrialfleetInstance == "i-{name}"'
    return manager.run("condor_status", "-constraint", condition, "-af", *attributes).stdout.strip()


def submit(manager: Machine, work: Path, number: int, program: str, **study: object) -> list[Path]:
    """Submit trials of a study for GPUs; return their folders."""
    planned = make_study(work, accelerator="gpu", budget={"trials": 9, "lanes": 9}, **study)
    (work / "go.sh").write_text(f"echo $CUDA_VISIBLE_DEVICES\n{program}\n")
    run = new_run(work, planned)
    region = RunFolder(run.folder).region("A")
    folders = sorted(region.trials.iterdir())[:number]
    for trial, folder in enumerate(folders):
        order = TrialOrder(
            region="A", node=folder.name, trial=trial, mode="tune", seed=1, params={"x": 0.5}
        )
        TrialFiles("r1", planned, RunFolder(run.folder), TrialFolder(folder), order).write()
        done = manager.run("sh", "-c", f"cd {folder} && condor_submit trial.sub")
        assert done.returncode == 0, done.stderr
    return folders


SMALL = {"cpus": 1, "memory": "20MB", "disk": "5MB"}


def logged(folders: list[Path], words: str) -> int:
    return sum(words in (folder / "log").read_text() for folder in folders)


def remove(manager: Machine, wait_for: WaitFor) -> None:
    manager.run("condor_rm", "-all")
    wait_for(lambda: manager.run("condor_q", "-all", "-af", "ClusterId").stdout == "", 30)


def test_a_sick_gpu_among_three_gets_no_trial_and_the_others_do(
    manager: Machine, make_node: MakeNode, work: Path, wait_for: WaitFor
) -> None:
    node = make_node("three", gpus=3)
    attributes = ("TotalGPUs", "HAS_GPU", "OfflineGPUs")
    wait_for(lambda: ads(manager, "three", *attributes) == "3 true undefined", 40)
    node.probe(1000.0, sick=FIRST)
    wait_for(lambda: ads(manager, "three", *attributes) == "3 false undefined", 20)
    node.agent_steps()
    wait_for(lambda: ads(manager, "three", *attributes) == f"2 true {FIRST}", 20)
    trials = submit(manager, work, 3, "sleep 4", resources=SMALL)
    wait_for(lambda: logged(trials, "Job executing") == 2, 40)
    wait_for(lambda: ads(manager, "three", "GPUs") == "0", 20)
    wait_for(lambda: logged(trials, "Job terminated") == 3, 60)
    for folder in trials:
        unpack_result(TrialFolder(folder), TrialFolder(folder).left)
    used = {(folder / "out").read_text()[: len(FIRST)] for folder in trials}
    assert used == {SECOND, THIRD}

    node.probe(1000.0)  # it was only hot
    wait_for(lambda: ads(manager, "three", "NumDynamicSlots") == "0", 40)
    wait_for(lambda: ads(manager, "three", "TrialfleetSickGpus") == "", 20)
    node.agent_steps()
    wait_for(lambda: ads(manager, "three", "TotalGPUs", "HAS_GPU") == "3 true", 20)


def test_a_trial_only_runs_on_a_gpu_divided_as_it_requests(
    manager: Machine, make_node: MakeNode, work: Path, wait_for: WaitFor
) -> None:
    make_node("half", shares=2, price=0.01)
    make_node("whole")
    asked = ("TotalGPUs", "TrialfleetTrialsPerGpu", "HAS_GPU")
    wait_for(lambda: ads(manager, "half", *asked) == "2 2 true", 40)
    wait_for(lambda: ads(manager, "whole", *asked) == "1 1 true", 40)
    memory = [int(ads(manager, name, "GPUs_GlobalMemoryMb")) for name in ("half", "whole")]
    assert memory[0] == memory[1] // 2
    shares = submit(manager, work, 3, "sleep 30", resources={**SMALL, "gpus": 0.5})
    wait_for(lambda: logged(shares, "Job executing") == 2, 40)
    wait_for(lambda: ads(manager, "half", "GPUs") == "0", 20)
    running = [folder for folder in shares if logged([folder], "Job executing")]
    assert logged(running, "slot1_1@half") + logged(running, "slot1_2@half") == 2
    (work / "second").mkdir()
    wholes = submit(manager, work / "second", 1, "true", resources=SMALL)
    wait_for(lambda: logged(wholes, "Job terminated") == 1, 40)
    assert logged(wholes, "@whole") == 1, "the cheaper one is not for whole GPUs"
    assert logged(shares, "Job executing") == 2, "the third waits, with a whole GPU beside it"
    remove(manager, wait_for)


def test_trials_prefer_gpus_with_the_most_bandwidth_per_dollar(
    manager: Machine, make_node: MakeNode, work: Path, wait_for: WaitFor
) -> None:
    # GB/s per USD and hour: 1000 x 3 / 4, 2000 / 8, nothing known; the smallest comes last.
    make_node("best", gpus=3, price=4.0)
    make_node("dear", price=8.0).probe(bandwidth=2000.0)
    make_node("unknown", price=None).probe(bandwidth=9000.0)
    value = "TrialfleetBandwidthPerDollar"
    for name, worth in (("best", "750"), ("dear", "250"), ("unknown", "0")):
        wait_for(lambda name=name, worth=worth: ads(manager, name, value).startswith(worth), 40)
    trials = submit(manager, work, 4, "sleep 30", resources=SMALL)
    wait_for(lambda: logged(trials, "Job executing") == 4, 60)
    where = [
        node for node in ("best", "dear", "unknown") for f in trials if logged([f], f"@{node}")
    ]
    assert where == ["best"] * 3 + ["dear"]
    remove(manager, wait_for)
    (work / "own").mkdir()
    own = {**SMALL, "rank": 'TrialfleetInstance == "i-unknown"'}
    trials = submit(manager, work / "own", 1, "true", resources=own)
    wait_for(lambda: logged(trials, "Job terminated") == 1, 40)
    assert logged(trials, "@unknown") == 1, "the user's own rank counts alone"


def test_a_nodes_agent_gives_the_probe_the_bandwidths_of_other_nodes(
    manager: Machine, make_node: MakeNode, wait_for: WaitFor
) -> None:
    here = make_node("here")
    make_node("there").probe(bandwidth=800.0)
    wait_for(lambda: ads(manager, "here", "HAS_GPU") == "true", 40)
    wait_for(lambda: ads(manager, "there", "TrialfleetBandwidth") == "800.0", 40)
    assert here.agent_steps() == "{'A100': (800.0,)}\n"


@pytest.mark.thorough
def test_an_embedded_pool_shares_its_gpus_with_the_settings_of_the_docs(
    make_pool: MakePool, make_run: MakeRun
) -> None:
    manual = (REPOSITORY / "docs/gpu.md").read_text()
    (lines,) = re.findall(r"```text\n(GPU_DISCOVERY_EXTRA.*?)```", manual, re.DOTALL)
    simulated = "GPU_DISCOVERY_EXTRA = $(GPU_DISCOVERY_EXTRA) -simulate:4,1\n"
    with active(make_pool(extra=lines + simulated)) as own:
        small = {"memory": "100MB", "disk": "20MB", "gpus": 0.25}
        budget = {"trials": 1, "lanes": 1}
        run = make_run(accelerator="gpu", resources=small, budget=budget)
        run.submit()
        assert run.wait().state is RunState.DONE
        assert own.status().machines[0].free.gpus == 4
