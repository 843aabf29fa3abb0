"""`trialfleet why` on a real pool: the causes that users meet first."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor
from trialfleet import Run, RunState
from trialfleet.files import shell_quoted, write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.scripts.script_requests import TRIES
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.serve.live_runs import LiveRuns
from trialfleet.workflows.views.serve.run_page import list_concerns
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.usefixtures("pool")


def asked(run: Run, word: str | None) -> Answer:
    return explain(word, str(run.folder))


def job_of(run: Run, node: str) -> str:
    ads = job_queue.look_up(RunFolder(run.folder)).ads
    return next(str(ad["ClusterId"]) for ad in ads if ad.get("TrialfleetNode") == node)


def output_of(*words: str) -> str:
    done = CliRunner().invoke(main, ["why", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_why_names_lanes_held_jobs_and_jobs_that_no_slot_can_run(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    (gate := work / "gate").mkdir()
    run = make_run({"gate": str(gate)}, budget={"trials": 4, "lanes": 2, "trials_per_job": 1})
    too_large = make_run(run="r2", resources={"memory": "900GB", "disk": "20MB"})
    planned = asked(too_large, "A")
    assert (planned.kind, planned.command) == (
        "planned",
        f"trialfleet submit {shell_quoted(too_large.folder)}",
    )
    run.submit()
    too_large.submit(anyway=True)

    wait_for(lambda: run.status().regions[0].running == 2)
    assert asked(run, "A").kind == "well"
    assert output_of("--run", str(run.folder)).splitlines() == [
        "r1: no problem: the run is running",
        f"next: trialfleet status {shell_quoted(run.folder)} --watch",
    ]
    assert asked(run, "A.l1.t01").why.startswith("no problem: it is running in slot1")
    lane = asked(run, "A.l1.t02")
    assert (lane.kind, lane.command) == ("lane", "trialfleet why A.l1.t01")
    assert lane.why == "it waits for its lane: A.l1.t01 is before it and has not ended"

    wait_for(lambda: asked(too_large, "A").kind == "match")
    match = asked(too_large, "A")
    assert match.why.startswith("no slot of the pool can run them: memory: needs 900 GB")
    (waiting,) = [line for line in match.evidence if "has waited for a slot for" in line]
    job = waiting.split()[1]
    assert asked(too_large, job).kind == "match"  # also by the job's id

    held = job_of(run, "A.l2.t01")
    subprocess.run(["condor_hold", held], check=True)
    wait_for(lambda: asked(run, f"{held}.0").kind == "held")
    answer = asked(run, "A")
    assert (answer.kind, answer.blame, answer.command) == (
        "held",
        "person",
        f"condor_release {held}.0",
    )

    shown = output_of("A.l1.t02", "--run", str(run.folder)).splitlines()
    assert shown == [f"A.l1.t02: {lane.why}", "next: trialfleet why A.l1.t01"]
    content: dict[str, Any] = json.loads(output_of("A", "--run", str(run.folder), "--json"))
    assert (content["schema"], content["kind"], content["blame"]) == (1, "held", "person")
    run.stop()
    assert asked(run, "A").kind == asked(run, "A.l1.t01").kind == "stopped"
    assert asked(run, f"{held}.0").kind == "stopped"  # the job has left the queue
    too_large.stop()


def test_why_and_status_name_a_held_job_of_the_optimisers_service(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    (gate := work / "gate").mkdir()
    run = make_run({"gate": str(gate)}, regions=["A", "B"])
    run.submit()
    wait_for(lambda: run.status().regions[0].running)
    ads = job_queue.look_up(RunFolder(run.folder)).ads
    job = next(f"{ad['ClusterId']}.0" for ad in ads if ad.get("DAGNodeName") == "optimizer")
    subprocess.run(["condor_hold", "-reason", "for a test", job], check=True)
    wait_for(lambda: run.status().held)
    for word in (None, "A", "B", job):
        answer = asked(run, word)
        assert answer.kind == "held", word
        assert answer.why.startswith(f"job {job} of optimizer is on hold: for a test")
        assert answer.command == f"condor_release {job}"
    assert not run.status().is_well
    (concern,) = list_concerns(LiveRuns().get_run(RunFolder(run.folder)).read())
    assert concern.command == f"condor_release {job}"
    run.stop()


@pytest.mark.thorough
def test_why_names_a_crash_and_failing_scripts_as_causes(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    """Three regions: a trainer that crashes; data that go before the full training; no trial."""
    for name in ("gate", "data"):
        (work / name).mkdir()
    data = {name: work / "data" / name for name in ("A", "gone", "shut")}
    for file in data.values():
        file.write_text("1")
    heard, alert_command = work / "heard", f"cat >> '{work}/heard'; echo >> '{work}/heard'"
    run = make_run(
        {"gate": str(work / "gate")},
        regions={
            "A": {"search_space": {"mood": "fails"}},
            "gone": {},
            "shut": {"budget": {"trials_per_job": 1}},
        },
        data="data/{region}",
        budget={"trials": 1, "lanes": 1},
        retries=0,
        notify=[{"command": ["sh", "-c", alert_command]}],
    )
    folder = RunFolder(run.folder)
    place = folder.region("shut").trial("shut.l1.t01").root
    place.chmod(0o555)  # so that nothing can be written for the trial
    run.submit()
    wait_for(lambda: run.status().regions[1].running)
    assert asked(run, "gone").kind == "well"
    data["gone"].unlink()
    (work / "gate" / "gone.l1.t01").touch()

    wait_for(lambda: len(run.status().failing) == 2)
    lacks = f"the data can't be read: {data['gone']}: No such file or directory"
    again = "; it will be retried"
    shut = f"shut: ask of shut.l1.t01 fails: {place}/words: Permission denied{again}"
    assert run.status().failing == (f"gone: ask-best of gone.best fails: {lacks}{again}", shut)
    assert run.status().state is RunState.RUNNING
    assert (asked(run, "gone").kind, asked(run, "shut").kind) == ("data-missing", "script")
    assert asked(run, "shut.l1.t01").kind == "script"
    wait_for(lambda: heard.exists() and all(each in heard.read_text() for each in (lacks, shut)))

    for name in ("gone", "shut"):  # as after two minutes of failures
        failing = folder.region(name).failing
        content = json.loads(failing.read_text())
        for script in content.values():
            script["times"] = TRIES - 1
        write_json(failing, content)
    ended = run.wait()
    assert (ended.state, ended.troubles) == (RunState.FAILED, ())
    assert [each.reason for each in ended.regions[1:]] == [
        lacks,
        f"{place}/words: Permission denied",
    ]
    answers = [asked(run, name) for name in ("gone", "shut")]
    assert [answer.kind for answer in answers] == ["data-missing", "script"]
    assert [answer.command for answer in answers] == [
        f"trialfleet resume {shell_quoted(run.folder)}"
    ] * 2
    assert "person" not in {answer.blame for answer in [*answers, asked(run, None)]}

    answer = asked(run, "A")
    assert (answer.kind, answer.blame) == ("crash", "user")
    assert "exit code 1: I always fail" in answer.why
    assert answer.lines()[1] == "next: fix the trainer: trialfleet run STUDY --check"
    log = run.folder / "regions/A/trials/A.l1.t01/err"
    assert f"see {log}" in answer.evidence
    assert asked(run, None).kind == asked(run, "A.l1.t01").kind == "crash"


def test_an_unknown_name_is_refused_with_the_known_ones(make_run: MakeRun) -> None:
    run = make_run(regions=["north", "south"])
    done = CliRunner().invoke(main, ["why", "nort", "--run", str(run.folder)])
    assert done.exit_code == 2
    assert "'nort' is not a job, an instance, or a region or node of the run 'r1'" in done.stderr
    assert "did you mean 'north'" in done.stderr
    assert "regions: north, south; a node, for example: north.l1" in done.stderr
