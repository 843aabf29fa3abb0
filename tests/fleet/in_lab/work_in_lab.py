"""A run on the lab's manager, and what becomes of its trials: on machines, in the pool, on disk."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.fleet.lab.project import RUNNING, Project

LANE, FIRST = "A.l1", "A.l1.t01"  # the first lane of a run, and its first trial


class Work:
    """A run of the project's, of one region."""

    def __init__(
        self, project: Project, name: str, params: dict[str, Any] | None = None, **study: Any
    ) -> None:
        """Write the study, plan the run and submit it; see `Project.write_study`."""
        self.project, self.name = project, name
        self.folder = project.submit(project.write_study(params, name=name, **study))

    def where(self) -> dict[str, str]:
        """Return the instances on which lanes run, by the first trial of each."""
        names = {one["name"]: one["id"] for one in self.project.lab.instances()}
        hosts = {
            job["TrialfleetNode"]: str(job.get("RemoteHost", "")).rpartition("@")[2]
            for job in self._jobs()
            if job["JobStatus"] == RUNNING
        }
        return {f"{lane}.t01": names[host] for lane, host in hosts.items() if host in names}

    def saved(self, trial: str) -> int:
        """Return how many steps the checkpoint has that lies on the manager."""
        folder = f"{self.folder}/regions/A/trials/{_lane(trial)}/words"
        unpack = f"tar -xOf {folder}/{trial}.checkpoint.tar checkpoint/steps"
        return int(self.project.run(unpack, check=False) or 0)

    def lives(self, trial: str) -> list[int]:
        """Return the steps from which the trainer has gone on, each time that it was called."""
        output = self._file(f"trials/{trial}/out")
        return [int(step) for step in re.findall(r"from step (\d+)", output)]

    def steps(self, trial: str) -> dict[int, float]:
        """Return the steps of a trial that has ended, and when each was done, in UNIX seconds."""
        lines = self._file(f"trials/{trial}/progress.jsonl").splitlines()
        return {entry["step"]: entry["time"] for entry in map(json.loads, lines)}

    def hosts(self, trial: str) -> list[str]:
        """Return the addresses of the machines on which its lane's job was started, in order."""
        log = self._file(f"trials/{_lane(trial)}/log")
        return re.findall(r"executing on host: <([\d.]+):", log)

    def times_recorded(self, trial: str) -> int:
        """Return how often the study has the trial as finished."""
        return sum(record["node"] == trial for record in self.project.records(self.folder))

    def published(self) -> bool:
        """Tell whether the full training is published, which is the run's end."""
        return "A: published" in self._file("scripts.log")

    def finished(self) -> dict[str, dict[str, Any]]:
        """Return the trials that have ended, as the study knows them, by their nodes."""
        return {record["node"]: record for record in self.project.records(self.folder)}

    def _jobs(self) -> list[dict[str, Any]]:
        return [job for job in self.project.trials() if job["TrialfleetRun"] == self.name]

    def _file(self, name: str) -> str:
        return self.project.file(f"{self.name}/regions/A/{name}")


def _lane(trial: str) -> str:
    return trial.rpartition(".")[0]
