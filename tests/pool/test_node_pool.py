"""A node with its real configuration, in a pool with its manager; GPU and probe are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pool.machines import Machine
from trialfleet.infra.fleet.nodes import configuration as node_config
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.manager import tokens
from trialfleet.nodes.bootstrap import configuration
from trialfleet.nodes.bootstrap.host import Host
from trialfleet.nodes.bootstrap.instance import Instance

WaitFor = Callable[..., None]
FLEET = Fleet.model_validate({"name": "demo", "aws_regions": ["eu-west-1"]})
INSTANCE = Instance(
    id="i-0123456789abcdef0", type="g5.xlarge", zone="eu-west-1a", lifecycle="spot", price=0.4321
)
# Like `python3 -m trialfleet.nodes.probe`: prints a file's text, and notes each call.
PROBE = """#!/bin/sh
echo "$* $PYTHONPATH" >> {folder}/probed
cat {folder}/verdict
echo -
"""
SICK = 'TrialfleetGpuHealthy = false\nTrialfleetGpuReason = "Xid 79"\n'
WELL = 'TrialfleetGpuHealthy = true\nTrialfleetGpuReason = ""\n'
# A machine among others on loopback, with a GPU that is simulated.
PLACE = """
SHARED_PORT_PORT = 0
SEC_TOKEN_SYSTEM_DIRECTORY = $(ETC)/tokens.d
SEC_TOKEN_DIRECTORY = $(ETC)/tokens.d
GPU_DISCOVERY_EXTRA = -extra -simulate:4,1
STARTD_CRON_TRIALFLEET_PROBE_PERIOD = 1
NUM_CPUS = 2
"""


@pytest.fixture(scope="module")
def node(session_folder: Path, manager: Machine, port: int) -> Iterator[Machine]:
    shared = node_config.render(FLEET, f"127.0.0.1:{port}")
    machine = Machine(session_folder / "node", shared + PLACE)
    (machine.folder / "verdict").write_text(SICK)
    probe = machine.folder / "probe"
    probe.write_text(PROBE.format(folder=machine.folder))
    probe.chmod(0o755)
    execute = str(machine.folder / "execute")
    own = configuration.text(INSTANCE, "driver no longer checks", execute, str(probe))
    (machine.folder / "etc/config.d/40-instance.conf").write_text(own)
    configuration.write_verdict(Host(machine.folder), SICK)
    written = machine.folder / configuration.PROBED.lstrip("/")
    written.rename(machine.folder / "etc/config.d/45-probe.conf")
    machine.give_token(manager.run(*tokens.command()).stdout)
    try:
        machine.start()
        yield machine
    finally:
        machine.remove()


def attribute(manager: Machine, *names: str) -> str:
    found = manager.run("condor_status", "-constraint", "PartitionableSlot", "-af", *names)
    return found.stdout.strip()


def submit(manager: Machine, folder: Path, requirements: str, program: str) -> None:
    (folder / "job.sh").write_text(f"#!/bin/sh\n{program}\n")
    description = f"""
    executable = {folder}/job.sh
    initialdir = {folder}
    log = log
    output = out
    requirements = {requirements}
    request_gpus = 1
    request_memory = 50MB
    request_disk = 1MB
    should_transfer_files = YES
    queue
    """
    (folder / "job.sub").write_text(description)
    done = manager.run("condor_submit", str(folder / "job.sub"))
    assert done.returncode == 0, done.stderr


def test_a_sick_gpu_gets_no_trial_until_the_probe_finds_it_healthy(
    manager: Machine, node: Machine, work: Path, wait_for: WaitFor
) -> None:
    wait_for(lambda: attribute(manager, "TrialfleetInstance") == INSTANCE.id, 30)
    asked = ("TotalGPUs", "HAS_GPU", "TrialfleetGpuReason")
    assert attribute(manager, *asked) == "1 false Xid 79"
    submit(manager, work, "HAS_GPU", "echo $PATH; sleep 5")
    wait_for(lambda: probed(node) >= 2, 30)
    assert "Job executing" not in (work / "log").read_text()
    (node.folder / "verdict").write_text(WELL)
    wait_for(lambda: "Job executing" in (work / "log").read_text(), 40)
    assert attribute(manager, "HAS_GPU") == "true"
    before = probed(node)
    assert manager.run("condor_wait", "-wait", "60", str(work / "log")).returncode == 0
    assert probed(node) - before <= 2, "the probe ran beside the trial"
    assert (work / "out").read_text().strip() == ":".join(configuration.JOB_PATH)
    wait_for((node.folder / "log/startd_history").exists, 20)
    assert node.folder.joinpath("probed").read_text().splitlines()[0] == (
        "-m trialfleet.nodes.probe /opt/trialfleet/lib"
    )


def probed(node: Machine) -> int:
    file = node.folder / "probed"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.usefixtures("node")
def test_the_pool_describes_the_instance(manager: Machine, wait_for: WaitFor) -> None:
    wait_for(lambda: attribute(manager, "TrialfleetInstance") == INSTANCE.id, 30)
    asked = ("Fleet", "InstanceType", "Zone", "Lifecycle", "PricePerHour", "DriverOption")
    assert attribute(manager, *(f"Trialfleet{name}" for name in asked)) == (
        "demo g5.xlarge eu-west-1a spot 0.4321 driver no longer checks"
    )


@pytest.mark.usefixtures("node")
def test_a_node_that_drains_says_why(manager: Machine, wait_for: WaitFor) -> None:
    wait_for(lambda: attribute(manager, "TrialfleetInstance") == INSTANCE.id, 30)
    assert attribute(manager, "TrialfleetNote") == ""
    name = attribute(manager, "Name")
    drained = manager.run("condor_drain", "-graceful", "-reason", "spot interruption", name)
    assert drained.returncode == 0, drained.stderr
    wait_for(lambda: attribute(manager, "TrialfleetNote") == "spot interruption", 30)
    assert manager.run("condor_drain", "-cancel", name).returncode == 0
    wait_for(lambda: attribute(manager, "TrialfleetNote") == "", 30)
