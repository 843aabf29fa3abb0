"""Jobs that train one trial after another, on a real pool, and what interrupts them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.pool.conftest import CPUS
from tests.pool.watching import WaitFor, assert_exactly_once, finished_trials, services, steps_run
from trialfleet import Run, RunState, untrusted_files
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.jobs.execution_notes import noted_parts
from trialfleet.workflows.facts.jobs.job_log import read_executions
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

pytestmark = pytest.mark.usefixtures("pool")


@pytest.fixture
def litter(work: Path) -> Path:
    """A folder in which each start of a trainer leaves a process that never ends."""
    (folder := work / "litter").mkdir()
    return folder


def starts(litter: Path) -> Counter[str]:
    """Count the starts of each trial."""
    return Counter(file.read_text().split()[0] for file in litter.iterdir())


def agent_of(litter: Path, trial: str) -> int:
    """Return the process that started a trial last."""
    last = max(litter.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    name, agent = last.read_text().split()
    assert name == trial
    return int(agent)


def trial_of(run: Run, name: str) -> TrialFolder:
    return RunFolder(run.folder).region(name[0]).trial(name)


def lives(run: Run, name: str) -> list[str]:
    """Return the first line that a trial's trainer printed in each of its lives."""
    return trial_of(run, name).out.read_text().splitlines()


def begins(run: Run, region: str) -> list[float]:
    """Return the times at which jobs of a region's lane began to execute."""
    return [began for began, _ in read_executions(trial_of(run, f"{region}.l1").log)]


def test_one_job_trains_all_trials_of_a_region_submitted_alone(
    make_run: MakeRun, litter: Path, wait_for: WaitFor
) -> None:
    run = make_run(
        {"litter": str(litter)}, regions=["A", "B"], budget={"trials": 3, "lanes": 1}, retries=0
    )
    subprocess.run(["condor_submit_dag", run.folder / "regions/A/region.dag"], cwd="/", check=True)
    wait_for((run.folder / "regions/A/published.json").exists)
    assert [(r.trial, r.state, r.attempts) for r in run.trials("A")] == [
        (number, "complete", 1) for number in range(3)
    ]
    assert run.trials("B") == []
    trained = ["A.l1.t01", "A.l1.t02", "A.l1.t03"]
    assert starts(litter) == dict.fromkeys([*trained, "A.best"], 1)
    assert trial_of(run, "A.l1").log.read_text().count("Job submitted from host") == 1
    assert not RunFolder(run.folder).region("A").best.log.exists()
    log = trial_of(run, "A.l1").log
    noted = noted_parts(log, untrusted_files.file_stamp(log))
    assert noted, "its POST script saw the end of the log"
    assert [*noted.trials] == [*trained, "best"]
    printed = [lives(run, name) for name in trained]
    assert all(len(lines) == 1 and lines[0].endswith(" from step 0") for lines in printed)
    assert len({lines[0] for lines in printed}) == 3, "a process for each"


@pytest.mark.thorough
def test_a_service_without_a_graph_is_restarted_when_jobs_ask(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run({"seconds": 1.0}, regions=["A"], budget={"trials": 3, "lanes": 1})
    subprocess.run(["condor_submit_dag", run.folder / "regions/A/region.dag"], cwd="/", check=True)
    wait_for(lambda: finished_trials(run) >= 1)
    (service,) = services(run)
    service.kill()
    wait_for((run.folder / "regions/A/published.json").exists)
    assert_exactly_once(run, 3)
    assert [repair["remedy"] for repair in run.status().repairs] == ["serve"]
    log = trial_of(run, "A.l1").log.read_text()
    assert log.count("Job submitted from host") == 1, "the job waited for its answer"


def test_jobs_take_turns_on_a_slot_while_their_service_is_killed(
    make_run: MakeRun, litter: Path, wait_for: WaitFor
) -> None:
    run = make_run(
        {"litter": str(litter), "seconds": 0.6},
        regions=["A", "B"],
        budget={"trials": 4, "lanes": 1, "job_minutes": 0.01},
        resources={"cpus": CPUS, "memory": "100MB", "disk": "20MB"},
    )
    run.submit()
    for finished in (1, 4):
        wait_for(lambda many=finished: finished_trials(run) >= many)
        for process in services(run):
            with suppress(ProcessLookupError):  # a script's client, that has ended
                os.kill(process.pid, signal.SIGKILL)
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 4)
    assert set(starts(litter).values()) == {1}, "what had ended was trained again"
    assert len(starts(litter)) == 2 * 5
    of_a, of_b = begins(run, "A"), begins(run, "B")
    assert min(len(of_a), len(of_b)) >= 2
    assert of_a[0] < of_b[-1]
    assert of_b[0] < of_a[-1]


def test_trials_continue_after_a_killed_agent_and_a_vacated_job(
    make_run: MakeRun, litter: Path, wait_for: WaitFor
) -> None:
    run = make_run(
        {"litter": str(litter), "steps": 20, "seconds": 0.25, "save_every": 4, "upload": True},
        budget={"trials": 2, "lanes": 1},
        publish="none",
    )
    run.submit()
    first, second = trial_of(run, "A.l1.t01"), trial_of(run, "A.l1.t02")
    wait_for(first.saved.exists)
    os.kill(agent_of(litter, "A.l1.t01"), signal.SIGKILL)

    wait_for(second.saved.exists)
    (ad,) = job_queue.look_up(RunFolder(run.folder)).running_ads
    subprocess.run(["condor_vacate_job", str(ad["ClusterId"])], check=True)
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 2)
    assert [record.attempts for record in run.trials()] == [1, 1]
    for place in (first, second):
        assert steps_run(place) == list(range(1, 21))
        steps = [int(line.split()[-1]) for line in lives(run, place.root.name)]
        assert steps[0] == 0
        assert steps == sorted(steps)
        assert steps[1] >= 4, "it went on from its checkpoint"
    assert "Job was evicted" in second.log.read_text()
