"""A lane's job and its agent, played by the test, and the service that answers it."""

from __future__ import annotations

import json
import tarfile
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import Run
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane


class Job:
    """A lane's job, and the service that answers it."""

    def __init__(self, run: Run, node: str = "A.l1") -> None:
        self.run, self.node = run, node
        self.folder = RunFolder(run.folder)
        self.handler = ScriptRequests(self.folder)
        self.token, self.turn, self.leaves_model = "", 0, True

    def restart_service(self) -> None:
        self.handler = ScriptRequests(self.folder)

    def call(self, *words: str) -> Reply:
        return self.handler.handle([words[0], "A", self.node, *words[1:]])

    def submit(self, agent: str = "t1") -> Reply:
        self.token, self.turn = agent, 0
        reply = self.call("ask")
        number = f"({len(agent):03}.000.000) 2026-11-20 10:00:01"
        with self.place().log.open("a") as log:
            log.write(f"000 {number} Job submitted from host: <127.0.0.1:1>\n...\n")
            log.write(f"001 {number} Job executing on host: <127.0.0.1:1>\n...\n")
        if reply.exit_code == EXITS["done"] and is_lane(self.node):
            self.say("ask")
            self.handler.handle_events()
        return reply

    def post(self, code: str = "0", retry: int = 0) -> Reply:
        return self.call("tell", code, str(retry), "30", "0")

    def call_best(self, operation: str) -> int:
        return self.handler.handle([operation, "A", "A.best"]).exit_code

    def call_gate(self) -> int:
        return self.handler.handle(["ask-gate", "A", "A.gate"]).exit_code

    def place(self, name: str = "") -> TrialFolder:
        if name in {"best", "gate"}:
            end = getattr(self.folder.region("A"), name)
            return TrialFolder(end.root, self.place().node_root)
        return self.folder.region("A").trial(name or self.node)

    @property
    def order(self) -> dict[str, Any]:
        return dict(json.loads(self.place().order.read_text()))

    def say(self, say: str, **more: Any) -> None:
        self.turn += say != "begun" and say != "saved"
        plain = {"schema": 1, "job": f"{len(self.token)}.0", "token": self.token, "turn": self.turn}
        path = self.place().said
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps({**plain, "say": say, **more}))
        beside.replace(path)

    def leave(self, name: str, loss: float | None, err: str = "", ended: object = None) -> None:
        """Put a trial's package where its agent puts it. `ended` is its note of the trial's end."""
        box = self.run.folder / "box"
        for made in (box, box / "checkpoint"):
            made.mkdir(exist_ok=True)
        models = {model: {"metrics": {"loss": loss}} for model in ("champion", "challenger")}
        result = {"status": "complete", "metrics": {"loss": loss}, "models": models}
        (box / "result.json").write_text("" if loss is None else json.dumps(result))
        (box / "progress.jsonl").write_text('{"step": 1, "metrics": {"loss": 9}}\n')
        (box / "out").write_text(f"output of {name}")
        (box / "err").write_text(err)
        (box / "ended.json").write_text(json.dumps(ended))
        with tarfile.open(self.place(name).left, "w", format=tarfile.GNU_FORMAT) as tar:
            if ended is not None:
                tar.add(box / "ended.json", "ended.json")
            for file in ("result.json", "progress.jsonl", "out", "err"):
                tar.add(box / file, file)
            if name == "best" and self.leaves_model:
                tar.add(box / "result.json", "model/weights")

    def report(
        self, name: str, loss: float | None = 0.5, code: int = 0, err: str = "", **more: Any
    ) -> None:
        """End a trial. The service does not notice."""
        self.leave(name, loss, err)
        self.say("ended", trial=name, code=code, cpu_seconds=1.0, memory_mb=10.0, **more)

    def tell(self, name: str, loss: float | None = 0.5, **more: Any) -> dict[str, Any]:
        """End a trial, and return the order that follows."""
        self.report(name, loss, **more)
        self.handler.handle_events()
        return self.order

    def train_all(self) -> None:
        """Train the three trials of a region in a job that continues."""
        self.submit()
        for number in (1, 2, 3):
            self.tell(f"A.l1.t0{number}")

    def ask_as(self, agent: str) -> dict[str, Any]:
        """Ask as an agent that HTCondor started after another one, and return the order."""
        self.token, self.turn = agent, 0
        with self.place().log.open("a") as log:
            log.write("001 (002.000.000) 2026-11-20 10:00:05 Job executing on host: <1:1>\n...\n")
        self.say("ask")
        self.handler.handle_events()
        return self.order

    @property
    def states(self) -> dict[str, str]:
        return {trial.node: trial.state for trial in self.run.trials()}


@pytest.fixture
def job(make_run: MakeRun) -> Job:
    return Job(make_run(budget={"trials": 3, "lanes": 1, "trials_per_job": "all"}))


GOOD = {"code": 0, "seconds": 1.0, "cpu_seconds": 0.5, "memory_mb": 10.0, "over": None}
BAD = {**GOOD, "code": 1}
