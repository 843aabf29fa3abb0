"""The channel between a running job and its access point: its times, and who can use it."""

from __future__ import annotations

import json
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor
from tests.unit.tabular.small_trials import make_table
from trialfleet import Run, RunState
from trialfleet.infra.pool.embedded import Pool
from trialfleet.infra.pool.schedd import query
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.study.frozen import load_frozen

pytestmark = pytest.mark.usefixtures("pool")

INIT = Path(str(resources.files("trialfleet.templates") / "init"))
TRAINERS = Path(__file__).parent / "trainers"
STOPPING = {"min_steps": 4, "max_steps": 30, "startup_trials": 2, "grace_seconds": 3}
TWO_SLOTS = {"nodes": {"min": 2, "max": 2}}


def timed(make_run: MakeRun, regions: dict[str, dict[str, Any]], **changes: Any) -> Run:
    """Plan a run whose regions have one trial each, with these parameters."""
    return make_run(
        regions={
            region: {"search_space": {n: v for n, v in own.items() if n != "nodes"}}
            | {n: v for n, v in own.items() if n == "nodes"}
            for region, own in regions.items()
        },
        trainer={
            "command": ["python3", "timing.py"],
            "files": [str(TRAINERS / "timing.py"), str(TRAINERS / "attacks.py")],
        },
        budget={"trials": 1, "lanes": 1},
        early_stopping=STOPPING,
        publish="none",
        retries=0,
        **changes,
    )


def evicted(run: Run) -> set[str]:
    logs = {trial.region: trial_of(run, trial.region).log.read_text() for trial in run.trials()}
    return {region for region, log in logs.items() if "Job was evicted" in log}


def trial_of(run: Run, region: str) -> TrialFolder:
    return RunFolder(run.folder).region(region).trial(f"{region}.l1.t01")


def reports(place: TrialFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.reports.read_text().splitlines()]


@pytest.mark.parametrize("late", [4, pytest.param(15, marks=pytest.mark.thorough)])
def test_trainers_may_report_at_any_time_and_cannot_reach_the_access_point(
    make_run: MakeRun, late: int
) -> None:
    run = timed(
        make_run,
        {
            "early": {"silence": 4, "attacks": 1},
            "late": {"first": late},  # and at its very end
            "again": {"saves": 1, "silence": 3, "attacks": 1},
            "gang": {"attacks": 1, **TWO_SLOTS},
        },
    )
    run.submit()
    assert run.wait().state is RunState.DONE
    assert evicted(run) == set()
    for region in ("early", "again"):
        lines = trial_of(run, region).out.read_text().splitlines()
        assert lines[-2:] == ["[]", "[]"], region
    assert trial_of(run, "gang").out.read_text().splitlines()[-2:] == ["[]", "[]"]
    # the channel was there again after exit code 85, and for the agent alone
    assert "taken" not in trial_of(run, "again").out.read_text()
    assert reports(trial_of(run, "again"))[-1]["metrics"]["loss"] > 1
    assert reports(trial_of(run, "early"))[0]["step"] == 1


@pytest.mark.thorough
def test_an_evicted_job_gets_its_channel_again(make_run: MakeRun, wait_for: WaitFor) -> None:
    run = timed(make_run, {"A": {"silence": 6, "attacks": 1}})
    place = trial_of(run, "A")
    run.submit()
    wait_for(lambda: place.reports.exists() and reports(place))
    (job,) = query(f"TrialfleetNode == {json.dumps(place.node_root.name)}", ["ClusterId"])
    subprocess.run(["condor_vacate_job", "-fast", str(job["ClusterId"])], check=True)
    wait_for(lambda: "Job was evicted" in place.log.read_text())
    place.reports.write_text("of the machine before\n")
    wait_for(lambda: place.reports.read_text() != "of the machine before\n")
    assert run.wait().state is RunState.DONE
    assert place.out.read_text().splitlines()[-2:] == ["[]", "[]"]


@pytest.mark.thorough
def test_trialfleets_own_trainers_run_with_early_stopping(make_run: MakeRun, work: Path) -> None:
    """They import for as long as that takes before their first report."""
    make_table(work / "A.npz", kinds=20)
    (work / "points").symlink_to(INIT / "points")
    first = make_run(
        {"degree": 3, "learning_rate": 0.01, "steps": 400},
        regions=["north"],
        data="points/{region}.csv",
        objective={"metric": "val_error", "direction": "minimize"},
        trainer={"command": ["python3", "train.py"], "files": [str(INIT / "train.py")]},
        early_stopping=STOPPING,
        publish="none",
    )
    reference = make_run(
        {"epochs": 4, "hidden": 16},
        run="r2",
        data="{region}.npz",
        objective={"metric": "val_loss", "direction": "minimize"},
        search_space={"learning_rate": {"type": "float", "low": 1e-3, "high": 1e-2}},
        trainer="tabular",
        resources={"memory": "1GB", "disk": "100MB"},
        early_stopping=STOPPING,
        publish="none",
    )
    for run in (first, reference):
        run.submit()
    for run in (first, reference):
        assert run.wait().state is RunState.DONE
        assert evicted(run) == set()


KEEPS_ITS_CHANNEL = """\
#!/usr/bin/env python3
import json, os, sys
sys.path.insert(0, "agent.pyz")
from trialfleet.nodes.job.chirp_access import Channel
chirp = Channel.take().chirp()
answers = {}
try:
    trial = json.load(open("trial.json"))  # of a gang
except FileNotFoundError:
    trial = json.loads(chirp.read("words/order.json"))["trial"]
for request in trial["params"]["requests"]:
    try:
        answers[request] = chirp._ask(request.replace("PID", str(os.getpid())))
        chirp.close()
    except OSError as error:
        answers[request] = getattr(error, "code", str(error))
answers["an empty file"] = -1 if chirp.read("words/stop.json") else 0
print(json.dumps(answers))
"""


@pytest.mark.parametrize("gang", [None, TWO_SLOTS], ids=["trial", "gang"])
def test_a_channel_only_reaches_the_words_folder_of_its_job(
    make_run: MakeRun, wait_for: WaitFor, work: Path, pool: Pool, gang: dict[str, Any] | None
) -> None:
    """The channel is the agent's alone; this is what bounds the agent."""
    (secret := work / "secret").write_text("its owner's")
    secret.chmod(0o600)
    (work / "one,or*two").mkdir()
    (work / "one,or*two/A.csv").write_text("1\n")
    (work / "data").symlink_to("one,or*two")
    run = timed(make_run, {"A": gang or {}}, data="data/{region}.csv")
    folder, place = RunFolder(run.folder), trial_of(run, "A")
    token = next((pool.folder / "tokens.d").iterdir())
    good = [  # PID: a gang's jobs share the folder
        "open words/newPID wc 420",
        "rename words/newPID words/otherPID",
        "getfile words/reports.jsonl",
    ]
    bad = [
        f"getfile {secret}",
        f"getfile {token}",
        f"getfile {folder.study}",
        f"open {folder.root}/study.db wct 420",
        f"open {folder.region('A').dag} w 420",
        "open trial.sub w 420",
        "open log w 420",
        "open new wc 420",
        "unlink trial.sub",
        "rename trial.sub words/trial.sub",
        "rename words/otherPID trial.sub",
        "mkdir ../new 493",
        'set_job_attr LimitDirectoryAccess "/"',
        'set_job_attr Cmd "/bin/sh"',
        'set_job_attr UserLog "/log"',
        'set_job_attr Out "/out"',
        "constrain false",
        "ulog nothing",
    ]
    order = TrialOrder(
        region="A",
        node="A.l1.t01",
        trial=0,
        mode="tune",
        seed=1,
        params={"requests": [*good, *bad]},
    )
    TrialFiles("r1", load_frozen(folder.study).study, folder, place, order).write()
    place.reports.write_text("1\n")
    folder.agent.write_text(KEEPS_ITS_CHANNEL)
    subprocess.run(["condor_submit", "-terse", "trial.sub"], cwd=place.node_root, check=True)
    out = place.agent_logs(1 if gang else None)[0]
    wait_for(lambda: out.read_text().endswith("\n"))
    answers = json.loads(out.read_text())
    assert [request for request in bad if answers[request] >= 0] == []
    assert [request for request in [*good, "an empty file"] if answers[request] < 0] == []
    wait_for(lambda: "evicted" not in place.log.read_text() and ended(place))


def ended(place: TrialFolder) -> bool:
    log = place.log.read_text()
    return log.count("Job terminated") == log.count("Job submitted from host")
