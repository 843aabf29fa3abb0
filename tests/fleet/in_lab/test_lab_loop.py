"""A fleet from start to end: a manager is installed, nodes start, a study runs, all is deleted."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.fleet.lab.lab import Lab
from tests.fleet.lab.project import Project

LONG = {"seconds": 0.5, "steps": 40}  # a trial of 20 s


@pytest.fixture(scope="module")
def project(project: Project, lab: Lab) -> Project:
    """A manager with a fleet of two, whose caller may do what `fleet plan --policy` says."""
    study = project.write_study()
    policies = json.loads(project.trialfleet("fleet", "plan", "--policy", study))
    lab.allow(policies["caller"])
    print(project.trialfleet("fleet", "up", study, "--nodes", "2", "--wait"))  # if a test fails
    return project


def test_joined_nodes_advertise_their_instance(project: Project, lab: Lab) -> None:
    running = {found["id"]: found for found in lab.instances("running")}
    assert len(running) == 2
    slots = {slot["TrialfleetInstance"]: slot for slot in project.slots("HAS_GPU")}
    assert slots.keys() == running.keys()
    for instance, slot in slots.items():
        assert slot["TrialfleetZone"] == running[instance]["zone"]
        assert slot["TrialfleetLifecycle"] == "spot"
        assert slot["TrialfleetPricePerHour"] == pytest.approx(0.40)
        assert slot["TrialfleetDriverOption"] == "driver no longer checks"
        assert slot["TotalGPUs"] == 1


def test_a_node_keeps_its_token_in_one_file_and_has_no_credentials(
    project: Project, lab: Lab
) -> None:
    token = lab.manager.read("/etc/trialfleet/node.token").strip()
    secret = project.variables["AWS_SECRET_ACCESS_KEY"]
    assert token
    for instance in project.joined():
        node = lab.machine(instance)
        user_data = node.run("cat /var/lib/cloud/instances/*/scripts/part-001").stdout
        assert "unpacked" in user_data
        places = "find / -xdev -type f -exec grep -lF -e {} {{}} +"
        assert token not in user_data
        assert node.run(places.format(token)).stdout == "/etc/condor/tokens.d/trialfleet\n"
        assert node.run(places.format(secret)).stdout == ""


def test_a_study_runs_on_the_nodes_and_publishes(project: Project, lab: Lab) -> None:
    params = {"seconds": 0.5, "steps": 2}
    study = project.write_study(params, name="small", budget={"trials": 3, "lanes": 2})
    folder = "runs/small"
    printed = project.trialfleet("run", study, "--run-id", "small", "--out", folder)
    assert "published" in printed
    records = project.records(folder)
    assert [record["state"] for record in records] == ["complete"] * 3
    logs = project.file("small/regions/A/trials/*/log")
    addresses = set(re.findall(r"executing on host: <([\d.]+):", logs))
    assert addresses <= {found["address"] for found in lab.instances()}
    assert addresses


@pytest.mark.thorough
def test_an_interrupted_spot_nodes_trial_continues_elsewhere(project: Project, lab: Lab) -> None:
    study = project.write_study(LONG, name="long", budget={"trials": 1, "lanes": 1})
    folder = project.submit(study)
    first = lab.wait_for(project.busy, "a trial that runs")
    time.sleep(4)  # some steps
    lab.interrupt(first, seconds=15)
    noticed = time.monotonic()
    lab.wait_for(lambda: project.busy() not in {"", first}, "the trial elsewhere", 30)
    print(f"running elsewhere after {time.monotonic() - noticed:.1f} s")
    lab.wait_for(lambda: not lab.machine(first).instance()["on"], "the node's end", 60)
    lab.wait_for(lambda: project.records(folder), "the trial's result", 60)
    lives = re.findall(r"from step (\d+)", project.file("long/regions/A/trials/*/out"))
    assert int(lives[-1]) >= 4
    (record,) = project.records(folder)
    assert record["value"] == pytest.approx((record["params"]["x"] - 0.3) ** 2)


def test_down_deletes_all_resources_of_the_fleet(project: Project, lab: Lab) -> None:
    # The full training of the last test's run is under way: without a terminal, `down` refuses.
    printed = project.trialfleet("fleet", "down", "demo.yaml", "--yes")
    assert "everything is deleted" in printed
    assert not lab.instances("pending", "running", "stopping", "stopped", "shutting-down")
    lab.wait_for(lambda: not any(found["on"] for found in lab.instances()), "all machines off")
    assert lab.aws("s3", "list_buckets")["Buckets"] == []
    assert lab.aws("iam", "list_roles")["Roles"] == []
    assert lab.aws("ec2", "describe_launch_templates")["LaunchTemplates"] == []
    groups = lab.aws("ec2", "describe_security_groups")["SecurityGroups"]
    assert [group["GroupName"] for group in groups] == ["default"]
    parameters = lab.aws("ssm", "describe_parameters")["Parameters"]
    assert [one["Name"] for one in parameters if not one["Name"].startswith("/aws/")] == []
