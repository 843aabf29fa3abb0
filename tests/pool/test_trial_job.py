"""A job's agent under HTCondor itself: its access point is this test."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pool.watching import WaitFor
from trialfleet.nodes.job import archive

pytestmark = pytest.mark.usefixtures("pool")

SUBMIT = """\
universe = vanilla
executable = start
log = log
output = out
error = err
transfer_input_files = agent.pyz, data.csv
transfer_output_files = ""
should_transfer_files = YES
when_to_transfer_output = ON_EXIT_OR_EVICT
want_io_proxy = true
My.WantRemoteUpdates = False
My.LimitDirectoryAccess = "{folder}/"
checkpoint_exit_code = 85
transfer_checkpoint_files = data.csv
kill_sig = SIGTERM
request_memory = 64
request_disk = 20000
queue
"""
TRAINER = 'echo $(cat data.csv); echo \'{"step": 1, "metrics": {"loss": 1}}\' >> progress.jsonl'


class Job:
    """A trial job's folder, and what its agent says."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder, self.words = folder, folder / "words"
        self.words.mkdir(parents=True)
        archive.build(folder / "agent.pyz")
        (folder / "data.csv").write_text("rows")
        (folder / "script").write_text(script)
        start = folder / "start"
        quoted = script.replace("'", "'\\''")
        start.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S agent.pyz -- sh -c '{quoted}'\n")
        start.chmod(0o755)
        (folder / "job.sub").write_text(SUBMIT.format(folder=folder))

    def order(self, token: str, turn: int, **words: Any) -> None:
        part = self.words / "order.part"
        part.write_text(json.dumps({"schema": 1, "token": token, "turn": turn, **words}))
        part.replace(self.words / "order.json")

    def train(self, token: str, turn: int, name: str, *, last: bool = False) -> None:
        trial = {"schema": 1, "node": name, "params": {}, "objective": {"metric": "loss"}}
        self.order(token, turn, do="train", name=name, trial=trial, left=[], last=last)

    def submit(self) -> str:
        words = ["condor_submit", "-terse", "job.sub"]
        done = subprocess.run(words, cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.split(" ")[0]

    def said(self) -> dict[str, Any]:
        try:
            said: dict[str, Any] = json.loads((self.words / "agent.json").read_bytes())
        except (OSError, ValueError):
            return {"say": None, "trial": None}
        return said

    def is_recorded(self, name: str) -> bool:
        said = self.said()
        return (said["say"], said["trial"]) == ("ended", name)

    def wait_until_recorded(self, name: str) -> None:
        deadline = time.monotonic() + 120
        while not self.is_recorded(name):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.002)

    def left(self, name: str, file: str) -> str:
        with tarfile.open(self.words / f"{name}.result.tar") as tar:
            found = tar.extractfile(file)
            assert found is not None
            return found.read().decode()


def test_a_job_trains_one_trial_after_another(work: Path, wait_for: WaitFor) -> None:
    job = Job(work / "job", TRAINER)
    job.train("", 0, "A.t1")
    job.submit()
    for number in range(1, 9):
        job.wait_until_recorded(f"A.t{number}")
        said = job.said()
        job.train(said["token"], said["turn"], f"A.t{number + 1}", last=number == 8)
    wait_for(lambda: "Job terminated" in (job.folder / "log").read_text())
    assert "return value 0" in (job.folder / "log").read_text()
    assert [job.left(f"A.t{number}", "out") for number in range(1, 10)] == ["rows\n"] * 9


def test_an_evicted_trial_continues_from_its_checkpoint(work: Path, wait_for: WaitFor) -> None:
    script = """
        cat checkpoint/step && exit
        trap 'echo 7 > checkpoint/step; exit 85' TERM; echo > ready; echo 1 >> progress.jsonl
        sleep 600 & wait
    """
    job = Job(work / "job", script)
    job.train("", 0, "A.t1", last=True)
    number = job.submit()
    reports = job.words / "reports.jsonl"
    wait_for(lambda: reports.exists() and reports.read_text())
    query = ["condor_q", number, "-af", "ChirpTrialfleetTrial"]
    wait_for(lambda: "A.t1" in subprocess.run(query, capture_output=True, text=True).stdout)
    subprocess.run(["condor_vacate_job", number], check=True)
    wait_for(lambda: "Job terminated" in (job.folder / "log").read_text())
    assert job.left("A.t1", "out") == "7\n"
    assert job.said()["starts"] == 2
