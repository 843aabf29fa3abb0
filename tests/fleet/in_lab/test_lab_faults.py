"""Faults in the lab: nodes that are killed, cut off, fail jobs, lose a lease or are taken down."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.fleet.in_lab.work_in_lab import FIRST, Work
from tests.fleet.lab.lab import Lab, Machine
from tests.fleet.lab.project import HOME, Project

STEP = {"seconds": 0.5, "steps": 30}  # a trial of 15 s, which saves its state at SIGTERM alone
QUIET = {**STEP, "steps": 80}
UPLOADING = {**QUIET, "save_every": 6, "upload": 1}  # … which sends it every 3 s
ONE = {"trials": 1, "lanes": 1}
pytestmark = pytest.mark.thorough
NODES = 7
ELSEWHERE = (
    240  # seconds; an idle machine needs about 60 from a node's loss to its trial's next life
)
EATEN = "/etc/eats-jobs"
EATEN_TRAINER = {"command": ["python3", "eaten.py"], "files": ["eaten.py"]}
EATER = f"""
import json, os, sys
from pathlib import Path

if Path("{EATEN}").exists():
    sys.exit("eaten")
if json.loads(Path(os.environ["TRIALFLEET_TRIAL"]).read_text())["mode"] == "final":
    Path("model/weights").write_text("none")
result = {{"schema": 1, "status": "complete", "metrics": {{"loss": 0.0}}, "seconds": 0.1}}
Path("result.json").write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def project(project: Project) -> Project:
    """A manager with a fleet."""
    study = project.write_study(fleet={"nodes": {"max": NODES}})
    project.trialfleet("fleet", "up", study, "--nodes", str(NODES), "--wait")
    return project


# --- Silence --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Silence:
    """Three nodes that fell silent at once, each at a trial.

    Attributes:
        began: when, in UNIX seconds.
        works: the runs, by what happened: killed, cut, blinked.
        places: the instances.
    """

    began: float
    works: Mapping[str, Work]
    places: Mapping[str, str]

    @property
    def lasts(self) -> float:
        """Seconds since it began."""
        return time.time() - self.began

    def continued(self, fate: str) -> bool:
        """Return whether a trial that has ended did not begin again, and nothing twice."""
        steps = self.works[fate].steps(FIRST)
        return list(steps) == sorted(steps) and steps[min(steps)] < self.began


@pytest.fixture(scope="module")
def silence(project: Project, lab: Lab) -> Silence:
    """One machine is lost, one is cut off for 120 s, one for 20 s."""
    params = {"killed": UPLOADING, "cut": UPLOADING, "blinked": QUIET}
    works = {fate: Work(project, fate, params[fate], budget=ONE) for fate in params}
    places = {fate: running_on(work, lab) for fate, work in works.items()}
    sending = (works["killed"], works["cut"])
    lab.wait_for(lambda: all(work.saved(FIRST) >= 6 for work in sending), "two checkpoints")
    began = time.time()
    lab.machine(places["blinked"]).partition(20)
    lab.machine(places["cut"]).partition(120)
    lab.machine(places["killed"]).kill()
    return Silence(began, works, places)


def running_on(work: Work, lab: Lab) -> str:
    """Return the instance on which a run's first trial runs, once it does."""
    return str(lab.wait_for(lambda: work.where().get(FIRST), "a trial that runs"))


def test_a_killed_nodes_trial_continues_elsewhere_from_its_last_checkpoint(
    silence: Silence, lab: Lab
) -> None:
    work, lost = silence.works["killed"], silence.places["killed"]
    lab.wait_for(lambda: runs_elsewhere(work, lost), "the trial elsewhere", ELSEWHERE)
    print(f"the killed node's trial runs elsewhere after {silence.lasts:.0f} s")
    lab.wait_for(lambda: work.times_recorded(FIRST), "the trial's end", 120)
    assert silence.continued("killed")
    assert work.times_recorded(FIRST) == 1


def test_a_cut_of_20_seconds_costs_nothing(silence: Silence, lab: Lab) -> None:
    work = silence.works["blinked"]
    lab.wait_for(lambda: work.times_recorded(FIRST), "the trial's end", 90)
    print(
        "the trial with the short cut did its last step",
        f"{max(work.steps(FIRST).values()) - silence.began:.0f} s after it",
    )
    assert len(work.hosts(FIRST)) == 1  # the same attempt went on
    assert list(work.steps(FIRST)) == [*range(1, int(QUIET["steps"]) + 1)]
    assert work.times_recorded(FIRST) == 1
    assert work.finished()[FIRST]["attempts"] == 1


# --- Nodes that have to go ------------------------------------------------------------------------


def make_eater(project: Project, silence: Silence, lab: Lab) -> str:
    """Have a node fail each job of the trainer that is eaten; return its instance."""
    eater = sorted(idle(project) - set(silence.places.values()))[0]
    lab.machine(eater).write(EATEN, "")
    project.manager.write(f"{HOME}/eaten.py", EATER, user="ubuntu")
    return eater


def test_a_node_with_failing_jobs_is_drained_and_says_why(
    project: Project, silence: Silence, lab: Lab
) -> None:
    eater = make_eater(project, silence, lab)
    work = Work(
        project,
        "eaten",
        budget=ONE,
        trainer=EATEN_TRAINER,
        resources=resources(requirements=f'TrialfleetInstance == "{eater}"'),
        retries=6,
    )
    lab.wait_for(lambda: work.hosts(FIRST), "the first attempt")
    began = time.monotonic()
    of_eater = f'TrialfleetInstance == "{eater}" && Draining'
    lab.wait_for(lambda: project.slots(of_eater), "the draining", 60)
    print(f"the eater drains {time.monotonic() - began:.0f} s after its first job")
    note = project.run(f"condor_status -constraint '{of_eater}' -af TrialfleetNote")
    assert note.startswith("3 jobs failed here within 60 s: ")
    assert note.count("exit code 1") == 3
    assert note.strip() in why(project, eater)
    asked = json.loads(project.trialfleet("why", eater, "--json"))
    assert (asked["kind"], asked["blame"]) == ("eats-jobs", "node")
    assert note.strip() in asked["why"]
    own = 'TrialfleetRun == "eaten" && JobStatus == 1'
    others = f'TrialfleetInstance =!= "{eater}"'  # do from now on

    def ends_elsewhere() -> int:
        project.run(f"condor_qedit -constraint '{own}' Requirements '{others}'", check=False)
        return work.times_recorded(FIRST)

    lab.wait_for(ends_elsewhere, "the trial's end", 120)
    address = lab.machine(eater).instance()["address"]
    assert work.hosts(FIRST)[:3] == [address] * 3
    assert work.hosts(FIRST)[-1] != address
    assert work.finished()[FIRST]["state"] == "complete"


def test_a_node_with_failing_jobs_fails_no_trial_that_has_one_retry(
    project: Project, silence: Silence, lab: Lab
) -> None:
    eater = make_eater(project, silence, lab)
    work = Work(
        project,
        "survives",
        budget={"trials": 12, "lanes": 12, "failures": 0},
        trainer=EATEN_TRAINER,
        resources=resources(rank=f'TrialfleetInstance == "{eater}"'),
        retries=1,
    )
    lab.wait_for(work.published, "the run's end", 240)
    assert [record["state"] for record in work.finished().values()] == ["complete"] * 12
    first_trials = [f"A.l{lane:02}.t01" for lane in range(1, 13)]
    address = lab.machine(eater).instance()["address"]
    eaten = [trial for trial in first_trials if address in work.hosts(trial)]
    print(f"the eater had {len(eaten)} of the 12 lanes")
    assert eaten


def why(project: Project, instance: str) -> str:
    """Return what `fleet status` says about a node."""
    status = json.loads(project.trialfleet("fleet", "status", "--json", "demo.yaml"))
    return next(str(node["why"]) for node in status["nodes"] if node["instance"]["id"] == instance)


def test_a_node_whose_lease_has_expired_drains_and_ends_itself(
    project: Project, silence: Silence, lab: Lab
) -> None:
    cut = silence.places["cut"]  # may be back by now; another test waits for it
    others = resources(requirements=f'TrialfleetInstance != "{cut}"')
    work = Work(project, "leased", STEP, budget=ONE, resources=others)
    lab.wait_for(work.where, "a trial that runs")
    forgotten = work.where()[FIRST]
    lab.wait_for(lambda: steps_on(lab.machine(forgotten)) > 1, "its first steps")
    began = time.monotonic()
    tags = [{"Key": "trialfleet:expires", "Value": "2020-01-01T00:00:00Z"}]
    lab.aws("ec2", "create_tags", Resources=[forgotten], Tags=tags)
    lab.wait_for(lambda: runs_elsewhere(work, forgotten), "the trial elsewhere", 60)
    print(f"the trial runs elsewhere {time.monotonic() - began:.0f} s after the lease's end")
    machine = lab.machine(forgotten)
    lab.wait_for(lambda: machine.instance()["state"] == "terminated", "the instance's end", 60)
    print(f"the instance has ended after {time.monotonic() - began:.0f} s")
    assert machine.instance()["reason"] == "Client.InstanceInitiatedShutdown"
    lab.wait_for(lambda: work.times_recorded(FIRST), "the trial's end", 90)
    assert work.lives(FIRST)[-1] > 0
    assert len(work.hosts(FIRST)) == 2


def test_a_node_cut_off_for_120_seconds_comes_back_and_its_trial_is_recorded_once(
    silence: Silence, lab: Lab
) -> None:
    work, cut = silence.works["cut"], silence.places["cut"]
    lab.wait_for(lambda: silence.lasts > 120, "the cut's end", 120)
    lab.wait_for(lambda: cut in idle(work.project), "the node's return", 60)
    print(f"the node that was cut off is free again after {silence.lasts:.0f} s")
    lab.wait_for(lambda: work.times_recorded(FIRST), "the trial's end", 120)
    print(f"its trial has ended after {silence.lasts:.0f} s, on {work.hosts(FIRST)}")
    there = Work(
        work.project,
        "there",
        {"seconds": 0.1},
        budget=ONE,
        resources=resources(requirements=f'TrialfleetInstance == "{cut}"'),
    )
    lab.wait_for(lambda: there.times_recorded(FIRST), "a trial on that node", 60)
    assert silence.continued("cut")
    assert work.times_recorded(FIRST) == 1


def test_down_lets_a_running_trial_leave_with_its_checkpoint(project: Project, lab: Lab) -> None:
    work = Work(project, "late", QUIET, budget=ONE)
    node = lab.machine(running_on(work, lab))
    lab.wait_for(lambda: steps_on(node) > 1, "its first steps")
    assert work.saved(FIRST) == 0
    began = time.monotonic()
    printed = project.trialfleet("fleet", "down", "demo.yaml", "--yes")
    print(f"down took {time.monotonic() - began:.0f} s")
    assert "everything is deleted" in printed
    assert not lab.instances("pending", "running", "stopping", "stopped", "shutting-down")
    assert work.saved(FIRST) > 0
    assert not work.times_recorded(FIRST)


def steps_on(node: Machine) -> int:
    """Return how many steps the trial that runs on a node has reported there."""
    read = "cat $(condor_config_val EXECUTE)/dir_*/scratch/trials/*/progress.jsonl"
    return len(node.run(read).stdout.splitlines())


def runs_elsewhere(work: Work, instance: str) -> bool:
    """Tell whether a run's first trial runs, and not on this instance."""
    return work.where().get(FIRST, instance) != instance


def idle(project: Project) -> set[str]:
    """Return the instances in the pool that have a free GPU and take jobs."""
    free = "PartitionableSlot && GPUs > 0 && !(Draining ?: False) && HAS_GPU"
    return {slot["TrialfleetInstance"] for slot in project.slots(free)}


def resources(**more: str) -> dict[str, str]:
    return {"memory": "100MB", "disk": "20MB", **more}
