"""A gang on machines that are cut off or taken back at random, and whose processes are killed.

LAB_KILLS=50 .venv/bin/pytest tests/fleet/in_lab/test_lab_gang.py -s    # a dozen without it
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

from tests.fleet.in_lab.work_in_lab import FIRST, LANE
from tests.fleet.lab.lab import Lab, Machine
from tests.fleet.lab.machine import USER
from tests.fleet.lab.moto_side import LEARNING
from tests.fleet.lab.project import HOME, Project

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]
KILLS, SEED = int(os.environ.get("LAB_KILLS", "12")), 14
NODES = 3
EATS_SECONDS = 70.0  # a node on which three jobs are killed within 60 s is drained
STEP_SECONDS, SAVE_SECONDS = 0.05, 1.0
SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 8.0  # seconds between two events
EVENT_SECONDS = 13.0  # of training for each: pause, recovery, and the cost of a lost step
PARTED_SECONDS = 40.0  # that two ranks can't reach each other; shorter than one is left out
NOTICE_SECONDS = 30.0  # from AWS's notice to the end of a spot instance; real ones have 120
ON_THE_MANAGER = {
    "the schedd": ("-x", "condor_schedd"),
    "a shadow": ("-o", "-x", "condor_shadow"),
    "the keeper": ("-o", "-f", "programs [k]eep-gangs"),
    "the optimiser's service": ("-f", "programs [s]erve"),
    "the DAGMans": ("-x", "condor_dagman"),
}
TRAINER = Path(__file__).with_name("lab_rank.py")
FLEET = {
    "ami": LEARNING,
    "zones": ["us-east-1a"],
    "nodes": {"max": NODES + 2},
    "gangs": {"placement_group": False},  # moto has none
}


@pytest.fixture(scope="module")
def project(project: Project) -> Project:
    """A manager with a fleet."""
    project.manager.write(f"{HOME}/{TRAINER.name}", TRAINER.read_text(), user=USER)
    path = study(project, "gang")
    project.trialfleet("fleet", "up", path, "--nodes", str(NODES), "--wait", timeout=300)
    return project


def study(project: Project, name: str) -> str:
    """Write the study: it trains until the events are over, and some more."""
    steps = round(KILLS * EVENT_SECONDS / STEP_SECONDS)
    return project.write_study(
        {"steps": steps, "seconds": STEP_SECONDS, "checkpoint_seconds": SAVE_SECONDS},
        name=name,
        fleet=FLEET,
        budget={"trials": 1, "lanes": 1},
        publish="none",
        trainer={"command": ["python3", TRAINER.name], "files": [TRAINER.name]},
        resources={"memory": "500MB", "disk": "50MB", "nodes": {"min": 1, "max": NODES}},
    )


class Gang:
    """The gang of a run's only trial, as the manager knows it."""

    def __init__(self, project: Project, lab: Lab, random: Random, name: str) -> None:
        self.project, self.lab, self.random = project, lab, random
        self.folder = project.submit(study(project, name))
        self._place = f"{name}/regions/A/trials/{LANE}"
        self.events: list[str] = []
        self.kills: dict[str, list[float]] = {}
        self.recoveries: list[float] = []

    @property
    def roster(self) -> dict[str, Any]:
        """The keeper's last decision; empty before it."""
        text = self.project.file(f"{self._place}/words/gang/roster.json")
        found: dict[str, Any] = json.loads(text or "{}")
        return found

    def trains(self, after: int = 0) -> bool:
        """Return whether ranks train, in a generation later than this one."""
        now = self.roster
        return now.get("state") == "run" and now["generation"] > after

    def is_over(self) -> bool:
        """Return whether the training has ended."""
        return self.roster.get("state") == "done"

    def nodes(self) -> list[str]:
        """Return the instances that have a rank now."""
        addresses = {seat[2] for seat in self.roster.get("members", ())}
        return [one["id"] for one in self.lab.instances("running") if one["address"] in addresses]

    def disturb(self) -> None:
        """Do a rank some harm, and see how long it takes until ranks train again."""
        before = self.roster["generation"]
        harms: list[Callable[[str], str | None]] = [self.kill, self.kill, self.kill, self.cut]
        if len(self.events) % 10 == 5:
            harms = [self.take_back]
        if len(self.events) % 10 in {2, 7}:
            harms = [self.kill_on_the_manager]
        if not (nodes := self.nodes()):
            return
        began = time.monotonic()
        done = self.random.choice(harms)(self.random.choice(nodes))
        if done is None:
            return
        self.events.append(done)
        while not (self.is_over() or self.trains(before)):
            if time.monotonic() - began > 30:  # a short cut has no consequence
                break
            time.sleep(0.3)
        else:
            self.recoveries.append(time.monotonic() - began)
        print(f"{done}: {time.monotonic() - began:.1f} s, generation {self.roster['generation']}")

    def kill(self, name: str) -> str | None:
        """Kill a rank's agent, or its worker; cut off a node that would seem to eat its jobs."""
        own = self.kills.setdefault(name, [])
        if sum(time.monotonic() - moment < EATS_SECONDS for moment in own) >= 2:
            return self.cut(name)
        own.append(time.monotonic())
        which = self.random.choice(["-o", "-n"])  # the oldest process is the agent
        done = self.lab.machine(name).run(["pkill", "-KILL", which, "-f", "[a]gent.pyz"])
        what = "agent" if which == "-o" else "worker"
        return f"killed the {what} on {name}" if done.returncode == 0 else None

    def kill_on_the_manager(self, _name: str) -> str | None:
        """Kill what the gang is kept by, or its jobs; ranks may train on all the while."""
        what, words = self.random.choice(list(ON_THE_MANAGER.items()))
        done = self.project.manager.run(["pkill", "-KILL", *words])
        return f"killed {what}" if done.returncode == 0 else None

    def cut(self, name: str) -> str | None:
        """Cut a rank off from the others and from the manager."""
        seconds = self.random.uniform(3, 20)
        self.lab.machine(name).partition(seconds)
        return f"cut {name} off for {seconds:.0f} s"

    def take_back(self, name: str) -> str | None:
        """Have AWS take a machine back, and the fleet bring another."""
        if len(self.nodes()) < 2:
            return None
        self.lab.interrupt(name, NOTICE_SECONDS)
        return f"AWS takes {name} back"

    def cut_apart(self) -> None:
        """Keep the two highest ranks from each other for some time; the manager reaches both."""
        one, other = (self.machine_at(seat[2]) for seat in self.roster["members"][-2:])
        one.part_from(other, PARTED_SECONDS)

    def machine_at(self, address: str) -> Machine:
        """Return the machine of an address."""
        found = next(one for one in self.lab.instances("running") if one["address"] == address)
        return self.lab.machine(found["id"])


def undisturbed(steps: int) -> dict[int, float]:
    """Return the loss of each step that is reported, of one rank that nobody disturbs."""
    import torch

    from tests.fleet.in_lab import lab_rank

    weights = torch.zeros(lab_rank.COLUMNS, dtype=torch.float64)
    losses = {}
    for step in range(steps):
        x, y = lab_rank.batch_of(step)
        errors = x @ weights - y
        if step % lab_rank.EVERY == 0:
            losses[step] = float(errors.square().mean())
        weights = weights - lab_rank.RATE * x.T @ errors / lab_rank.ROWS
    return losses


def test_a_rank_that_another_cannot_reach_is_left_out_until_it_can(
    project: Project, lab: Lab
) -> None:
    gang = Gang(project, lab, Random(SEED), "parted")  # noqa: S311 - no secret
    lab.wait_for(lambda: len(gang.roster.get("members", ())) == NODES, "all ranks", 180)
    first = gang.roster
    began = time.monotonic()
    gang.cut_apart()
    lab.wait_for(lambda: gang.trains(first["generation"]), "ranks that train without one", 30)
    print(f"two ranks train {time.monotonic() - began:.1f} s after a third was cut off from one")
    parted = gang.roster
    assert parted["start"], "from a checkpoint"
    assert parted["members"] == [
        [*seat[:3], port, seat[4]]
        for seat, (_, _, _, port, _) in zip(first["members"], parted["members"], strict=False)
    ], "the highest rank is left out"
    words = project.trialfleet("why", FIRST, "--run", gang.folder)
    assert f"{first['members'][2][2]} is left out" in words
    lab.wait_for(
        lambda: gang.trains(parted["generation"]) and len(gang.roster["members"]) == NODES,
        "the rank that was left out",
        120,
    )
    project.trialfleet("stop", gang.folder)


def test_a_disturbed_gang_reports_the_losses_of_an_undisturbed_one(
    project: Project, lab: Lab
) -> None:
    gang = Gang(project, lab, Random(SEED), "gang")  # noqa: S311 - no secret
    lab.wait_for(gang.trains, "ranks that train", 180)
    while len(gang.events) < KILLS and not gang.is_over():
        time.sleep(gang.random.uniform(SHORTEST_PAUSE, LONGEST_PAUSE))
        gang.disturb()
        if len(lab.instances("running")) < NODES:  # one was taken back
            project.trialfleet("fleet", "up", "gang.yaml", "--nodes", str(NODES), timeout=300)
    lab.wait_for(gang.is_over, "the training's end", 600)
    (record,) = lab.wait_for(lambda: project.records(gang.folder), "the trial's end", 120)
    text = project.file(f"gang/regions/A/trials/{FIRST}/progress.jsonl")
    reports = [json.loads(line) for line in text.splitlines()]
    losses = {report["step"]: report["metrics"]["loss"] for report in reports}
    assert len(losses) == len(reports), "no step is reported twice"
    assert losses == pytest.approx(undisturbed(max(losses) + 1), abs=1e-6)
    assert (record["state"], record["attempts"]) == ("complete", 1)
    times = [report["time"] for report in reports]
    print(
        f"{len(gang.events)} events; ranks trained again {median(gang.recoveries):.1f} s after "
        f"them (median of {len(gang.recoveries)}; at most {max(gang.recoveries):.1f} s); longest "
        f"time between two reports: {max(b - a for a, b in pairwise(times)):.1f} s"
    )
    assert len(gang.events) >= KILLS / 2
