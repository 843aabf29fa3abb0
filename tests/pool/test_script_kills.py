"""The scripts of a run's graphs are killed at random, before or after their work."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.conftest import MakeRun
from tests.pool.watching import assert_exactly_once, put_before_client
from trialfleet import RunState

TRIALS = 6
SOME_FAIL = {"type": "categorical", "choices": ["good", "raise", "exit"]}
# In place of the client, which is moved aside.
KILLED = """\
#!{python} -I
import os, random, signal, subprocess, sys

fate = random.Random(f"{seed} {{sys.argv[1:]}} {{os.getpid()}}").random()
if fate < {share} / 2:
    os.kill(os.getpid(), signal.SIGKILL)
code = subprocess.call([__file__ + ".own", *sys.argv[1:]])
if fate < {share}:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(code)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("seed", "share", "mood"),
    [(1, 0.15, "good"), (2, 0.3, "good"), (3, 0.3, SOME_FAIL)],
)
@pytest.mark.usefixtures("pool")
def test_a_run_succeeds_although_its_scripts_are_killed(
    make_run: MakeRun, seed: int, share: float, mood: Any
) -> None:
    run = make_run(
        {"mood": mood},
        regions=["A", "B", "C"],
        budget={"trials": TRIALS, "lanes": 2},
    )
    put_before_client(run, KILLED.format(python=sys.executable, seed=seed, share=share))
    run.submit()
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, TRIALS)
