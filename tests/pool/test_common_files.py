"""A region's files are sent to a machine once, and a trial that leaves its machine still starts."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor, active
from trialfleet import Run
from trialfleet.classads import JobStatus
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.status.common_file_transfers import OWN_COPY, REPAIR

DATA_KB = 30 * 1024  # more than the disk that the trial asks for
NODE = "A.l1.t01"
SECOND_MACHINE = """
DAEMON_LIST = $(DAEMON_LIST) SECOND
SECOND = $(STARTD)
SECOND_ARGS = -f -local-name second -n second
STARTD.second.STARTD_LOG = $(LOG)/StartLog.second
STARTD.second.STARTER_LOG = $(LOG)/StarterLog.second
STARTD.second.EXECUTE = $(LOCAL_DIR)/execute-second
STARTD.second.STARTD_ADDRESS_FILE = $(LOG)/.startd_second_address
"""
SECOND = "@second@"  # in the name of each of its slots


@pytest.fixture
def two_machines(make_pool: Callable[..., Pool]) -> Iterator[Pool]:
    pool = make_pool(extra=SECOND_MACHINE)
    (pool.folder / "execute-second").mkdir(parents=True)
    with active(pool):
        yield pool


@pytest.fixture
def trial(make_run: MakeRun, work: Path) -> Iterator[Run]:
    """A run of one trial, which reads a file of its region."""
    (work / "rows.bin").write_bytes(bytes(DATA_KB * 1024))
    run = make_run(
        {"steps": 400, "seconds": 0.25},
        regions={"A": {"data": [str(work / "rows.bin")]}},
        budget={"trials": 1, "lanes": 1, "trials_per_job": 1},
    )
    run.submit()
    yield run
    run.stop()


def job_of(run: Run) -> dict[str, Any]:
    """Return the ad of the trial's job; empty while it has none."""
    of_trial = f'{job_queue.run_constraint(RunFolder(run.folder))} && TrialfleetNode == "{NODE}"'
    names = ["ClusterId", "JobStatus", "RemoteHost", "LastRemoteHost", "DiskUsage"]
    return next(iter(schedd.query(of_trial, names)), {})


def place_of(run: Run) -> TrialFolder:
    return RunFolder(run.folder).region("A").trial(NODE)


def runs(run: Run) -> bool:
    return job_of(run).get("JobStatus") == JobStatus.RUNNING


def leave(run: Run) -> bool:
    """End the trial's job on its machine, which takes it no more; return if that was the second."""
    job = job_of(run)
    was_second = SECOND in job["RemoteHost"]
    other = f"regexp({json.dumps(SECOND)}, TARGET.Name) =!= {str(was_second).lower()}"
    number = str(job["ClusterId"])
    subprocess.run(["condor_qedit", number, "Requirements", other], check=True)
    subprocess.run(["condor_vacate_job", number], check=True)
    return was_second


def why(run: Run) -> dict[str, Any]:
    """Return what `trialfleet why` says of the trial."""
    asked = CliRunner().invoke(main, ["why", NODE, "--run", str(run.folder), "--json"])
    assert asked.exit_code == 0, asked.output
    answer: dict[str, Any] = json.loads(asked.output)
    return answer


@pytest.mark.thorough
@pytest.mark.usefixtures("two_machines")
def test_a_trial_that_leaves_its_machine_starts_on_another(trial: Run, wait_for: WaitFor) -> None:
    wait_for(lambda: runs(trial))
    assert "Common files event" in place_of(trial).log.read_text()
    was_second = leave(trial)
    wait_for(lambda: job_of(trial).get("LastRemoteHost") is not None, 60)
    wait_for(lambda: runs(trial), 60)
    assert (SECOND in job_of(trial)["RemoteHost"]) is not was_second
    wait_for(lambda: job_of(trial)["DiskUsage"] > DATA_KB, 60)  # its copy was measured
    job = job_queue.one_job(f"ClusterId == {job_of(trial)['ClusterId']}")
    assert job.eval("PeriodicHold") is False
    assert job.eval("RequestDisk") > job["DiskUsage"]


@pytest.mark.thorough
@pytest.mark.usefixtures("two_machines")
def test_a_trial_whose_files_never_come_is_reported_and_started(
    trial: Run, wait_for: WaitFor
) -> None:
    """As where a machine is lost before the files have arrived: the trial has left none."""
    wait_for(lambda: runs(trial))
    number = str(job_of(trial)["ClusterId"])
    subprocess.run(["condor_qedit", number, OWN_COPY, "false"], check=True)
    was_second = leave(trial)
    wait_for(lambda: trial.status().troubles, 60)
    began = time.monotonic()
    assert trial.status().troubles == (f"A: {NODE}: {REPAIR}",)
    answer = why(trial)
    assert (answer["kind"], answer["blame"], answer["why"]) == (
        "files",
        "pool",
        f"{NODE}: {REPAIR}",
    )
    assert job_of(trial)["JobStatus"] == JobStatus.BLOCKED
    wait_for(lambda: runs(trial), 60)
    print(f"it runs {time.monotonic() - began:.0f} s after the repair")
    assert (SECOND in job_of(trial)["RemoteHost"]) is not was_second
    [repair] = trial.status().repairs
    assert (repair["region"], repair["what"], repair["remedy"]) == (
        "A",
        f"{NODE}: {REPAIR}",
        "copy",
    )
    assert not trial.status().troubles
