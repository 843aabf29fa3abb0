"""Nodes with real systemd, cloud-init, networkd, apt and HTCondor package: `real_machine`.

The main loop (boot, join, a restart of the network, a reboot) is part of `make test`, so of CI.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fleet.in_lab.work_in_lab import FIRST, Work
from tests.fleet.lab.debian_image import why_none
from tests.fleet.lab.lab import REPOSITORY, Lab, Machine
from tests.fleet.lab.project import Project

LAB = {"real": True}
pytestmark = [
    pytest.mark.skipif(bool(why_none()), reason=f"no real node: {why_none()}"),
    pytest.mark.timeout(900),  # the first one waits for Debian's image
]
STEP = {"seconds": 0.5, "steps": 30}  # a trial of 15 s
ONE = {"trials": 1, "lanes": 1}
BOOTS = 120  # seconds, at most, until a node is in the pool
ASK_METADATA = """
curl --silent --show-error --max-time 5 --request PUT \
    --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token
"""
AS_A_JOB = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "sh", "-c")
# One of the services that systemd's timers start works at apt's lists or packages, until the test
# lets it go on; only then does the bootstrap begin.
LOG = "/var/log/trialfleet-bootstrap.log"
HELD, GO_ON = "/run/lab-holds-apt", "/run/lab-goes-on"
WAIT = f'"touch {HELD}; until test -e {GO_ON}; do sleep 0.1; done";'
ANY_ORIGIN = 'Unattended-Upgrade::Origins-Pattern:: "origin=*";'
HOOKS = {
    "apt-daily": f"APT::Update::Pre-Invoke {{ {WAIT} }};",
    "apt-daily-upgrade": f"DPkg::Pre-Invoke {{ {WAIT} }}; {ANY_ORIGIN}",
}


@pytest.fixture(scope="module")
def node(project: Project, lab: Lab) -> Machine:
    """A node that has booted itself into the pool."""
    print(project.trialfleet("fleet", "up", project.write_study(), "--nodes", "1", "--wait"))
    return lab.machine(lab.wait_for(project.joined, "the node in the pool", BOOTS).pop())


def test_a_bare_instance_boots_itself_into_the_pool(node: Machine, project: Project) -> None:
    node.wait_for_boot()
    assert node.read("/proc/1/comm") == "systemd\n"
    assert node.run("cloud-init status --long").stdout.count("DataSourceEc2Local") == 1
    assert node.run("systemctl --failed --quiet").stdout == ""
    version = project.run("condor_version | sed -n 's/.*CondorVersion: \\([0-9.]*\\).*/\\1/p'")
    assert node.run("dpkg-query --show condor").stdout.startswith(f"condor\t{version.strip()}")
    (slot,) = project.slots("HAS_GPU")
    assert slot["TrialfleetInstance"] == node.id


def test_a_node_that_joined_does_not_switch_itself_off(node: Machine, lab: Lab) -> None:
    scheduled = "test -e /run/systemd/shutdown/scheduled"
    lab.wait_for(lambda: node.run(scheduled).returncode, "the end of the dead man's switch")


def test_jobs_cannot_ask_the_metadata_even_after_the_network_restarted(node: Machine) -> None:
    assert node.run(ASK_METADATA).returncode == 0
    assert node.run([*AS_A_JOB, ASK_METADATA]).returncode != 0
    node.run("systemctl restart systemd-networkd && networkctl reload", check=True)
    node.run("/usr/lib/systemd/systemd-networkd-wait-online", check=True)
    assert node.run(ASK_METADATA).returncode == 0
    refused = node.run([*AS_A_JOB, ASK_METADATA])
    assert refused.returncode != 0, "a job reads the metadata"


def test_a_node_that_reboots_comes_back_by_itself(
    node: Machine, project: Project, lab: Lab
) -> None:
    boot = node.read("/proc/sys/kernel/random/boot_id")
    since = started(project, node)
    node.run("systemctl reboot")
    lab.wait_for(lambda: started(project, node) > since, "the node in the pool again", BOOTS)
    assert node.read("/proc/sys/kernel/random/boot_id") != boot
    assert node.instance()["state"] == "running"
    assert node.run([*AS_A_JOB, ASK_METADATA]).returncode != 0
    assert node.run("systemctl --failed --quiet").stdout == ""
    scheduled = "test -e /run/systemd/shutdown/scheduled"
    lab.wait_for(lambda: node.run(scheduled).returncode, "the end of the dead man's switch")


def started(project: Project, node: Machine) -> int:
    """Return when the node's startd started, as the pool has it; 0 while it is not there."""
    found = project.slots(f'TrialfleetInstance == "{node.id}"')
    return max((slot["DaemonStartTime"] for slot in found), default=0)


@pytest.mark.thorough
def test_an_expired_lease_saves_the_trial_and_powers_the_node_off(
    node: Machine, project: Project, lab: Lab
) -> None:
    work = Work(project, "leased", STEP, budget=ONE)
    lab.wait_for(work.where, "a trial that runs", BOOTS)
    time.sleep(3)  # some steps
    # Somebody installs packages, without an end: apt asks systemd-logind for just this.
    upgrade = "systemd-inhibit --what=shutdown --mode=block --who=apt --why=test sleep 1000"
    node.run(f"systemd-run {upgrade}", check=True)
    refused = "systemd-inhibit --list --mode=block --no-legend | grep test"
    lab.wait_for(lambda: node.run(refused).stdout, "the inhibitor")
    assert node.run("shutdown -P +60").returncode != 0
    tags = [{"Key": "trialfleet:expires", "Value": "2020-01-01T00:00:00Z"}]
    lab.aws("ec2", "create_tags", Resources=[node.id], Tags=tags)
    lab.wait_for(lambda: node.instance()["state"] == "terminated", "the instance's end", 60)
    assert node.instance()["reason"] == "Client.InstanceInitiatedShutdown"
    assert "Powering off" in node.log() or "Reached target poweroff.target" in node.log()
    assert work.saved(FIRST) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("service", HOOKS)
def test_a_node_waits_until_apt_is_free(service: str, project: Project, lab: Lab) -> None:
    lab.configure(files=holding_apt(service))
    before = {found["id"] for found in lab.instances("running")}
    project.trialfleet("fleet", "up", project.write_study(), "--nodes", str(len(before) + 1))
    (new,) = {found["id"] for found in lab.instances("running")} - before
    node = lab.machine(new)
    lab.ask("pid", new)  # it is switched on: its disk has the files
    lab.configure(files={})
    lab.wait_for(lambda: "htcondor ..." in node.read(LOG), "the step that installs", BOOTS)
    assert not node.run(f"test -e {HELD}").returncode
    lab.wait_for(lambda: node.run("pgrep apt-get").stdout, "apt-get")
    node.run(f"touch {GO_ON}", check=True)
    lab.wait_for(lambda: started(project, node), "the node in the pool", BOOTS)
    state = f"systemctl show --property=Result {service}"
    lab.wait_for(lambda: node.run(state).stdout == "Result=success\n", f"the end of {service}")


def holding_apt(service: str) -> dict[str, str]:
    """Return a disk's files by which a service is at work, and stays so, when the node boots."""
    update = "true" if service == "apt-daily" else "apt-get -q update"
    begin = f"{update}; systemctl start --no-block {service}; until test -e {HELD}"
    return {
        "/etc/lab-apt.conf": HOOKS[service],
        f"/etc/systemd/system/{service}.service.d/lab.conf": "[Service]\n"
        "Environment=APT_CONFIG=/etc/lab-apt.conf\n",
        "/etc/systemd/system/trialfleet-bootstrap.service.d/lab.conf": "[Service]\n"
        f"ExecStartPre=/bin/sh -c '{begin}; do sleep 0.1; done'\n",
    }


DYING = """
import os, signal
from pathlib import Path
from tests.fleet.lab.lab import Lab

with Lab.start(Path({folder!r}), real=True) as lab:
    lab.launch()
    print(lab.cgroup, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_a_killed_lab_leaves_no_process_cgroup_or_mount(tmp_path: Path, lab: Lab) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    code = DYING.format(folder=str(tmp_path / "lab"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == -signal.SIGKILL
    name = done.stdout.strip()
    processes = list(Path("/proc").glob("[0-9]*/cgroup"))
    lab.wait_for(lambda: not any(name in read(one) for one in processes), "its processes' end")
    look = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f"mount -t cgroup2 none /mnt && test ! -e /mnt/{name}",
    ]
    lab.wait_for(lambda: subprocess.run(look).returncode == 0, "the end of its cgroup")
    assert Path("/proc/self/mounts").read_text() == mounts


def read(path: Path) -> str:
    """Return the text of a process's file; nothing of a process that has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
