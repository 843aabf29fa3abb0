"""A storm in the fleet's lab: nodes are cut off, killed or interrupted, and processes killed.

If a process of a node dies, the node's systemd restarts it. If a node dies, the run's autoscaler
replaces it. The storm shows that nothing else is needed.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.fleet.lab.lab import REPOSITORY, Lab, LabError, Machine
from tests.fleet.lab.project import HOME, Project
from tests.storm.audit import Audit
from tests.storm.ground import Settings, Strike
from tests.storm.victims import FLEET_KINDS, kind_of
from tests.storm.watch import Progress, Seen
from trialfleet import PoolError

NODES, MOST_NODES = 4, 8  # nodes of the fleet; nodes at most while lost ones are abandoned
SHORTEST_CUT, LONGEST_CUT = 10.0, 150.0  # seconds
NOTICE_SECONDS = 30.0  # from AWS's notice to the end of a spot instance; real ones have 120
# A line for each process: its number, where it works, and its words.
PROCESSES = r"""
for process in /proc/[0-9]*; do
    words=$(tr '\0\n' '\t ' <$process/cmdline 2>/dev/null) && test -n "$words" &&
        printf '%s\t%s\t%s\n' ${process#/proc/} "$(readlink $process/cwd)" "$words"
done
true
"""


class LabGround:
    """A manager and a fleet of nodes in a lab; see `Ground`."""

    look_seconds = 4.0
    recovery_seconds = 240.0  # a lost node's trial is abandoned after two minutes
    left_out: Sequence[str] = ()

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.shares: Mapping[str, float] = {"cut": 0.2, "lose": 0.07, "interrupt": 0.08}
        self._settings = settings
        self._lab = Lab.start(folder / "lab")
        self._project: Project | None = None
        self._run = ""
        self._cut: set[str] = set()
        self._seen = Seen(
            progress=Progress(), is_done=False, has_ended=False, message="not seen yet", repairs=0
        )
        self._missing: list[str] = []

    @property
    def project(self) -> Project:
        """The manager of the lab, after `up`."""
        assert self._project is not None, "the lab is up"
        return self._project

    def up(self) -> None:
        self._lab.__enter__()
        self._project = Project(self._lab)
        self.project.install()
        study = self._write_study("first")
        policies = json.loads(self.project.trialfleet("fleet", "plan", "--policy", study))
        self._lab.allow(policies["caller"])
        words = ["fleet", "up", study, "--nodes", str(NODES), "--wait"]
        self.project.trialfleet(*words, timeout=300)

    def tend(self) -> list[str]:
        """Do nothing, because each of the lab's machines has its systemd."""
        return []

    def down(self, kept: Path | None) -> None:
        if kept and self._project:
            kept.mkdir()
            packed = self._lab.manager.run(f"tar c -C {HOME} runs | base64")
            (kept / "runs.tar.base64").write_text(packed.stdout)
            for one in (self._lab.manager, *map(self._lab.machine, self._living())):
                (kept / f"{one.id}.console").write_text(one.log())
        self._lab.__exit__(None, None, None)

    # --- A run ------------------------------------------------------------------------------------

    def _write_study(self, name: str) -> str:
        return self.project.write_study(
            {"steps": 20, "seconds": 0.5, "save_every": 4},
            fleet={
                "name": "storm",
                "nodes": {"min": NODES, "max": MOST_NODES},
                "autoscale": "service",
            },
            name=name,
            regions=[f"R{number:03}" for number in range(self._settings.regions)],
            budget={"trials": self._settings.trials, "lanes": 2},
            retries=5,
        )

    def plan(self, number: int) -> None:
        name = f"s{number}"
        self._run = f"{HOME}/runs/{name}"
        study = self._write_study(name)
        self.project.trialfleet("plan", study, "--run-id", name, "--out", self._run)

    def submit(self) -> None:
        self._act("submit")

    def resume(self) -> None:
        self._act("resume", "--no-watch")

    def _act(self, *words: str) -> None:
        try:
            self.project.trialfleet(*words, self._run)
        except LabError as error:
            raise PoolError(str(error)) from error

    def look(self, before: Progress) -> Seen:
        try:
            answer = self._on_manager("look")
        except LabError as error:
            self._missing = [str(error)]
            return replace(self._seen, progress=before, message=str(error))
        answer["seen"]["progress"] = _later(before, answer["seen"]["progress"])
        self._seen, self._missing = Seen(**answer["seen"]), answer["missing"]
        return self._seen

    def missing(self) -> list[str]:
        self.look(self._seen.progress)
        return self._missing

    def close(self, audit: Audit) -> None:
        audit.merge(self._on_manager("audit"))

    def _on_manager(self, what: str) -> Any:
        words = [sys.executable, "-m", "tests.storm.on_manager", what, self._run]
        line = f"cd {shlex.quote(str(REPOSITORY))} && {shlex.join(words)}"
        return json.loads(self.project.run(line, timeout=120))

    # --- Events -----------------------------------------------------------------------------------

    def strike(self, event: str, random: Random) -> Strike | None:
        strikes: dict[str, Callable[[Random], Strike | None]] = {
            "kill": self._kill,
            "cut": self._cut_off,
            "lose": self._lose,
            "interrupt": self._interrupt,
        }
        return strikes[event](random)

    def _living(self) -> list[str]:
        """Return the nodes that run and are not cut off."""
        return [
            one["id"]
            for one in self._lab.instances("running")
            if one["on"] and one["id"] not in self._cut
        ]

    def _kill(self, random: Random) -> Strike | None:
        """Kill a process of the manager or of a node, each with the same probability."""
        nodes = [self._lab.machine(name) for name in self._living()]
        is_node = bool(nodes) and random.random() < 0.5
        machine = random.choice(nodes) if is_node else self._lab.manager
        found = _processes(machine)
        if not found:
            return None
        kind = random.choice(sorted(found))
        pid = random.choice(found[kind])
        if machine.run(["kill", "-KILL", pid]).returncode != 0:
            return None  # it has just ended
        where = "a node" if is_node else "the manager"
        return Strike(
            what=f"killed {kind} ({pid}) on {machine.id}", counts=("kill", f"{kind} of {where}")
        )

    def _cut_off(self, random: Random) -> Strike | None:
        if not (living := self._living()):
            return None
        name, seconds = random.choice(living), random.uniform(SHORTEST_CUT, LONGEST_CUT)
        self._lab.machine(name).partition(seconds)
        self._cut.add(name)
        return Strike(
            what=f"cut {name} off for {seconds:.0f} s",
            counts=("kill", "cut"),
            lasts=seconds,
            ends=lambda: self._cut.discard(name),
            ended=f"{name} is connected",
        )

    def _lose(self, random: Random) -> Strike | None:
        """Kill a machine without notice, even to AWS."""
        if len(living := self._living()) < 2:
            return None
        name = random.choice(living)
        self._lab.machine(name).kill()
        return Strike(what=f"lost {name}", counts=("kill", "machine lost"))

    def _interrupt(self, random: Random) -> Strike | None:
        spot = [one["id"] for one in self._lab.instances("running") if one["lifecycle"] == "spot"]
        if len(known := sorted(set(spot) & set(self._living()))) < 2:
            return None
        name = random.choice(known)
        self._lab.interrupt(name, NOTICE_SECONDS)
        return Strike(
            what=f"AWS takes {name} back",
            counts=("kill", "spot interruption"),
            lasts=NOTICE_SECONDS,
            ended=f"{name} has ended",
        )


def _processes(machine: Machine) -> dict[str, list[str]]:
    """Return the pids of a machine's processes, by kind."""
    found: dict[str, list[str]] = {}
    for line in machine.run(PROCESSES).stdout.splitlines():
        pid, cwd, *words = line.rstrip("\t").split("\t")
        if words and (kind := kind_of(words, cwd, FLEET_KINDS)):
            found.setdefault(kind, []).append(pid)
    return found


def _later(before: Progress, values: dict[str, Any]) -> Progress:
    return Progress(**{**values, "told": max(before.told, values["told"])})
