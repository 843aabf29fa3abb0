"""trialfleet on the lab's manager, as its user runs it: by the command line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from .lab import REPOSITORY, Lab, LabError
from .machine import USER
from .moto_side import BARE

PROGRAM = Path(sys.prefix) / "bin" / "trialfleet"
HOME = f"/home/{USER}"
MOODY = REPOSITORY / "tests" / "pool" / "trainers" / "moody.py"
RUNNING = 2  # HTCondor's number for it
FLEET: dict[str, Any] = {
    "aws_regions": ["us-east-1"],
    "zones": ["us-east-1a", "us-east-1b"],
    "instance_types": ["g5.xlarge"],
    "ami": BARE,
    "nodes": {"max": 4},
}
STUDY: dict[str, Any] = {
    "name": "demo",
    "regions": ["A"],
    "objective": {"metric": "loss", "direction": "minimize"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "budget": {"trials": 2, "lanes": 2},
    "trainer": {"command": ["python3", MOODY.name], "files": [MOODY.name]},
    "resources": {"memory": "100MB", "disk": "20MB"},
    "accelerator": "gpu",
    "fleet": FLEET,
}


class Project:
    """`trialfleet` on the manager."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.manager = lab, lab.manager
        self.variables = {**lab.aws_environment, "COLUMNS": "150"}

    def install(self) -> None:
        """Make the machine a manager, as root."""
        words = [str(PROGRAM), "manager", "install", "--user", USER]
        self.manager.run(words, check=True)

    def trialfleet(self, *words: str, timeout: float = 120, check: bool = True) -> str:
        """Run `trialfleet` as the user and return what it prints."""
        command = [str(PROGRAM), *words]
        return self.run(shlex.join(command), timeout=timeout, check=check)

    def run(self, line: str, *, timeout: float = 60, check: bool = True) -> str:
        """Run a line of shell as the user and return what it prints."""
        done = self.manager.run(
            line, user=USER, env=self.variables, timeout=timeout, check=check, cwd=HOME
        )
        return done.stdout

    def write_study(
        self,
        params: dict[str, Any] | None = None,
        *,
        fleet: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Write a study with the tests' trainer, and return the file's name.

        Args:
            params: parameters of the trainer besides x: constants or ranges.
            fleet: changes to the fleet.
            more: changes to the study.
        """
        study = STUDY | more
        study["search_space"] = {**STUDY["search_space"], **(params or {})}
        study["fleet"] = FLEET | (fleet or {})
        name = f"{study['name']}.yaml"
        self.manager.write(f"{HOME}/{name}", json.dumps(study), user=USER)  # JSON is YAML
        self.manager.write(f"{HOME}/{MOODY.name}", MOODY.read_text(), user=USER)
        return name

    def submit(self, study: str) -> str:
        """Plan a run of the study file `study` and submit it; return the run's folder."""
        name = study.removesuffix(".yaml")
        folder = f"{HOME}/runs/{name}"
        self.trialfleet("plan", study, "--run-id", name, "--out", folder)
        self.trialfleet("submit", folder)
        return folder

    def slots(self, condition: str = "true") -> list[dict[str, Any]]:
        """Return the ClassAds of the nodes' slots that HTCondor's collector has."""
        words = ["condor_status", "-json", "-constraint", condition]
        return ads(self.run(shlex.join(words)))

    def joined(self) -> set[str]:
        """Return the instances that have joined HTCondor's pool."""
        return {slot["TrialfleetInstance"] for slot in self.slots()}

    def trials(self) -> list[dict[str, Any]]:
        """Return the ClassAds of the trials' jobs that are in the queue."""
        return ads(self.run("condor_q -json -constraint 'TrialfleetNode =!= undefined'"))

    def busy(self) -> str:
        """Return the id of an instance on which a trial runs now; empty if there is none."""
        hosts = {
            str(job.get("RemoteHost", "")).rpartition("@")[2]
            for job in self.trials()
            if job["JobStatus"] == RUNNING
        }
        found = (one["id"] for one in self.lab.instances() if one["name"] in hosts)
        return next(found, "")

    def records(self, folder: str) -> list[dict[str, Any]]:
        """Return a run's finished trials."""
        found = json.loads(self.trialfleet("trials", "--json", folder))
        return [record for record in found if record["state"] in {"complete", "failed", "pruned"}]

    def file(self, pattern: str) -> str:
        """Return the joined texts of all runs' files that match `pattern`."""
        return self.run(f"cat {HOME}/runs/{pattern} 2>/dev/null", check=False)


def ads(text: str) -> list[dict[str, Any]]:
    """Return the ClassAds that an HTCondor tool prints as JSON; none if it prints nothing."""
    try:
        found: list[dict[str, Any]] = json.loads(text or "[]")
    except ValueError as error:
        raise LabError(f"not JSON: {text[:300]}") from error
    return found
