"""Only the user's own errors use up `retries`: a node's faults don't."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.pool.conftest import MakePool
from tests.pool.watching import WaitFor, active
from trialfleet import Run, RunState
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.why.explain import explain

# Fails this number of times, with any parameters.
TRAINER = """\
echo x >> {tries}
[ "$(wc -l < {tries})" -gt {failures} ] || {{ echo "{words}" >&2; exit 1; }}
echo x > model/x
echo '{{"status": "complete", "metrics": {{"loss": 0.5}}}}' > result.json
"""
ONE = {"trials": 1, "lanes": 1, "failures": 0}
SICK = {
    "GPU_DISCOVERY_EXTRA": "-extra -simulate:4,1",
    "STARTD_ATTRS": "$(STARTD_ATTRS) TrialfleetGpuHealthy TrialfleetGpuReason",
    "TrialfleetGpuHealthy": "False",
    "TrialfleetGpuReason": '"Xid 79"',
}


def make_failing_run(make_run: MakeRun, work: Path, failures: int, words: str) -> Run:
    text = TRAINER.format(tries=work / "tries", failures=failures, words=words)
    (work / "train.sh").write_text(text)
    trainer = {"command": ["sh", "train.sh"], "files": [str(work / "train.sh")]}
    return make_run(trainer=trainer, budget=ONE, retries=1)


@pytest.mark.thorough
def test_a_sick_node_that_breaks_four_jobs_does_not_fail_a_region(
    make_run: MakeRun, make_pool: MakePool, work: Path
) -> None:
    with active(make_pool(knobs=SICK)):
        run = make_failing_run(make_run, work, failures=4, words="cudaErrorUnknown")
        run.submit()
        status = run.wait()
        assert status.state is RunState.DONE, status
        (trial,) = run.trials()
        assert (trial.state, trial.attempts) == ("complete", 5)


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_nodes_full_disk_costs_no_retry(make_run: MakeRun, work: Path) -> None:
    words = "OSError: [Errno 28] No space left on device"
    run = make_failing_run(make_run, work, failures=3, words=words)
    run.submit()
    assert run.wait().state is RunState.DONE
    assert run.trials()[0].attempts == 4
    log = (run.folder / "regions/A/scripts.log").read_text()
    assert "attempt 1 failed because of" in log


@pytest.mark.thorough
def test_an_eviction_costs_no_retry(
    make_run: MakeRun, work: Path, wait_for: WaitFor, pool: Pool
) -> None:
    (gate := work / "gate").mkdir()
    run = make_run({"gate": str(gate)}, budget=ONE, retries=0)
    run.submit()
    folder = RunFolder(run.folder)
    for _ in range(2):
        wait_for(lambda: "A.l1" in job_queue.look_up(folder).running)
        job = job_queue.look_up(folder).running_jobs["A.l1"]["ClusterId"]
        subprocess.run(["condor_vacate_job", "-fast", str(job)], check=True)
        wait_for(lambda: "A.l1" not in job_queue.look_up(folder).running)
    assert pool.status().state == "up"
    (gate / "A.l1.t01").touch()
    (gate / "A.best").touch()
    assert run.wait().state is RunState.DONE
    assert explain("A", str(run.folder)).kind == "well"
