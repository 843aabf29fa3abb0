"""An access point that answers a job's agent out of a list, and an agent to answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.nodes.chirp_server import ChirpServer
from trialfleet.infra.pool.user_namespace import identity
from trialfleet.nodes.job import archive

LEAVE = {"do": "leave", "code": 0, "why": "nothing is left"}


def train(name: str, **more: Any) -> dict[str, Any]:
    """Return the order to train a trial."""
    trial = {"schema": 1, "node": name, "params": {}, "objective": {"metric": "loss"}}
    return {"do": "train", "name": name, "trial": trial, "left": [], "last": False, **more}


class AccessPoint:
    """A job's folder, and what is answered there.

    Attributes:
        said: what agents said.
        delay: seconds until something is answered.
        answers: to what is asked, in turn.
        python: with which agents are started.
        sandbox: where.
    """

    def __init__(self, folder: Path, sandbox: Path) -> None:
        self.words, self.python = folder / "words", sys.executable
        self.words.mkdir(parents=True)
        self.move(sandbox)
        self.order(token="", turn=0)
        self.server = ChirpServer(folder)
        self.delay = 0.0
        self.said: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.agents: list[subprocess.Popen[str]] = []

    def move(self, sandbox: Path) -> None:
        """Have the next agent work in a sandbox that is as the job's was at first."""
        self.sandbox = sandbox
        sandbox.mkdir()
        archive.build(sandbox / "agent.pyz")
        (sandbox / "condor_exec.exe").write_text("ours")

    def order(self, **words: Any) -> None:
        part = self.words / "order.part"
        part.write_text(json.dumps({"schema": 1, **words}))
        part.replace(self.words / "order.json")

    def first(self, order: dict[str, Any]) -> None:
        """Have the job begin with an order."""
        self.order(token="", turn=0, **order)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start an agent, as RUN/start does; for root by the account of its jobs."""
        ad = self.sandbox / ".job.ad"
        ad.write_text("ClusterId = 12\nProcId = 0\nNumShadowStarts = 1\nRequestDisk = 100000\n")
        config = self.sandbox / ".chirp.config"
        if not config.exists():
            self.server.write_config(self.sandbox)
        agent = subprocess.Popen(
            [*identity().prefix, self.python, "-I", "-S", "agent.pyz", "--", *command],
            cwd=self.sandbox,
            env={
                **os.environ,
                "_CONDOR_CHIRP_CONFIG": str(config),
                "_CONDOR_JOB_AD": str(ad),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.agents.append(agent)
        return agent

    def run(self, *command: str, **variables: str) -> int:
        """Start an agent and return its exit code."""
        return self.wait(self.start(*command, **variables), seconds=60)

    def wait(self, agent: subprocess.Popen[str], seconds: float) -> int:
        """Return an agent's exit code. After the limit of `seconds`, kill the agent and fail."""
        with agent:
            try:
                self.out, self.err = agent.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                agent.kill()
                raise
        return agent.returncode

    def serve(self) -> None:
        """Answer until `close`."""
        self.server.on_rename = self._hear
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()

    def _hear(self, file: str) -> None:
        if file != "words/agent.json":
            return
        said = json.loads((self.words / "agent.json").read_bytes())
        self.said.append(said)
        if said["say"] in {"ask", "ended"} and self.answers:
            order = {"token": said["token"], "turn": said["turn"], **self.answers.pop(0)}
            threading.Timer(self.delay, self.order, kwargs=order).start()

    def recorded(self) -> list[tuple[str, int]]:
        """Return the trials with a reported end, with their codes."""
        return [(said["trial"], said["code"]) for said in self.said if said["say"] == "ended"]

    def left(self, trial: str, what: str = "result") -> dict[str, str]:
        """Return the files of a package."""
        with tarfile.open(self.words / f"{trial}.{what}.tar") as tar:
            files = [(info.name, tar.extractfile(info)) for info in tar]
            return {name: file.read().decode() for name, file in files if file}

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        for agent in self.agents:
            agent.kill()
            agent.wait()


@contextmanager
def serving(folder: Path) -> Iterator[AccessPoint]:
    """Give an access point that serves a folder below this one; no agent of it is left."""
    point = AccessPoint(folder / "on-the-access-point", folder / "sandbox")
    point.serve()
    try:
        yield point
    finally:
        point.close()
