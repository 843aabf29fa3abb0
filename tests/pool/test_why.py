"""`trialfleet why` on a real pool: the four causes that are met first."""

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
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.dagman import job_queue
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.why.answer import Answer
from trialfleet.workflows.why.explain import why

pytestmark = pytest.mark.usefixtures("pool")


def asked(run: Run, word: str | None) -> Answer:
    return why(word, str(run.folder))


def job_of(run: Run, node: str) -> str:
    ads = job_queue.look_up(RunFolder(run.folder)).ads
    return next(str(ad["ClusterId"]) for ad in ads if ad.get("TrialfleetNode") == node)


def output_of(*words: str) -> str:
    done = CliRunner().invoke(main, ["why", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_lane_a_held_job_and_what_no_slot_can_run(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    (gate := work / "gate").mkdir()
    run = make_run({"gate": str(gate)}, budget={"trials": 4, "lanes": 2})
    too_large = make_run(run="r2", resources={"memory": "900GB", "disk": "20MB"})
    planned = asked(too_large, "A")
    assert (planned.kind, planned.command) == (
        "planned",
        f"trialfleet submit {too_large.folder}",
    )
    run.submit()
    too_large.submit(anyway=True)

    wait_for(lambda: run.status().regions[0].running == 2)
    assert asked(run, "A").kind == "well"
    assert output_of("--run", str(run.folder)).splitlines() == [
        "r1: nothing is wrong: the run is running",
        f"next: trialfleet status {run.folder} --watch",
    ]
    assert asked(run, "A.l1.t01").why.startswith("nothing is wrong: it runs in slot1")
    lane = asked(run, "A.l1.t02")
    assert (lane.kind, lane.command) == ("lane", "trialfleet why A.l1.t01")
    assert lane.why == "it waits for its lane: A.l1.t01 comes before it and is not over"

    wait_for(lambda: asked(too_large, "A").kind == "match")
    match = asked(too_large, "A")
    assert match.why.startswith("no slot of the pool can run them: memory: needs 900 GB")
    (waiting,) = [line for line in match.evidence if "waits for a slot since" in line]
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


def test_a_trainer_that_crashes_is_named_with_its_last_words(make_run: MakeRun) -> None:
    run = make_run({"mood": "fails"}, budget={"trials": 1, "lanes": 1}, retries=0)
    run.submit()
    assert run.wait().state is RunState.FAILED
    answer = asked(run, "A")
    assert (answer.kind, answer.blame) == ("crash", "user")
    assert "exit code 1: I always fail" in answer.why
    assert answer.lines()[1] == "next: mend the trainer: trialfleet run STUDY --check"
    log = run.folder / "regions/A/trials/A.l1.t01/err"
    assert f"see {log}" in answer.evidence
    assert asked(run, None).kind == asked(run, "A.l1.t01").kind == "crash"


def test_what_nothing_is_called_is_refused_with_what_there_is(make_run: MakeRun) -> None:
    run = make_run(regions=["north", "south"])
    done = CliRunner().invoke(main, ["why", "nort", "--run", str(run.folder)])
    assert done.exit_code == 2
    assert "'nort' is no region or node of the run 'r1', no job and no instance" in done.stderr
    assert "did you mean 'north'" in done.stderr
    assert "regions: north, south; a node, for example: north.l1.t01" in done.stderr
