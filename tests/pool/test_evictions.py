"""A trial whose starts are all cut off is shown in every view and alert, and fails at the limit.

The pool's supervisor looks at the run, and a program hears of its events.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor, programs_of
from trialfleet import Run, RunState
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.jobs_without_progress import EVICTED, MOST_WASTED
from trialfleet.workflows.views.serve.live_runs import LiveRuns
from trialfleet.workflows.views.serve.metrics import exposition
from trialfleet.workflows.views.serve.run_page import list_concerns

# It kills its starter, as its machine would; the fourth start waits for a file.
TRAINER = """\
echo x >> {work}/starts
echo started
[ "$(wc -l < {work}/starts)" -ne 4 ] || while [ ! -e {work}/seen ]; do sleep 0.1; done
starter=$PPID
while [ "$(cat /proc/$starter/comm)" != condor_starter ]; do
    starter=$(awk '{{ print $4 }}' /proc/$starter/stat)
done
kill -9 $starter
sleep 60
"""
HTCONDOR_SAYS = "Job not found at execution machine"


def command(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), env={"COLUMNS": "400"})


def heard(file: Path) -> list[dict[str, Any]]:
    """Return events by their ids: one whose sender was killed may arrive twice."""
    lines = file.read_text().splitlines() if file.exists() else []
    return list({event["id"]: event for event in map(json.loads, lines)}.values())


def submit_run_that_kills_starters(make_run: MakeRun, work: Path) -> Run:
    (work / "train.sh").write_text(TRAINER.format(work=work))
    alert_command = ["sh", "-c", f"cat >> '{work}/heard'; echo >> '{work}/heard'"]
    run = make_run(
        trainer={"command": ["sh", "train.sh"], "files": [str(work / "train.sh")]},
        budget={"trials": 1, "lanes": 1, "failures": 0},
        retries=0,
        notify=[{"command": alert_command}],
    )
    run.submit()
    return run


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_trial_whose_starter_keeps_dying_is_reported_and_fails(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    run = submit_run_that_kills_starters(make_run, work)
    wait_for(lambda: run.status().job_troubles)
    assert_all_views_report_it(run)
    wait_for(lambda: heard(work / "heard"))
    programs_of(run.folder, "notify")[0].kill()  # the supervisor starts another
    (work / "seen").touch()

    assert run.wait().state is RunState.FAILED
    assert_failed_at_the_bound(run, work)
    wait_for(lambda: len(heard(work / "heard")) >= 3)
    wait_for(lambda: not programs_of(run.folder, "notify"))
    attention, failed, done = heard(work / "heard")
    assert (attention["event"], attention["data"]["node"]) == ("attention", "A.l1")
    assert HTCONDOR_SAYS in attention["title"]
    assert (failed["event"], failed["region"]) == ("region-failed", "A")
    assert EVICTED in failed["title"]
    assert done["event"] == "run-done"
    assert done["data"]["regions"][0]["state"] == "failed"
    outbox = Outbox(RunFolder(run.folder).alerts)
    assert [one.state for one in outbox.deliveries()] == ["sent"] * 3


def assert_failed_at_the_bound(run: Run, work: Path) -> None:
    (trial,) = run.trials()
    assert (trial.state, trial.attempts) == ("failed", 1)
    assert trial.error
    assert re.match(f"{EVICTED}: [5-9] starts in a row kept no work", trial.error)
    assert HTCONDOR_SAYS in trial.error
    assert len((work / "starts").read_text().split()) <= MOST_WASTED + 4
    status = run.status()
    assert not status.job_troubles
    assert status.work.lost_share > 0.8  # the rest is the time in which its job began
    assert json.loads(command("why", "A", "--json", "--run", str(run.folder)).output)["kind"] == (
        "evictions"
    )


def assert_all_views_report_it(run: Run) -> None:
    folder = str(run.folder)
    shown = command("status", folder)
    assert shown.exit_code == 1
    assert "A.l1: its job" in shown.output
    assert HTCONDOR_SAYS in shown.output
    plain = json.loads(command("status", folder, "--json").output)
    (trouble,) = plain["job_troubles"]
    assert (trouble["node"], trouble["kind"]) == ("A.l1", "evictions")
    assert plain["work"]["lost_seconds"] > 0
    for subject in ([], ["A"], ["A.l1.t01"]):
        answer = json.loads(command("why", *subject, "--run", folder, "--json").output)
        assert answer["kind"] == "evictions", answer
        assert HTCONDOR_SAYS in answer["why"]
        assert trouble["machine"] in answer["why"]
    snapshot = LiveRuns().get_run(RunFolder(run.folder)).read()
    assert any(HTCONDOR_SAYS in concern.why for concern in list_concerns(snapshot))
    metrics = exposition([snapshot], [], snapshot.nodes, "")[0].decode()
    assert 'trialfleet_run_trials_in_trouble{study="demo"} 1.0' in metrics


# Both print; one saves on SIGTERM, the other leaves no checkpoint.
LONG = """\
echo started
if grep -q '"region": "saves"' "$TRIALFLEET_TRIAL"; then
    trap 'echo x >> checkpoint/steps; exit 85' TERM
fi
while [ ! -e {work}/done ]; do sleep 0.1; done
echo x > model/x
echo '{{"status": "complete", "metrics": {{"loss": 0.5}}}}' > result.json
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_interruptions_count_only_where_they_saved_no_checkpoint(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    (work / "train.sh").write_text(LONG.format(work=work))
    run = make_run(
        regions=["saves", "prints"],
        trainer={"command": ["sh", "train.sh"], "files": [str(work / "train.sh")]},
        budget={"trials": 1, "lanes": 1, "failures": 0},
        retries=0,
    )
    run.submit()
    folder = RunFolder(run.folder)

    def starts(region: str) -> list[Execution]:
        return read_starts(folder.region(region).trial(f"{region}.l1.t01"))

    def vacate(region: str) -> None:
        jobs = job_queue.look_up(folder).running_jobs
        ad = jobs.get(f"{region}.l1")
        if ad:
            subprocess.run(["condor_vacate_job", str(ad["ClusterId"])], check=False)

    for count in range(1, MOST_WASTED + 2):
        for region in ("saves", "prints") if count <= MOST_WASTED else ("saves",):
            wait_for(lambda n=count, r=region: len(starts(r)) == n and not starts(r)[-1].is_over)
            wait_for(lambda r=region: f"{r}.l1" in job_queue.look_up(folder).running_jobs)
            vacate(region)
    wait_for(lambda: run.status().regions[1].state is RunState.FAILED)
    (work / "done").touch()
    assert run.wait().state is RunState.FAILED
    (saved,), (failed,) = run.trials("saves"), run.trials("prints")
    assert (saved.state, saved.attempts) == ("complete", 1)
    assert failed.error
    assert failed.error.startswith(EVICTED)
    status = run.status()
    assert 0 < status.work.lost_share < 1
