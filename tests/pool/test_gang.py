"""Gangs on a real pool: several jobs train one model, and are killed, evicted and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import MakeRun
from trialfleet import Run, RunState
from trialfleet.nodes import trial
from trialfleet.nodes.gang import agent
from trialfleet.nodes.gang.network import free_port
from trialfleet.workflows.examples import EXAMPLES
from trialfleet.workflows.gang.records import read_roster
from trialfleet.workflows.gang.roster import RUN, Roster
from trialfleet.workflows.plan.folder import TrialFolder

pytestmark = pytest.mark.usefixtures("pool")

TRAINER = EXAMPLES["ddp"] / "train.py"
POINTS = EXAMPLES["first"] / "points"
NODE = "north.l1.t01"
WaitFor = Callable[..., None]


class GangRun:
    """A run of one trial, which is a gang of up to three."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.place = TrialFolder(run.folder / "regions/north/trials" / NODE)

    @property
    def roster(self) -> Roster | None:
        return read_roster(self.place)

    def trains(self, generation: int = 1, ranks: int = 3) -> bool:
        """Whether so many ranks train, in this generation or a later one."""
        now = self.roster
        is_new = now is not None and now.state == RUN and now.generation >= generation
        return is_new and now is not None and len(now.members) == ranks

    def has_saved(self) -> bool:
        """Whether a checkpoint of the generation that trains is on the access point."""
        now = self.roster
        names = (path.name for path in self.place.gang.glob("checkpoint.*.tar"))
        return now is not None and any(f".{now.generation:06}." in name for name in names)

    def processes(self, rank: int) -> list[psutil.Process]:
        """The agent of a rank, and its worker behind it."""
        assert self.roster is not None
        job = f"{self.roster.cluster}.{self.roster.members[rank].proc}"
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(agent.GANG) == job and "gang.agent" in process.cmdline():
                    return [process, *process.children()]
        raise AssertionError(f"no agent of {job}")

    def result(self) -> dict[str, float]:
        metrics: dict[str, float] = json.loads(self.place.result.read_text())["metrics"]
        return metrics

    def steps(self) -> list[int]:
        return [json.loads(line)["step"] for line in self.place.progress.read_text().splitlines()]


def undisturbed(place: TrialFolder, folder: Path) -> dict[str, float]:
    """What the same trial comes to in one process, by hand."""
    folder.mkdir()
    for file in (place.trial_json, TRAINER, Path(trial.__file__), POINTS / "north.csv"):
        shutil.copy(file, folder)
    (folder / "checkpoint").mkdir()
    here = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    here |= {"MASTER_PORT": str(free_port("127.0.0.1"))}
    subprocess.run(
        [sys.executable, TRAINER.name], cwd=folder, env={**os.environ, **here}, check=True
    )
    metrics: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return metrics


MakeGang = Callable[..., GangRun]


@pytest.fixture
def make_gang(make_run: MakeRun) -> Iterator[MakeGang]:
    made: list[Run] = []

    def make(steps: int, **changes: Any) -> GangRun:
        constants = {"width": 8, "learning_rate": 0.01, "steps": steps, "checkpoint_seconds": 1}
        settings = {
            "regions": ["north"],
            "data": [str(POINTS / "{region}.csv")],
            "objective": {"metric": "val_error", "direction": "minimize"},
            "budget": {"trials": 1, "lanes": 1},
            "trainer": {"command": ["python3", TRAINER.name], "files": [str(TRAINER)]},
            "resources": {"nodes": {"min": 2, "max": 3}, "memory": "1GB", "disk": "100MB"},
            "publish": "none",
        }
        run = make_run(constants, **(settings | changes))
        made.append(run)
        return GangRun(run)

    yield make
    for run in made:
        with suppress(Exception):
            run.stop()


def kill_worker(gang: GangRun) -> None:
    gang.processes(1)[1].kill()


def kill_rank(gang: GangRun) -> None:
    for process in gang.processes(1):
        process.kill()


def evict_first(gang: GangRun) -> None:
    assert gang.roster is not None
    job = f"{gang.roster.cluster}.{gang.roster.members[0].proc}"
    subprocess.run(["condor_vacate_job", job], check=True, capture_output=True)


@pytest.mark.parametrize(
    "disturb",
    [
        kill_worker,
        pytest.param(kill_rank, marks=pytest.mark.thorough),
        pytest.param(evict_first, marks=pytest.mark.thorough),
    ],
)
def test_a_disturbed_gang_comes_to_the_same(
    make_gang: MakeGang, wait_for: WaitFor, work: Path, disturb: Callable[[GangRun], None]
) -> None:
    own = make_gang(steps=1200)
    own.run.submit()
    wait_for(lambda: own.trains() and own.has_saved())
    before = own.roster
    assert before is not None
    disturb(own)
    wait_for(lambda: own.trains(before.generation + 1, ranks=3))
    assert own.roster is not None
    assert own.roster.start is not None, "it goes on from a checkpoint"
    assert own.run.wait().state is RunState.DONE
    assert own.result() == pytest.approx(undisturbed(own.place, work / "alone"), abs=1e-6)
    assert own.steps() == sorted(set(own.steps()))
    (record,) = own.run.trials()
    assert record.attempts == 1


@pytest.mark.thorough
def test_a_gang_goes_on_without_a_frozen_rank_and_takes_it_in_again(
    make_gang: MakeGang, wait_for: WaitFor, work: Path
) -> None:
    own = make_gang(steps=2000)
    own.run.submit()
    wait_for(lambda: own.trains() and own.has_saved())
    frozen = own.processes(0)
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    wait_for(lambda: own.trains(2, ranks=2))
    frozen[0].send_signal(signal.SIGCONT)
    wait_for(lambda: own.trains(3, ranks=3))
    assert own.run.wait().state is RunState.DONE
    assert own.result() == pytest.approx(undisturbed(own.place, work / "alone"), abs=1e-6)
