"""Gangs on a real pool: several jobs train one model, and are killed, evicted and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest

from tests import gang_rank
from tests.conftest import MakeRun
from tests.moto_server import empty_account, moto_server
from tests.pool.watching import dagmans, processes_with, programs_of, services
from tests.ports import reserved_port
from tests.unit.tabular.small_trials import make_sandbox, make_table
from trialfleet import Run, RunState
from trialfleet.nodes import job_start, trial
from trialfleet.nodes.gang.s3_checkpoints import parse_pointer
from trialfleet.nodes.job.folder import TRIALS
from trialfleet.workflows.examples import EXAMPLES
from trialfleet.workflows.facts.jobs.gang_records import read_roster
from trialfleet.workflows.facts.jobs.gang_roster import RUN, Roster
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.usefixtures("pool")

TRAINER = EXAMPLES["ddp"] / "train.py"
POINTS = EXAMPLES["first"] / "points"
NODE, FIRST = "north.l1", "north.l1.t01"
GANGS = int(os.environ.get("GANGS", "5"))  # of two slots each that want four, all at once
WaitFor = Callable[..., None]


class GangRun:
    """A run of one lane, which is a gang of up to three."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def place(self) -> TrialFolder:
        """The folder of its first trial."""
        return RunFolder(self.run.folder).region("north").trial(FIRST)

    @property
    def roster(self) -> Roster | None:
        return read_roster(self.place)

    def trains(self, generation: int = 1, ranks: int = 3) -> bool:
        """Return whether this number of ranks trains, in this generation or a later one."""
        now = self.roster
        is_new = now is not None and now.state == RUN and now.generation >= generation
        return is_new and now is not None and len(now.members) == ranks

    def has_saved(self) -> bool:
        """Return whether a checkpoint of the generation that trains is on the access point."""
        now = self.roster
        names = (path.name for path in self.place.gang.glob("checkpoint.*.tar"))
        return now is not None and any(f".{now.generation:06}." in name for name in names)

    def processes(self, rank: int) -> list[psutil.Process]:
        """Return the agent of a rank, and behind it its worker."""
        assert self.roster is not None
        job = f"{self.roster.cluster}.{self.roster.members[rank].proc}"
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                agent = process.parent()
                is_worker = process.cwd().endswith(f"/{TRIALS}/{self.roster.trial}")
                if agent and is_worker and process.environ().get(job_start.GANG) == job:
                    return [agent, *(each for each in agent.children() if TRIALS in each.cwd())]
        raise AssertionError(f"no agent of {job}")

    def result(self) -> dict[str, float]:
        metrics: dict[str, float] = json.loads(self.place.result.read_text())["metrics"]
        return metrics

    def steps(self) -> list[int]:
        return [json.loads(line)["step"] for line in self.place.progress.read_text().splitlines()]


def undisturbed(place: TrialFolder, folder: Path) -> dict[str, float]:
    """Return the metrics of the same trial in one process, by hand."""
    folder.mkdir()
    for file in (place.trial_json, TRAINER, Path(trial.__file__), POINTS / "north.csv"):
        shutil.copy(file, folder)
    (folder / "checkpoint").mkdir()
    here = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    here |= {"MASTER_PORT": str(reserved_port())}
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
        constants = {"width": 8, "learning_rate": 0.01, "steps": steps, "checkpoint_seconds": 0.5}
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


def keepers(gang: GangRun) -> list[psutil.Process]:
    return programs_of(gang.run.folder, "keep-gangs")


def evict_first(gang: GangRun) -> None:
    assert gang.roster is not None
    job = f"{gang.roster.cluster}.{gang.roster.members[0].proc}"
    subprocess.run(["condor_vacate_job", job], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("disturb", "steps"),
    [
        pytest.param(kill_worker, 500, marks=pytest.mark.thorough),
        pytest.param(kill_rank, 1200, marks=pytest.mark.thorough),
        pytest.param(evict_first, 1200, marks=pytest.mark.thorough),
    ],
)
def test_a_disturbed_gang_has_the_same_result(
    make_gang: MakeGang,
    wait_for: WaitFor,
    work: Path,
    disturb: Callable[[GangRun], None],
    steps: int,
) -> None:
    own = make_gang(steps=steps)
    own.run.submit()
    wait_for(lambda: own.trains() and own.has_saved())
    before = own.roster
    assert before is not None
    disturb(own)
    assert own.run.wait().state is RunState.DONE
    assert own.result() == pytest.approx(undisturbed(own.place, work / "alone"), abs=1e-6)
    assert own.steps() == sorted(set(own.steps()))
    assert own.roster is not None
    assert own.roster.generation > before.generation
    assert own.roster.start is not None, "it went on from a checkpoint"
    (record,) = own.run.trials()
    assert record.attempts == 1


@pytest.mark.thorough
def test_a_gang_that_lost_a_rank_continues_from_a_checkpoint_in_s3(
    make_gang: MakeGang, wait_for: WaitFor, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (keys := work / "credentials").write_text(
        "[default]\naws_access_key_id = id\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto_server() as address:
        empty_account(address)
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="ours")
        size = {"min": 2, "max": 3, "checkpoints": "s3://ours/gangs"}
        own = make_gang(steps=1200, resources={"nodes": size, "memory": "1GB", "disk": "100MB"})
        own.run.submit()
        wait_for(
            lambda: (
                own.trains()
                and any(parse_pointer(p.read_bytes()) for p in own.place.gang.glob("ch*.tar"))
            )
        )
        kill_rank(own)
        wait_for(lambda: own.roster is not None and own.roster.start is not None)
        assert own.roster is not None
        assert s3.list_objects_v2(Bucket="ours", Prefix="gangs/demo/")["KeyCount"] > 0
        assert own.run.wait().state is RunState.DONE
        wait_for(lambda: s3.list_objects_v2(Bucket="ours")["KeyCount"] == 0)
    assert own.result() == pytest.approx(undisturbed(own.place, work / "alone"), abs=1e-6)


@pytest.mark.thorough
def test_a_gangs_jobs_train_several_trials_and_then_the_best_settings(
    make_gang: MakeGang, wait_for: WaitFor
) -> None:
    own = make_gang(steps=300, budget={"trials": 3, "lanes": 1}, publish="models")
    own.run.submit()
    second = FIRST.replace("t01", "t02")

    def trains_second() -> bool:
        is_second = own.roster is not None and own.roster.trial == second
        return is_second and own.trains() and own.has_saved()

    wait_for(trains_second)
    for process in [*keepers(own), *services(own.run)]:
        process.kill()
    kill_worker(own)
    status = own.run.wait()
    assert status.state is RunState.DONE
    assert status.regions[0].published
    records = own.run.trials()
    assert [(record.node, record.attempts) for record in records] == [
        (f"{NODE}.t{number:02}", 1) for number in (1, 2, 3)
    ]
    assert all(record.ranks in {2, 3} for record in records), records
    assert all((record.memory_mb or 0) > 1 for record in records), records
    log = own.place.log.read_text()
    assert log.count("Job submitted from host") == 3, "the jobs of one gang"
    assert all(f"{name} ends code=0" in log for name in ("t01", "t03", "best"))
    place = RunFolder(own.run.folder).region("north").best
    assert json.loads(place.by_lane.read_text())["done"]


@pytest.mark.thorough
def test_a_gang_continues_without_a_frozen_rank_and_admits_it_again(
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


@pytest.mark.thorough
def test_a_gang_survives_kills_of_its_keeper_and_service(
    make_gang: MakeGang, wait_for: WaitFor, work: Path
) -> None:
    own = make_gang(steps=1500)
    own.run.submit()
    wait_for(lambda: own.roster is not None)
    for process in [*keepers(own), *services(own.run)]:
        process.kill()
    wait_for(lambda: own.trains() and own.has_saved())
    for process in [*keepers(own), *services(own.run)]:
        process.kill()
    kill_rank(own)  # the next generation forms after the keeper is back
    assert own.run.wait().state is RunState.DONE
    assert own.result() == pytest.approx(undisturbed(own.place, work / "alone"), abs=1e-6)
    (record,) = own.run.trials()
    assert record.attempts == 1
    assert record.generations is not None
    assert record.generations >= 2


TRAINER_OF_ANY_KIND = """\
[ "$WORLD_SIZE" = 2 ] || exit 3
[ -s checkpoint/words ] || {{ echo "$RANK of $WORLD_SIZE" >checkpoint/words; exit 85; }}
[ {faulty} = 0 ] || [ "$RANK" = 0 ] || {{ echo "rank 1 has a fault" >&2; exit 7; }}
[ {faulty} = 0 ] || sleep 60
cp checkpoint/words model/words
echo '{{"status": "complete", "metrics": {{"val_error": 0.5}}}}' >result.json
"""


@pytest.mark.thorough
@pytest.mark.parametrize("faulty", [False, True])
def test_ranks_in_any_language_find_each_other_by_environment_variables(
    make_gang: MakeGang, work: Path, faulty: bool
) -> None:
    script = work / "train.sh"
    script.write_text(TRAINER_OF_ANY_KIND.format(faulty=int(faulty)))
    own = make_gang(
        steps=1,
        trainer={"command": ["sh", script.name], "files": [str(script)]},
        resources={"nodes": {"min": 2, "max": 2}, "memory": "100MB", "disk": "20MB"},
        retries=0,
        publish="models",
    )
    own.run.submit()
    status = own.run.wait()
    (region,) = status.regions
    if faulty:
        assert status.state is RunState.FAILED
        assert region.cause is not None
        assert region.cause.error == "exit code 7: rank 1 has a fault"
        assert Path(region.cause.log).read_text().splitlines()[-1] == "rank 1 has a fault"
    else:
        assert status.state is RunState.DONE, status
        assert (Path(region.published or "") / "words").read_text() == "0 of 2\n"


@pytest.mark.thorough
def test_gangs_that_have_half_of_their_slots_do_not_wait_for_each_other(
    make_gang: MakeGang, work: Path
) -> None:
    script = work / "train.sh"
    script.write_text(TRAINER_OF_ANY_KIND.format(faulty=0))
    names = [f"r{number}" for number in range(GANGS)]
    own = make_gang(
        steps=1,
        regions=names,
        data=[],
        trainer={"command": ["sh", script.name], "files": [str(script)]},
        resources={"nodes": {"min": 2, "max": 2}, "memory": "100MB", "disk": "20MB"},
    )
    own.run.submit()
    assert own.run.wait().state is RunState.DONE
    assert [record.attempts for record in own.run.trials()] == [1] * GANGS


def test_why_explains_a_gang_without_enough_slots_and_stop_ends_it(
    make_gang: MakeGang, wait_for: WaitFor
) -> None:
    own = make_gang(
        steps=1,
        resources={"nodes": {"min": 5, "max": 5}, "memory": "100MB", "disk": "20MB"},
        trainer={"command": ["sleep", "60"]},
    )
    own.run.submit()

    def says() -> bool:
        answer = explain(NODE, str(own.run.folder))
        return "its gang has " in answer.why and "needs at least 5 to train" in answer.why

    wait_for(says)
    (region,) = own.run.status().regions
    counted = (region.running, region.queued)
    assert counted == (0, 1), "one lane, whatever the number of its jobs"
    own.run.stop()
    assert own.run.wait().state is RunState.STOPPED


@pytest.mark.thorough
@pytest.mark.parametrize("daemon", ["condor_dagman", "condor_schedd"])
def test_a_gang_survives_kills_of_htcondors_daemons(
    make_gang: MakeGang, wait_for: WaitFor, work: Path, daemon: str
) -> None:
    own = make_gang(steps=2500)
    own.run.submit()
    wait_for(lambda: own.trains() and own.has_saved())
    found = dagmans(own.run) if daemon == "condor_dagman" else processes_with(daemon)
    for process in found:
        process.kill()
    assert own.run.wait().state is RunState.DONE
    assert own.result() == pytest.approx(undisturbed(own.place, work / "alone"), abs=1e-6)
    (record,) = own.run.trials()
    assert record.attempts == 1


@pytest.mark.thorough
def test_a_gang_that_runs_too_long_has_failed_for_good(make_gang: MakeGang) -> None:
    own = make_gang(
        steps=1,
        trainer={"command": ["sleep", "600"], "minutes": 0.15},
        resources={"nodes": {"min": 2, "max": 2}, "memory": "100MB", "disk": "20MB"},
    )
    own.run.submit()
    assert own.run.wait().state is RunState.FAILED
    (record,) = own.run.trials()
    assert record.attempts == 1
    assert "over its time: ran for more than 0.15 min" in (record.error or "")


SHARED_OUT = {"tensor_parallel": 2, "offload": "embeddings"}


@pytest.mark.parametrize(
    "way",
    [pytest.param({}, marks=pytest.mark.thorough), SHARED_OUT],
    ids=["each step", "shared out"],
)
def test_the_reference_trainer_trains_one_region_over_several_slots(
    make_run: MakeRun, work: Path, tmp_path: Path, way: dict[str, Any]
) -> None:
    for region in ("north", "south"):
        make_table(work / f"{region}.npz", kinds=90)
    run = make_run(
        {"epochs": 4, "hidden": 16, "dropout": 0.2, "batch_size": 50, **way},
        regions={"north": {"nodes": {"min": 2, "max": 2}}, "south": {}},
        data="{region}.npz",
        objective={"metric": "val_loss", "direction": "minimize"},
        search_space={"learning_rate": {"type": "float", "low": 1e-3, "high": 1e-2, "log": True}},
        trainer="tabular",
        budget={"trials": 1, "lanes": 1},
        resources={"memory": "1GB", "disk": "100MB"},
    )
    run.submit()
    assert run.wait().state is RunState.DONE
    assert {entry.region for entry in run.best() if entry.published} == {"north", "south"}
    north, south = (run.trials(region) for region in ("north", "south"))
    assert [trial.ranks for trial in north] == [2]
    assert [trial.ranks for trial in south] == [None]
    place = RunFolder(run.folder).region("north").trial(FIRST)
    metrics = json.loads(place.result.read_text())["metrics"]
    assert metrics == pytest.approx(
        alone_in_its_gang(place, work / "north.npz", tmp_path), rel=1e-4
    )


def alone_in_its_gang(place: TrialFolder, table: Path, tmp_path: Path) -> dict[str, float]:
    """Train a trial of the reference trainer with one rank that holds all of the model."""
    folder = make_sandbox(tmp_path / "alone", kernels=True)
    order = json.loads(place.trial_json.read_text())
    order["params"] = {n: v for n, v in order["params"].items() if n not in SHARED_OUT}
    (folder / "trial.json").write_text(json.dumps(order))
    shutil.copy(table, folder)
    (rank,) = gang_rank.start([folder])
    rank.join(60)
    metrics: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return metrics


FULL = """\
import os, resource, trial
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (64, 64))
t = trial.start()
t.complete(val_error=1.0)
"""


def test_a_gangs_job_does_not_return_to_a_full_machine_again_and_again(
    make_gang: MakeGang, wait_for: WaitFor, tmp_path: Path
) -> None:
    """A limit of the size of the agents' files stands for a full disk: no second trial begins."""
    (tmp_path / "full.py").write_text(FULL)
    trainer = {"command": ["python3", "full.py"], "files": [str(tmp_path / "full.py")]}
    gang = make_gang(5, trainer=trainer, budget={"trials": 2, "lanes": 1})
    gang.run.submit()
    asked = [
        "condor_q",
        "-af",
        "ExitCode",
        "NumShadowStarts",
        "-constraint",
        "TrialfleetGangMin > 0",
    ]

    def left() -> set[str]:
        words = subprocess.run([*asked], capture_output=True, text=True, check=True).stdout
        return {line for line in words.splitlines() if line.startswith("87 ")}

    wait_for(lambda: len(left()) > 0)
    time.sleep(20)  # HTCondor would have matched it several times
    assert left() == {"87 1"}
