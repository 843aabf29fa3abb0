"""The autoscaler in the lab: started by hand, at a run's cap, and as a node of a run's graph."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fleet.in_lab.work_in_lab import Work
from tests.fleet.lab.lab import Lab
from tests.fleet.lab.project import HOME, PROGRAM, Project

pytestmark = pytest.mark.thorough

STEP = {"seconds": 0.5, "steps": 10}  # a trial of 5 s
WAITING = {"seconds": 0.5, "steps": 60}  # … of 30 s: on its node yet when the other node has come
LONG = {"seconds": 0.5, "steps": 400}
TWO = {"trials": 2, "lanes": 2}
FLEET: dict[str, Any] = {"name": "demo", "idle_minutes": 0.4, "nodes": {"max": 2}}
CAP = 0.0075  # USD: 68 s of a node
LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")


@pytest.fixture(scope="module")
def project(project: Project, lab: Lab) -> Project:
    """A manager without a node, whose caller may do what `fleet plan --policy` says."""
    policies = json.loads(project.trialfleet("fleet", "plan", "--policy", project.write_study()))
    lab.allow(policies["caller"])
    return project


@contextmanager
def autoscaling(project: Project, *words: str) -> Iterator[None]:
    """Run `fleet autoscale` on the manager meanwhile, and end it as Ctrl-C does."""
    command = f"{PROGRAM} fleet autoscale {' '.join(words)}"
    process = project.run(f"setsid {command} > autoscale.out 2>&1 & echo $!").strip()
    try:
        yield
    finally:
        project.run(f"kill -INT {process}; tail --pid={process} -f /dev/null", timeout=30)
        print(log_of(project))


def log_of(project: Project) -> str:
    """Return what `fleet autoscale` has printed."""
    return project.manager.read(f"{HOME}/autoscale.out")


def wait_for_no_node(lab: Lab, seconds: float) -> None:
    began = time.monotonic()
    lab.wait_for(lambda: not lab.instances(*LIVING), "the nodes' end", seconds)
    print(f"no node is left {time.monotonic() - began:.0f} s later")


def test_waiting_trials_get_nodes_and_idle_nodes_end(project: Project, lab: Lab) -> None:
    work = Work(project, "wanted", WAITING, fleet=FLEET, budget=TWO)
    lab.wait_for(lambda: len(project.trials()) == 2, "two trials in the queue")
    assert not lab.instances()
    began = time.monotonic()
    with autoscaling(project, "wanted.yaml"):
        lab.wait_for(lambda: len(set(work.where().values())) == 2, "trials on two nodes", 120)
        print(f"two trials run {time.monotonic() - began:.0f} s after the autoscaler's start")
        lab.wait_for(work.published, "the run's end", 120)
        wait_for_no_node(lab, 120)
    assert 2 <= len(lab.instances()) <= 3  # a node may be gone before the full training waits
    assert len(work.finished()) == 2
    drained = [line for line in log_of(project).splitlines() if line.startswith("draining")]
    assert all(": idle for " in line for line in drained)


def test_a_run_without_a_result_ends_when_its_trials_have_spent_their_share(
    project: Project, lab: Lab
) -> None:
    fleet = FLEET | {"price_cap": {"run": CAP}}
    work = Work(project, "dear", LONG, fleet=fleet, budget=TWO)
    project.trialfleet("fleet", "up", "dear.yaml", "--nodes", "1", "--run", "dear", "--wait")
    lab.wait_for(work.where, "a trial that runs")
    with autoscaling(project, "dear.yaml", "--run", "dear"):
        lab.wait_for(lambda: state(project, work) == "failed", "the run's end", 120)
        wait_for_no_node(lab, 120)
    status = json.loads(project.trialfleet("status", "--json", work.folder, check=False))
    assert "no money is left: trials have spent $0.01" in status["regions"][0]["reason"]
    assert status["money"]["cap"] == CAP
    assert status["money"]["spent"] > 0.8 * CAP
    assert {record["state"] for record in work.finished().values()} == {"pruned"}
    assert "no money is left: trials have spent $0.01" in log_of(project)
    assert not project.trials()


def state(project: Project, work: Work) -> str:
    """Return where a run stands, in the words of `trialfleet status`."""
    return str(
        json.loads(project.trialfleet("status", "--json", work.folder, check=False))["state"]
    )


@pytest.mark.parametrize("mode", ["service", "provisioner"])
def test_a_run_starts_the_fleet_that_it_runs_on(project: Project, lab: Lab, mode: str) -> None:
    fleet = FLEET | {"autoscale": mode, "idle_minutes": 30}  # so that no node goes for that
    study = project.write_study(STEP, name=mode, fleet=fleet, budget=TWO)
    before = {found["id"] for found in lab.instances()}
    began = time.monotonic()
    folder = f"runs/{mode}"
    printed = project.trialfleet("run", study, "--run-id", mode, "--out", folder, timeout=200)
    print(f"the run took {time.monotonic() - began:.0f} s")
    assert "published" in printed
    assert [record["state"] for record in project.records(folder)] == ["complete"] * 2
    nodes = [found for found in lab.instances() if found["id"] not in before]
    assert 1 <= len(nodes) <= 2
    assert {node["tags"]["trialfleet:run"] for node in nodes} == {mode}
    assert "fleet: " in printed
    assert "ran on" not in printed
    wait_for_no_node(lab, 30)


def test_a_run_that_is_stopped_leaves_no_node(project: Project, lab: Lab) -> None:
    fleet = FLEET | {"autoscale": "service", "idle_minutes": 30}
    work = Work(project, "stopped", LONG, fleet=fleet, budget=TWO)
    lab.wait_for(work.where, "a trial that runs", 120)
    began = time.monotonic()
    printed = project.trialfleet("stop", work.folder)
    print(f"the stop took {time.monotonic() - began:.0f} s: {printed}")
    assert "ran on" not in printed
    wait_for_no_node(lab, 30)


def test_down_reports_that_everything_is_deleted(project: Project) -> None:
    assert "everything is deleted" in project.trialfleet("fleet", "down", "demo.yaml")
