"""Nodes with problems at boot: which of them join, what the others report, which get jobs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.fleet.in_lab.fleet_in_lab import KIND, Fleet
from tests.fleet.lab.lab import Lab, Machine
from tests.fleet.lab.moto_side import EVERYTHING
from tests.fleet.lab.project import PROGRAM, Project
from tests.fleet.lab.stand_in_nvidia import uuid
from trialfleet.infra.fleet.spec import names
from trialfleet.nodes.bootstrap import configuration, driver, log, settings

LAB = {"manager_image": "prepared"}
OWN_SECONDS = 20  # of our own steps at most, from boot to joined, on an image that is prepared
IDLE = 1  # HTCondor's number for it

pytestmark = pytest.mark.thorough


# --- Nodes that may not join ----------------------------------------------------------------------

SOON = "import trialfleet.infra.fleet.lifecycle.up as up\nup.BOOT_MINUTES = 3"
WHY = {
    "tokenless": "ParameterNotFound: Parameter /trialfleet/tokenless/node-token not found",
    "denied": "is not authorized to perform: ssm:GetParameter",
    "stranger": "the manager rejects this node's token",
}


@dataclass(frozen=True)
class Doomed:
    """A node that can't join, and what its log says of that."""

    fleet: Fleet
    node: Machine
    why: str

    def message(self) -> str:
        """Return why it has not joined by `fleet status`, as soon as that knows."""
        status = self.fleet.status(self.node)
        assert status["stage"] == "booted"
        assert status["why"].startswith("not in the pool")
        return str(status["why"]) if self.why in status["why"] else ""


@pytest.fixture(scope="module")
def doomed(project: Project) -> dict[str, Doomed]:
    """Nodes that have three minutes to boot, and no right to the pool; each is of its own fleet."""
    fleets = {name: Fleet.of(project, name) for name in WHY}
    for fleet in fleets.values():
        fleet.up(0, altered=SOON)
    give_other_token(fleets["stranger"])
    deny_token(fleets["denied"])
    delete_token(fleets["tokenless"])
    return {name: Doomed(fleet, fleet.launch(), WHY[name]) for name, fleet in fleets.items()}


def give_other_token(fleet: Fleet) -> None:
    """Give the nodes a token by a key that has the name of the manager's, and is another."""
    make = """
        mkdir -p /root/keys && head -c 64 /dev/urandom > /root/keys/trialfleet
        chmod -R go= /root/keys
        condor_token_create -identity node@trialfleet -key trialfleet -lifetime 86400
    """
    keys = {"_CONDOR_SEC_PASSWORD_DIRECTORY": "/root/keys"}
    token = fleet.project.manager.run(make, env=keys, check=True).stdout.strip()
    name = names.token_parameter(fleet.name)
    fleet.lab.aws(
        "ssm", "put_parameter", Name=name, Value=token, Type="SecureString", Overwrite=True
    )


def delete_token(fleet: Fleet) -> None:
    """Have no token for the nodes."""
    fleet.lab.aws("ssm", "delete_parameter", Name=names.token_parameter(fleet.name))


def deny_token(fleet: Fleet) -> None:
    """Don't let the nodes read their token."""
    role = {"RoleName": names.resource_name(fleet.name)}
    (name,) = fleet.lab.aws("iam", "list_role_policies", **role)["PolicyNames"]
    policy = fleet.lab.aws("iam", "get_role_policy", PolicyName=name, **role)["PolicyDocument"]
    text = json.dumps(policy_without(policy, "ssm:GetParameter"))
    fleet.lab.aws("iam", "put_role_policy", PolicyName=name, PolicyDocument=text, **role)


def policy_without(policy: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Return a policy that doesn't allow an action."""
    left = [
        {**one, "Action": [allowed for allowed in one["Action"] if allowed != action]}
        for one in policy["Statement"]
    ]
    return {**policy, "Statement": [one for one in left if one["Action"]]}


@pytest.mark.parametrize("name", WHY)
def test_status_says_why_a_node_has_not_joined(
    doomed: dict[str, Doomed], lab: Lab, name: str
) -> None:
    print(lab.wait_for(doomed[name].message, f"why {name} has not joined", 55))


# --- Permissions ----------------------------------------------------------------------------------


def test_up_names_a_missing_permission_and_down_deletes_what_up_made(
    project: Project, lab: Lab
) -> None:
    fleet = Fleet.of(project, "poor")
    policies = project.run(f"{PROGRAM} fleet plan --policy poor.yaml")
    lab.allow(policy_without(json.loads(policies)["caller"], "ec2:RunInstances"))
    try:
        refused = fleet.call("up")
        made = resources_named(fleet.name, lab)
        left = fleet.call("down")
    finally:
        lab.allow(EVERYTHING)
    assert refused.returncode == 1
    assert "the permission ec2:RunInstances is denied" in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
    assert fleet.nodes() == []
    assert len(made) == 6
    assert left.returncode == 0
    assert "everything is deleted" in left.stdout
    assert resources_named(fleet.name, lab) == []


def resources_named(name: str, lab: Lab) -> list[Any]:
    """Return what AWS has that carries the name of a fleet, but for instances."""
    found = [
        lab.aws("ec2", "describe_launch_templates")["LaunchTemplates"],
        lab.aws("ec2", "describe_security_groups")["SecurityGroups"],
        lab.aws("iam", "list_roles")["Roles"],
        lab.aws("iam", "list_instance_profiles")["InstanceProfiles"],
        lab.aws("s3", "list_buckets")["Buckets"],
        lab.aws("ssm", "describe_parameters")["Parameters"],
    ]
    return [one for kind in found for one in kind if name in str(one)]


# --- The GPU --------------------------------------------------------------------------------------

# The GPU has fallen off the bus.
SICK = "Xid 79 in the kernel's log, of a GPU that the driver doesn't list"
RESOURCES = {"memory": "100MB", "disk": "20MB", "requirements": 'TrialfleetFleet == "mixed"'}


def test_a_trial_waits_for_a_node_with_a_healthy_gpu(project: Project, lab: Lab) -> None:
    fleet = Fleet.of(project, "mixed")
    lab.configure(hardware={"readings": {"xids": [79]}})
    up = fleet.call("up", "--nodes", "1", "--wait")
    (sick,) = fleet.nodes()
    assert up.returncode == 1
    error = f"{sick.id} is sick: its GPU failed the probe: {SICK}"
    assert f"1 of 1 node(s) accept no trials: {error}" in " ".join(up.stderr.split())
    lab.configure(hardware={})
    ad = fleet.wait_until_joined(sick)
    assert (ad["TrialfleetGpuHealthy"], ad["TrialfleetGpuReason"]) == (False, SICK)
    assert ad["TotalGPUs"] == 1
    lacking = f'TrialfleetInstance == "{sick.id}" && HAS_GPU is false'
    lab.wait_for(lambda: project.slots(lacking), "a slot that says it")
    status = fleet.status(sick)
    assert (status["stage"], status["why"]) == ("sick", f"its GPU failed the probe: {SICK}")

    budget = {"trials": 1, "lanes": 1}
    folder = project.submit(project.write_study(name="waits", budget=budget, resources=RESOURCES))
    lab.wait_for(project.trials, "the trial in the queue")
    time.sleep(6)  # the negotiator matches each second
    assert [job["JobStatus"] for job in project.trials()] == [IDLE]
    up = fleet.call("up", "--nodes", "2", "--wait")
    assert up.returncode == 1, "one of the two is still sick"
    (healthy,) = [node for node in fleet.nodes() if node != sick]
    lab.wait_for(lambda: project.records(folder), "the trial's result")
    logs = project.file("waits/regions/A/trials/*/log")
    hosts = set(re.findall(r"executing on host: <([\d.]+):", logs))
    assert hosts == {healthy.instance()["address"]}
    project.run("condor_rm -all")
    fleet.end()


def test_a_sick_gpu_goes_offline_without_the_other_gpu_of_its_node(
    project: Project, lab: Lab
) -> None:
    fleet = Fleet.of(project, "pair")
    gpus = [{"index": n, "uuid": uuid(n), "bandwidth": 500.0, "xids": [79][n:]} for n in (0, 1)]
    lab.configure(hardware={"gpus": 2, "readings": {"gpus": gpus}})
    fleet.up(1)
    node = fleet.switched_on(fleet.nodes()[0])
    lab.configure(hardware={})
    fleet.wait_until_joined(node)
    fit = f'TrialfleetInstance == "{node.id}" && HAS_GPU is true'
    (ad,) = lab.wait_for(lambda: project.slots(fit), "the agent has taken the sick GPU offline")
    assert (ad["OfflineGPUs"], ad["TotalGPUs"]) == (uuid(0)[: len("GPU-00000000")], 1)
    status = fleet.status(node)
    assert (status["stage"], status["why"]) == ("joined", "GPU 0: Xid 79 in the kernel's log")
    fleet.end()


# --- The driver's option --------------------------------------------------------------------------

# The machine's hardware, its ad, its number of reboots, and its log.
DRIVERS: dict[str, tuple[dict[str, Any], str, int, str]] = {
    "absent": ({"installed": False, "option": "known"}, driver.SET, 0, "driver is being installed"),
    "already 0": ({"option": "known"}, driver.ALREADY, 0, ""),
    "loaded": (
        {"option": "known", "module": "nvidia-current-open"},
        driver.SET,
        1,
        "rebooting once",
    ),
    "refused": ({"option": "refused"}, driver.STILL, 1, "rebooting once"),
    "unknown": ({"option": "absent"}, driver.NO_LONGER, 0, ""),
}
SET_BY_THE_IMAGE = """#!/bin/sh
echo 'options nvidia NVreg_CheckPCIConfigSpace=0' > /etc/modprobe.d/image.conf
modprobe -r nvidia && modprobe nvidia
cat > /root/user-data <<'END'
{}
END
exec python3 /root/user-data
"""


@pytest.fixture(scope="module")
def drivers(project: Project) -> Iterator[tuple[Fleet, dict[str, Machine]]]:
    """A fleet, and a node of it for each case, all of them booting."""
    fleet, lab = Fleet.of(project, "drivers"), project.lab
    fleet.up(0)
    first_boot = {"already 0": SET_BY_THE_IMAGE.format(fleet.user_data())}
    nodes = {}
    for name, (hardware, *_) in DRIVERS.items():
        lab.configure(hardware=hardware)
        nodes[name] = fleet.launch(first_boot.get(name, ""))
    lab.configure(hardware={})
    yield fleet, nodes
    fleet.end()


@pytest.mark.parametrize("name", DRIVERS)
def test_a_node_advertises_the_state_of_the_drivers_option(
    drivers: tuple[Fleet, dict[str, Machine]], name: str
) -> None:
    fleet, nodes = drivers
    node, (hardware, option, reboots, line) = nodes[name], DRIVERS[name]
    advertised = fleet.wait_until_joined(node)["TrialfleetDriverOption"]
    print(f"{name}: {advertised}")
    assert advertised == option
    assert node.log().count("systemd (stand-in): reboot") == reboots
    assert line in node.read(log.FILE)
    module = hardware.get("module", "nvidia")
    assert node.read(driver.FILE) == f"options {module} NVreg_CheckPCIConfigSpace=0\n"
    so = re.findall(r"CheckPCIConfigSpace: (\d)", node.read(driver.PARAMS))
    assert so == {driver.NO_LONGER: [], driver.STILL: ["1"]}.get(option, ["0"])


# --- Nodes whose time to boot is over -------------------------------------------------------------


@pytest.mark.parametrize("name", WHY)
def test_a_node_that_cannot_join_switches_itself_off(
    doomed: dict[str, Doomed], lab: Lab, name: str
) -> None:
    fleet, node = doomed[name].fleet, doomed[name].node
    lab.wait_for(lambda: node.instance()["state"] == "terminated", "its end", 120)
    assert node.instance()["reason"] == "Client.InstanceInitiatedShutdown"
    assert "poweroff" in node.log()
    last = fleet.log(node).splitlines()[-1]
    assert "failed: " in last
    assert WHY[name] in last
    status = fleet.status(node)
    assert status["stage"] == "ended"
    ended = "it has ended: it switched itself off; its log ends: "
    assert status["why"].startswith(ended + last[:200])


# --- Capacity -------------------------------------------------------------------------------------


def test_up_reports_a_full_zone_and_starts_the_node_in_another(project: Project, lab: Lab) -> None:
    fleet = Fleet.of(project, "elsewhere")
    lab.ask("full", "us-east-1a")
    lab.ask("deny", "ec2:CreateFleet")
    assert "ec2:CreateFleet is denied" in " ".join(fleet.call("up", "--nodes", "1").stderr.split())
    lab.ask("permit")
    printed = fleet.up(1, "--wait")
    lab.ask("room")
    assert re.search(rf"{KIND} spot in us-east-1a .*no capacity", printed)
    (node,) = fleet.nodes()
    assert node.instance()["zone"] == "us-east-1b"
    assert fleet.wait_until_joined(node)["TrialfleetZone"] == "us-east-1b"
    fleet.end()


# --- An image of one's own ------------------------------------------------------------------------

# The image is the disk of the machine that was prepared; that of a node that boots from it, too.
FROM_THE_IMAGE = """#!/bin/sh
test -e /root/is-image || exit 0
cat > /root/user-data <<'END'
{}
END
exec python3 /root/user-data
"""
CLOUD_INIT = '#!/bin/sh\ntest "$1" = clean && rm -r /var/lib/cloud/instances\n'


@pytest.fixture(scope="module")
def baked(project: Project) -> tuple[Fleet, Machine]:
    """A machine that what `bake` prints has prepared, of a fleet of its own."""
    fleet = Fleet.of(project, "baked")
    fleet.up(0)
    machine = fleet.launch(FROM_THE_IMAGE.format(fleet.user_data()))
    machine.wait_for_boot()
    machine.write("/usr/bin/cloud-init", CLOUD_INIT)
    machine.write("/root/prepare", project.run(f"{PROGRAM} fleet bake baked.yaml"))
    line = "chmod +x /usr/bin/cloud-init && sh /root/prepare && touch /root/is-image"
    print(machine.run(line, check=True).stdout)
    return fleet, machine


def test_the_bake_script_installs_htcondor_and_removes_the_machines_own_files(
    baked: tuple[Fleet, Machine], project: Project
) -> None:
    _, machine = baked
    assert "CondorVersion" in machine.run(["condor_version"]).stdout
    assert "NVreg_CheckPCIConfigSpace=0" in machine.read(driver.FILE)
    for verb, answer in (("is-active", "inactive"), ("is-enabled", "disabled")):
        assert machine.run(["systemctl", verb, "condor"]).stdout == f"{answer}\n"
    own = (settings.FILE, configuration.TOKEN, configuration.INSTANCE, "/etc/machine-id")
    assert [machine.read(file) for file in own] == ["", "", "", ""]
    assert machine.id not in machine.read(log.FILE)
    assert machine.run(["test", "-e", "/run/systemd/shutdown/scheduled"]).returncode == 1
    assert machine.id not in project.joined()


def test_the_bootstrap_takes_seconds_on_a_prepared_image(
    baked: tuple[Fleet, Machine], lab: Lab
) -> None:
    fleet, machine = baked
    machine.run(["systemctl", "reboot"])
    fleet.wait_until_joined(machine)
    lab.wait_for(lambda: "join: joined" in fleet.log(machine), "the end of its log")
    log_parts = fleet.log(machine).partition(" user data: ")
    lines = f"{log_parts[0].splitlines()[-1]}{log_parts[1]}{log_parts[2]}".splitlines()
    print("\n".join(lines))
    assert any("htcondor: 25" in line and "present" in line for line in lines)
    first, last = (datetime.fromisoformat(line.split()[0]) for line in (lines[0], lines[-1]))
    print(f"our own steps took {(last - first).total_seconds():.0f} s")
    assert (last - first).total_seconds() <= OWN_SECONDS
    fleet.end()


# --- The doctor -----------------------------------------------------------------------------------


def test_the_doctor_finds_a_dead_manager_and_its_advice_repairs_it(project: Project) -> None:
    fleet, manager = Fleet.of(project, "checked"), project.manager
    manager.run("systemctl stop condor && rm /etc/trialfleet/node.token", check=True)
    broken = fleet.call("doctor")
    assert broken.returncode == 1
    output = " ".join(broken.stdout.split())
    assert "9618: Connection refused → `sudo trialfleet manager install` makes" in output
    assert "/etc/trialfleet/node.token can't be read" in output
    assert "`sudo trialfleet manager token` on the manager makes a new one" in output
    assert output.count("wrong ") == 2

    project.install()
    manager.run([str(PROGRAM), "manager", "token"], check=True)
    repaired = fleet.call("doctor", "--json")
    assert repaired.returncode == 0
    found = {finding["check"]: finding for finding in json.loads(repaired.stdout)}
    assert not [finding for finding in found.values() if finding["ok"] is False]
    for check in ("credentials", "clock", "manager", "HTCondor", "token of the nodes"):
        assert found[check]["ok"] is True
