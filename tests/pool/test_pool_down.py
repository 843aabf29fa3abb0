"""`trialfleet pool down` while a run is in progress."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import MakeRun
from tests.pool.watching import SLOW, WaitFor, active, assert_exactly_once, finished_trials
from trialfleet import Run, RunState
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman.job_queue import runs_in_progress

TRIALFLEET = [sys.executable, "-m", "trialfleet"]


def take_down(pool: Pool, *options: str, answer: str | None = None) -> tuple[int, str]:
    """Return the command's exit code and what it said; there is a terminal if one answers it."""
    person, terminal = os.openpty()
    if answer is not None:
        os.write(person, f"{answer}\n".encode())
    done = subprocess.run(
        [*TRIALFLEET, "pool", "down", "--folder", str(pool.folder), *options],
        stdin=subprocess.DEVNULL if answer is None else terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    os.close(person)
    os.close(terminal)
    return done.returncode, done.stdout


@pytest.fixture
def own(make_pool: Callable[..., Pool]) -> Iterator[Pool]:
    with active(make_pool()) as pool:
        yield pool


@pytest.fixture
def begun(own: Pool, make_run: MakeRun, wait_for: WaitFor) -> Run:
    run = make_run(SLOW, budget={"trials": 4, "lanes": 2})
    run.submit()
    wait_for(lambda: finished_trials(run) >= 1)
    return run


@pytest.mark.thorough
def test_pool_down_names_a_run_in_progress_and_needs_a_yes(own: Pool, begun: Run) -> None:
    code, output = take_down(own)
    assert code == 2
    assert str(begun.folder) in output
    assert "--yes" in output
    assert "trialfleet stop" in output
    code, output = take_down(own, answer="n")
    assert code == 1
    assert str(begun.folder) in output
    assert own.is_up()
    assert begun.wait().state is RunState.DONE
    assert take_down(own) == (0, f"stopping the pool in {own.folder}\ndown\n")  # nothing to ask
    assert take_down(own) == (0, "down\n")


@pytest.mark.thorough
def test_a_run_continues_after_a_confirmed_pool_down(own: Pool, begun: Run) -> None:
    for options, answer in (["--yes"], None), ([], "y"):
        code, output = take_down(own, *options, answer=answer)
        assert code == 0
        assert str(begun.folder) in output
        assert own.status().state == "down"
        own.up()
    assert begun.wait().state is RunState.DONE
    assert_exactly_once(begun, 4)


def test_an_unreachable_queue_has_no_runs_in_progress() -> None:
    assert runs_in_progress({"PATH": "/nowhere"}) == []
