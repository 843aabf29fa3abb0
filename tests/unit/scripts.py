"""A run's scripts as DAGMan calls them. The test plays the jobs; no pool is needed."""

from __future__ import annotations

import copy
import json

from trialfleet import Run
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder, TrialFolder
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.status.status_types import RegionStatus, RunStatus


class Scripts:
    """The scripts and files of a run. `region` is the one for its files and full training."""

    def __init__(self, run: Run) -> None:
        self.folder, self.region = RunFolder(run.folder), "A"
        self.restart_service()

    def in_region(self, region: str) -> Scripts:
        """Return the scripts of another region of the run, answered by the same service."""
        other = copy.copy(self)
        other.region = region
        return other

    def restart_service(self) -> None:
        self.handler = ScriptRequests(self.folder)

    @property
    def run(self) -> Run:
        return Run(self.folder.root)

    @property
    def status(self) -> RunStatus:
        return StatusReader(self.folder).read()

    @property
    def region_status(self) -> RegionStatus:
        return next(each for each in self.status.regions if each.name == self.region)

    @property
    def files(self) -> RegionFolder:
        return self.folder.region(self.region)

    @property
    def best(self) -> TrialFolder:
        return self.files.best

    @property
    def stop_reason(self) -> str:
        return str(json.loads(self.files.stopped.read_text())["reason"])

    def trial(self, node: str) -> TrialFolder:
        return self.folder.region(region_of(node)).trial(node)

    def call(self, *words: str) -> Reply:
        return self.handler.handle(list(words))

    def ask(self, node: str) -> int:
        return self.call("ask", region_of(node), node).exit_code

    def ask_best(self) -> Reply:
        return self.call("ask-best", self.region, f"{self.region}.best")

    def tell(self, node: str, code: int, *, retry: int = 0, retries: int = 1, pre: int = 0) -> int:
        """Report a job's exit code after the exit code of the script before it, `pre`."""
        codes = map(str, (code, retry, retries, pre))
        return self.call("tell", region_of(node), node, *codes).exit_code

    def tell_best(self, code: int, *, retry: int = 0, pre: int = 0) -> Reply:
        codes = map(str, (code, retry, 1, pre))
        return self.call("tell-best", self.region, f"{self.region}.best", *codes)

    def finish(self, node: str, loss: float = 0.5, retry: int = 0) -> int:
        write_result(self.trial(node), metrics={"loss": loss})
        return self.tell(node, 0, retry=retry)

    def fail(self, node: str, *, retry: int, code: int = 1, message: str = "no") -> int:
        self.trial(node).err.write_text(message)
        return self.tell(node, code, retry=retry, retries=2)

    def train(self, *losses: float) -> None:
        """Train the first trials of the first lane."""
        for number, loss in enumerate(losses, start=1):
            node = f"{self.region}.l1.t0{number}"
            self.ask(node)
            assert self.finish(node, loss) == EXITS["done"]

    def train_best(self, loss: float = 0.05) -> None:
        """Train the best settings in full. The job leaves no model."""
        assert self.ask_best().exit_code == EXITS["done"]
        write_result(self.best, metrics={"loss": loss})


def region_of(node: str) -> str:
    return node.partition(".")[0]


def write_result(place: TrialFolder, **content: object) -> None:
    place.result.write_text(json.dumps({"status": "complete", **content}))
