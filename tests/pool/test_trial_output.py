"""`trialfleet logs`: what a trial of a real job prints, before it has ended and after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor
from trialfleet import Run, RunState
from trialfleet.workflows.cli.main import main

TRAINER = """\
import sys, time, trial

def train(t):
    for step in range(8):
        print("line", step, flush=True)
        time.sleep(0.5)
    print("the end", file=sys.stderr)
    if t.mode == "final":
        (t.model / "weights").write_text("1")
    t.complete(loss=t.params["x"])

trial.run(train)
"""


def logs(run: Run, *words: str) -> Result:
    return CliRunner().invoke(main, ["logs", *words, "--run", str(run.folder)])


@pytest.mark.usefixtures("pool")
def test_a_trials_output_is_followed_to_its_end(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    (work / "train.py").write_text(TRAINER)
    run = make_run(
        trainer={"command": ["python3", "train.py"], "files": [str(work / "train.py")]},
        budget={"trials": 2, "lanes": 1, "trials_per_job": "all"},
    )
    assert "A.l1.t02 waits: trialfleet why A.l1.t02" in logs(run, "A.l1.t02").stderr
    run.submit()
    words = [sys.executable, "-m", "trialfleet", "logs", "-f", "A.l1.t01", "--run", str(run.folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stdout
        assert one.stderr
        assert one.stdout.readline() == "line 0\n"
        assert run.status().state is RunState.RUNNING
        assert "line 0\n" in logs(run, "A.l1").stdout, "a lane's name is that of its trial"
        rest, errors = one.stdout.read(), one.stderr.read()
    assert rest == "".join(f"line {step}\n" for step in range(1, 8))
    assert errors.splitlines()[-1] == "the end"
    wait_for(lambda: run.status().state is RunState.DONE, 90)
    ended = logs(run, "A.l1.t02", "--lines", "1")
    assert (ended.stdout, ended.stderr) == ("line 7\n", "the end\n")
    assert "line 7" in logs(run, "A.best").stdout
    refused = logs(run, "A")
    assert (refused.exit_code, "name a trial such as" in refused.stderr) == (2, True)
    assert (
        "'B.l1.t01' is not a job, an instance, or a region or node" in logs(run, "B.l1.t01").stderr
    )
