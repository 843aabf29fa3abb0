"""The lab behaves like AWS and like the machines that it replaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.lab.lab import REPOSITORY, Lab, Machine

TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "ec2.amazonaws.com"},
        }
    ],
}
FIRST_BOOT = """#!/bin/sh
echo "I am $(id -un)" >> /root/said
env | sort > /root/variables
cp "$0" /root/myself
echo to the console
"""
IMDS = "http://169.254.169.254/latest"
ASK = f"""
T=$(curl -sf -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" {IMDS}/api/token)
curl -s -w ' %{{http_code}}' -H "X-aws-ec2-metadata-token: $T" {IMDS}/"""


def allowed(*actions: str, resource: str = "*") -> dict[str, Any]:
    """Return a policy."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return {"Version": "2012-10-17", "Statement": [statement]}


def caller(lab: Lab, code: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python with boto3 on the manager, by the caller's keys."""
    return lab.manager.run(
        [sys.executable, "-c", f"import boto3; {code}"], user="ubuntu", env=lab.aws_environment
    )


def metadata(machine: Machine, path: str) -> str:
    """Return what the machine's metadata service answers, and the status."""
    return machine.run(ASK + path).stdout


def state(machine: Machine) -> str:
    return str(machine.instance()["state"])


@pytest.fixture(scope="module")
def node(lab: Lab) -> Machine:
    """A machine that most tests look at and leave as it is."""
    return lab.launch(FIRST_BOOT, spot=True)


@pytest.fixture
def machine(lab: Lab) -> Iterator[Machine]:
    """A machine to break."""
    made = lab.launch(spot=True)
    yield made
    lab.aws("ec2", "terminate_instances", InstanceIds=[made.id])


def test_user_data_runs_as_root_unchanged_and_with_few_variables(node: Machine) -> None:
    assert node.read("/root/said") == "I am root\n"
    assert node.read("/root/myself") == FIRST_BOOT
    names = {line.partition("=")[0] for line in node.read("/root/variables").splitlines()}
    assert names <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD", "TRIALFLEET_PROBE_READINGS"}
    assert "to the console" in node.log()


def test_user_data_runs_once_and_not_at_a_reboot(machine: Machine, lab: Lab) -> None:
    again = lab.launch(FIRST_BOOT)
    again.run(["systemctl", "reboot"])
    lab.wait_for(lambda: "reboot" in again.log(), "the reboot")
    again.wait_for_boot()
    assert again.read("/root/said") == "I am root\n"


def test_get_console_output_returns_the_console(node: Machine, lab: Lab) -> None:
    assert "to the console" in lab.aws("ec2", "get_console_output", InstanceId=node.id)["Output"]


def test_metadata_describes_the_instance(node: Machine) -> None:
    found = node.instance()
    assert metadata(node, "meta-data/instance-id") == f"{node.id} 200"
    assert metadata(node, "meta-data/instance-life-cycle") == "spot 200"
    assert metadata(node, "meta-data/local-ipv4") == f"{found['address']} 200"
    assert metadata(node, "meta-data/placement/availability-zone") == f"{found['zone']} 200"
    assert metadata(node, "user-data") == f"{FIRST_BOOT} 200"
    document = metadata(node, "dynamic/instance-identity/document").removesuffix(" 200")
    assert json.loads(document)["instanceType"] == "g5.xlarge"
    assert metadata(node, "meta-data/spot/instance-action").endswith("404")


def test_metadata_shows_tags_as_they_are_now(node: Machine, lab: Lab) -> None:
    tags = [{"Key": "trialfleet:expires", "Value": "soon"}]
    lab.aws("ec2", "create_tags", Resources=[node.id], Tags=tags)
    assert metadata(node, "meta-data/tags/instance/trialfleet:expires") == "soon 200"


def test_metadata_needs_a_session_token_of_the_same_machine(
    node: Machine, machine: Machine
) -> None:
    status = "curl -s -o /dev/null -w %{http_code}"
    assert node.run(f"{status} {IMDS}/meta-data/instance-id").stdout == "401"
    header = '-H "X-aws-ec2-metadata-token-ttl-seconds: 60"'
    token = machine.run(f"curl -s -X PUT {header} {IMDS}/api/token").stdout
    stolen = f'{status} -H "X-aws-ec2-metadata-token: {token}" {IMDS}/meta-data/instance-id'
    assert node.run(stolen).stdout == "401"
    assert machine.run(stolen).stdout == "200"


def test_a_role_may_do_what_its_policy_says_and_no_more(lab: Lab) -> None:
    lab.aws("s3", "create_bucket", Bucket="lab-bucket")
    for key in ("mine/a", "others/a"):
        lab.aws("s3", "put_object", Bucket="lab-bucket", Key=key, Body=key)
    lab.aws("iam", "create_role", RoleName="r", AssumeRolePolicyDocument=json.dumps(TRUST))
    policy = allowed("s3:GetObject", resource="arn:aws:s3:::lab-bucket/mine/*")
    lab.aws(
        "iam", "put_role_policy", RoleName="r", PolicyName="p", PolicyDocument=json.dumps(policy)
    )
    lab.aws("iam", "create_instance_profile", InstanceProfileName="r")
    lab.aws("iam", "add_role_to_instance_profile", InstanceProfileName="r", RoleName="r")
    machine = lab.launch(profile="r")
    module = (REPOSITORY / "src/trialfleet/instance_aws.py").read_text()
    machine.write("/root/aws.py", module)
    get = (
        "import aws; print(aws.Aws(aws.Imds(), 'us-east-1', 'http://10.0.0.1:5000', waits=())"
        ".get_object('lab-bucket', '{}'))"
    )
    assert machine.run(["python3", "-c", get.format("mine/a")]).stdout == "b'mine/a'\n"
    assert "AccessDenied" in machine.run(["python3", "-c", get.format("others/a")]).stderr


def test_the_caller_may_do_what_the_policy_says_and_no_more(lab: Lab) -> None:
    code = "boto3.client('ec2').describe_vpcs(); boto3.client('iam').list_roles()"
    assert caller(lab, code).returncode == 0
    lab.allow(allowed("ec2:DescribeVpcs", resource="arn:aws:ec2:*:*:vpc/*"))
    refused = caller(lab, code).stderr
    lab.allow(allowed("*"))
    assert "iam:ListRoles" in refused


def test_unknown_keys_are_refused(lab: Lab) -> None:
    code = (
        "boto3.client('ec2', aws_secret_access_key='w', aws_access_key_id='AKIAX').describe_vpcs()"
    )
    assert "AuthFailure" in caller(lab, code).stderr


def test_regions_have_addresses_of_their_own(lab: Lab, node: Machine) -> None:
    answer = lab.aws(
        "ec2",
        "run_instances",
        "us-west-2",
        ImageId="ami-00000000000000bae",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
    )
    far = lab.machine(answer["Instances"][0]["InstanceId"])
    far.wait_for_boot()
    assert far.instance()["address"] != node.instance()["address"]
    assert reaches(far, node.instance()["name"])


def reaches(machine: Machine, name: str) -> bool:
    """Tell whether packets come back: a port where nobody listens is refused at once."""
    code = (
        "import socket, sys, errno; s = socket.socket(); s.settimeout(1)\n"
        f"sys.exit(s.connect_ex((socket.gethostbyname({name!r}), 9)) != errno.ECONNREFUSED)"
    )
    return machine.run(["python3", "-c", code]).returncode == 0


def test_machines_reach_each_other_by_name_and_no_other_host(lab: Lab, node: Machine) -> None:
    assert reaches(node, lab.manager.run(["hostname"]).stdout.strip())
    assert reaches(lab.manager, node.instance()["name"])
    assert not reaches(node, "192.0.2.1")


def test_a_machine_that_shuts_itself_down_is_terminated(machine: Machine, lab: Lab) -> None:
    machine.run(["shutdown", "-P", "now"])
    lab.wait_for(lambda: state(machine) == "terminated", "the instance's end")
    assert machine.instance()["reason"] == "Client.InstanceInitiatedShutdown"


def test_a_scheduled_shutdown_happens_unless_it_is_cancelled(machine: Machine, lab: Lab) -> None:
    machine.write("/etc/environment", "LAB_SECONDS_PER_MINUTE=0.5\n")
    machine.run(["shutdown", "-P", "+12"], check=True)  # longer than the next call takes under load
    machine.run(["shutdown", "-c"], check=True)
    time.sleep(7)
    assert machine.instance()["on"]
    machine.run(["shutdown", "-P", "+2"], check=True)
    lab.wait_for(lambda: state(machine) == "terminated", "the scheduled shutdown")


def test_a_spot_instance_gets_notice_and_then_ends(machine: Machine, lab: Lab) -> None:
    lab.rebalance(machine.id)
    assert "noticeTime" in metadata(machine, "meta-data/events/recommendations/rebalance")
    lab.interrupt(machine.id, seconds=2)
    notice = metadata(machine, "meta-data/spot/instance-action").removesuffix(" 200")
    assert json.loads(notice)["action"] == "terminate"
    assert machine.instance()["on"]
    lab.wait_for(lambda: not machine.instance()["on"], "the machine is off")
    assert machine.instance()["reason"] == "Server.SpotInstanceTermination"


def connected(machine: Machine, other: Machine) -> str:
    """Open a connection from `machine` to `other` that stays; return how the other sees it."""
    listen = "import socket; s=socket.create_server(('', 7000)); c=s.accept(); input()"
    talk = (
        f"import socket; s=socket.create_connection(('{other.instance()['address']}', 7000));"
        "import time; time.sleep(1000)"
    )
    line = 'nohup sh -c "sleep 1000 | python3 -c \\"{}\\"" >/dev/null 2>&1 &'
    other.run(line.format(listen), check=True)
    other.lab.wait_for(lambda: other.run("ss -Hltn sport = 7000").stdout, "the listener")
    machine.run(line.format(talk), check=True)
    look = "ss -Htn state all sport = 7000 | grep -v LISTEN | awk '{print $1}'"
    other.lab.wait_for(lambda: other.run(look).stdout.strip() == "ESTAB", "the connection")
    return look


def test_a_killed_machine_sends_no_notice_to_peers_or_aws(machine: Machine, lab: Lab) -> None:
    other = lab.launch()
    look = connected(machine, other)
    machine.kill()
    lab.wait_for(lambda: not machine.instance()["on"], "the machine is off")
    time.sleep(1)
    assert other.run(look).stdout.strip() == "ESTAB"  # no farewell was sent
    assert state(machine) == "running"  # and AWS noticed nothing


def test_a_partition_loses_packets_until_it_ends(machine: Machine, lab: Lab) -> None:
    address = machine.instance()["address"]
    assert reaches(lab.manager, address)
    machine.partition(seconds=3)
    assert not reaches(lab.manager, address)
    lab.wait_for(lambda: reaches(lab.manager, address), "the network's return", 10)


def service(machine: Machine, line: str, more: str = "") -> None:
    """Install a service that runs a line of shell."""
    machine.write("/usr/local/bin/lab-test", f"#!/bin/sh\n{line}\n")
    machine.run(["chmod", "+x", "/usr/local/bin/lab-test"])
    text = (
        "[Service]\nExecStart=/usr/local/bin/lab-test\n"
        f"{more}\n[Install]\nWantedBy=multi-user.target\n"
    )
    machine.write("/etc/systemd/system/lab-test.service", text)


def test_an_instance_that_aws_terminates_stops_its_services_first(
    machine: Machine, lab: Lab
) -> None:
    trap = "trap 'echo stopped > /dev/console; exit' INT"
    service(machine, f"{trap}; touch /root/up; while :; do sleep 0.1; done", "KillSignal=SIGINT")
    machine.run(["systemctl", "start", "lab-test"], check=True)
    lab.wait_for(lambda: machine.run("test -e /root/up").returncode == 0, "the service")
    lab.aws("ec2", "terminate_instances", InstanceIds=[machine.id])
    lab.wait_for(lambda: not machine.instance()["on"], "the machine is off")
    assert machine.log().endswith("poweroff\nstopped\n")


def test_a_service_is_restarted_as_its_unit_says(machine: Machine, lab: Lab) -> None:
    service(
        machine, "echo up >> /root/ups; sleep 0.2; exit 3", "Restart=on-failure\nRestartSec=0.1"
    )
    machine.run(["systemctl", "enable", "--now", "lab-test"], check=True)
    lab.wait_for(lambda: len(machine.read("/root/ups").splitlines()) >= 3, "two restarts")
    machine.run(["systemctl", "stop", "lab-test"], check=True)
    ups = machine.read("/root/ups")
    time.sleep(1)
    assert machine.read("/root/ups") == ups
    assert machine.run(["systemctl", "is-active", "lab-test"]).returncode == 3
    assert machine.run(["systemctl", "is-enabled", "lab-test"]).stdout == "enabled\n"


def test_a_reboot_starts_enabled_services_and_empties_the_run_folder(
    machine: Machine, lab: Lab
) -> None:
    service(machine, "echo up >> /root/ups; exec sleep 1000")
    machine.write("/run/leftover", "")
    machine.run(["systemctl", "enable", "lab-test"], check=True)
    machine.run(["systemctl", "reboot"])
    lab.wait_for(lambda: machine.read("/root/ups"), "the service's start")
    assert machine.run(["test", "-e", "/run/leftover"]).returncode == 1


def test_a_missing_unit_is_reported(node: Machine) -> None:
    done = node.run(["systemctl", "start", "nothing"])
    assert done.returncode == 5
    assert "nothing.service could not be found" in done.stdout


def test_apt_installs_htcondor_as_its_package_does(machine: Machine, lab: Lab) -> None:
    assert machine.run(["condor_version"]).returncode == 127
    assert machine.run(["apt-get", "install", "-y", "condor=1.2.3"]).returncode == 100
    machine.run(["apt-get", "install", "-y", "-q", "condor"], check=True)
    assert "CondorVersion" in machine.run(["condor_version"]).stdout
    assert machine.run(["id", "-un", "condor"]).stdout == "condor\n"
    assert machine.run(["systemctl", "is-active", "condor"]).stdout == "active\n"
    owner = machine.run(["stat", "-c", "%U", "/var/lib/condor/execute"]).stdout
    assert owner == "condor\n"


def test_apt_reports_an_unknown_package(node: Machine) -> None:
    done = node.run(["apt-get", "install", "-y", "no-such-package"])
    assert done.returncode == 100
    assert "Unable to locate package no-such-package" in done.stderr


@pytest.mark.parametrize(
    ("option", "in_use", "before", "unloads", "after"),
    [
        ("absent", False, "", True, ""),
        ("known", False, "CheckPCIConfigSpace: 1", True, "CheckPCIConfigSpace: 0"),
        ("refused", False, "CheckPCIConfigSpace: 1", True, "CheckPCIConfigSpace: 1"),
        ("known", True, "CheckPCIConfigSpace: 1", False, "CheckPCIConfigSpace: 1"),
    ],
)
def test_the_drivers_option_behaves_as_configured(
    lab: Lab, option: str, in_use: bool, before: str, unloads: bool, after: str
) -> None:
    lab.configure(hardware={"option": option, "in_use": in_use, "module": "nvidia-current"})
    machine = lab.launch()
    lab.configure(hardware={})
    value = "grep CheckPCI /proc/driver/nvidia/params"
    assert machine.run(value).stdout.strip() == before
    listed = "NVreg_CheckPCIConfigSpace" in machine.run("modinfo -p nvidia").stdout
    assert listed == (option != "absent")
    line = "options nvidia-current NVreg_CheckPCIConfigSpace=0\n"
    machine.write("/etc/modprobe.d/lab.conf", line)
    assert (machine.run("modprobe -r nvidia").returncode == 0) == unloads
    machine.run("modprobe nvidia-current", check=True)
    assert machine.run(value).stdout.strip() == after
    lab.aws("ec2", "terminate_instances", InstanceIds=[machine.id])


def test_a_reboot_loads_the_driver_with_its_options(lab: Lab) -> None:
    lab.configure(hardware={"option": "known", "in_use": True})
    machine = lab.launch()
    lab.configure(hardware={})
    machine.write("/etc/modprobe.d/lab.conf", "options nvidia NVreg_CheckPCIConfigSpace=0\n")
    machine.run(["systemctl", "reboot"])
    params = "/proc/driver/nvidia/params"
    lab.wait_for(lambda: "CheckPCIConfigSpace: 0" in machine.read(params), "the option")


def test_a_driver_that_is_not_there_can_be_installed(lab: Lab) -> None:
    lab.configure(hardware={"installed": False})
    machine = lab.launch()
    lab.configure(hardware={})
    assert "0x10de" in machine.run("cat /sys/bus/pci/devices/*/vendor").stdout
    assert machine.run(["modprobe", "nvidia"]).returncode == 1
    assert machine.run(["which", "nvidia-smi"]).returncode == 1
    machine.run(["apt-get", "install", "-y", "nvidia-driver"], check=True)
    machine.run(["modprobe", "nvidia"], check=True)
    query = ["nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader"]
    assert machine.run(query).stdout == "0, Stand-in GPU\n"


def test_a_machine_without_gpus_has_no_driver(lab: Lab) -> None:
    assert lab.manager.run(["modprobe", "nvidia"]).returncode == 1
    assert lab.manager.run("ls /sys/bus/pci/devices").stdout == ""


def test_the_manager_sees_the_project_and_cannot_change_it(lab: Lab) -> None:
    program = str(Path(sys.prefix) / "bin/trialfleet")
    assert lab.manager.run([program, "--version"], user="ubuntu").returncode == 0
    refused = lab.manager.run(["touch", str(REPOSITORY / "x")])
    assert "Read-only file system" in refused.stderr


def test_a_node_sees_neither_the_project_nor_the_callers_keys(lab: Lab, node: Machine) -> None:
    assert node.run(["test", "-e", str(REPOSITORY)]).returncode == 1
    secret = lab.aws_environment["AWS_SECRET_ACCESS_KEY"]
    found = node.run(["find", "/", "-xdev", "-type", "f", "-exec", "grep", "-l", secret, "{}", "+"])
    assert found.stdout == ""


def test_a_lab_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from tests.fleet.lab.lab import Lab\n"
        f"lab = Lab.start(pathlib.Path({str(tmp_path / 'lab')!r})); lab.__enter__()\n"
        "print(lab.pid, flush=True); time.sleep(100)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    inside = int(starter.stdout.readline())
    assert alive(inside)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    deadline = time.monotonic() + 10
    while alive(inside):
        assert time.monotonic() < deadline, "the lab outlived its starter"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Return True while a process, and so its namespace, is there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
