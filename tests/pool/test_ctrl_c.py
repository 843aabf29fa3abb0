"""Ctrl-C at any moment; `python -m tests.pool.ctrl_c` presses it some hundred times."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pool import ctrl_c
from trialfleet.infra.pool.embedded import Pool

QUERIES = """
import os, random, signal, time
import htcondor2
from trialfleet.infra.pool import schedd

own = htcondor2.Schedd()
schedd.use, schedd.connect = lambda _: None, dict
schedd.local_schedd = lambda: own  # so that nearly all the time passes in the bindings
me, pressed, asking = os.getpid(), 0, False


def press(*_):  # raises within the try alone
    global pressed, asking
    pressed += 1
    if asking:
        asking = False
        raise KeyboardInterrupt


signal.signal(signal.SIGINT, press)
if os.fork() == 0:
    moments = random.Random(1)
    for _ in range(400):
        time.sleep(moments.uniform(0.002, 0.02))
        if os.getppid() == me:
            os.kill(me, signal.SIGINT)
    time.sleep(1)  # the last is answered
    if os.getppid() == me:
        os.kill(me, signal.SIGUSR1)
    os._exit(0)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0 if pressed > 20 else 3))
while True:
    try:
        asking = True
        while True:
            schedd.query("true", ["ClusterId"])
    except KeyboardInterrupt:
        pass
"""


def test_a_query_survives_repeated_ctrl_c(pool: Pool) -> None:
    """HTCondor's bindings crash when what they call back raises."""
    done = subprocess.run([sys.executable, "-c", QUERIES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seconds", [0.6, 2.0, 4.0, 8.0])
def test_ctrl_c_says_whether_the_run_continues(pool: Pool, work: Path, seconds: float) -> None:
    delay = random.Random(seconds).uniform(seconds / 2, seconds)  # noqa: S311
    what, screen = ctrl_c.press(pool, ctrl_c.write_study(work), work / "run", delay)
    assert what in ctrl_c.RIGHT, f"after {delay} s: {what}\n{screen}"


def test_ctrl_c_stays_ignored_if_the_caller_ignores_it(work: Path) -> None:
    press = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    program = f"from trialfleet import ctrl_c; ctrl_c.answer_from_the_start(); {press}"
    ignoring = ["env", "--ignore-signal=INT", sys.executable, "-c", program]
    assert subprocess.run(ignoring).returncode == 0
    assert subprocess.run(ignoring[2:]).returncode == 128 + signal.SIGINT
