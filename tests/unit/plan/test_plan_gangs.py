"""A plan whose trials are gangs of jobs."""

from __future__ import annotations

import stat
from pathlib import Path

import classad2
import pytest

from tests.unit.plan.test_plan import make_study
from trialfleet.errors import InputError
from trialfleet.files import read_json
from trialfleet.workflows.cli.printing.plan_summary import plan_text
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.jobs.agent_messages import read_order
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.study.loading import load_study
from trialfleet.workflows.study.spec import Study

NODES = {"nodes": {"min": 2, "max": 4}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tmp_path


def planned(place: Path, **changes: object) -> tuple[Study, RunFolder]:
    settings = {"regions": ["A"], "resources": NODES} | changes
    study = make_study(place, **settings)
    return study, write_plan(study, run="r1", out=place / "run")


def attempt(study: Study, run: RunFolder, **changes: object) -> TrialFolder:
    node = "A.l1.t01"
    values = {"region": "A", "node": node, "trial": 0, "mode": "tune", "seed": 1, "params": {}}
    order = TrialOrder(**(values | changes))  # type: ignore[arg-type]
    TrialFiles("r1", study, run, run.region("A").trial(node), order).write()
    return run.region("A").trial(node)


def test_a_trial_and_a_full_training_are_gangs_and_nothing_else_is(place: Path) -> None:
    study, run = planned(place, gate={})
    for mode, alone, queue in (
        ("tune", False, "queue 4"),
        ("final", False, "queue 4"),
        ("evaluate", False, "queue"),
        ("tune", True, "queue"),  # of `plan --check`
    ):
        lines = attempt(study, run, mode=mode, alone=alone).submit.read_text().splitlines()
        assert lines[-1] == queue
        assert "want_io_proxy = true" in lines
    text = run.region("A").dag.read_text()
    tolerant = [line.split()[1] for line in text.splitlines() if line.startswith("TOLERANCE")]
    region = build_graph(study).regions[0]
    assert tolerant == [*region.trial_nodes, region.best]
    assert "SERVICE A.keeper gang.sub" in text


def test_one_region_may_have_gangs_and_another_none(place: Path) -> None:
    study, run = planned(place, regions={"A": NODES, "B": {}}, resources={})
    assert [region.gangs for region in build_graph(study).regions] == [True, False]
    assert attempt(study, run).submit.read_text().endswith("queue 4\n")
    assert attempt(study, run, region="B").submit.read_text().endswith("\nqueue\n")
    assert "keeper" not in run.region("B").dag.read_text()
    assert "each on 1 to 4 slots" in plan_text(Run(run.root))


def test_a_gangs_job_waits_for_another_slot_after_a_machines_fault(place: Path) -> None:
    lines = attempt(*planned(place)).submit.read_text().splitlines()
    (rule,) = [line.partition("=")[2] for line in lines if line.startswith("on_exit_remove")]
    leaves = {}
    for code in (0, 1, 64, 75, 86, 87):
        ad = classad2.ClassAd({"ExitBySignal": False, "ExitCode": code})
        ad["Rule"] = classad2.ExprTree(rule)
        leaves[code] = ad.eval("Rule")
    assert leaves == {0: True, 1: True, 64: True, 75: True, 86: False, 87: False}


FAULTY = {"ExitCode": 87, "LastRemoteHost": "slot1_2@a.b"}


@pytest.mark.parametrize(
    ("left", "machine", "may_run"),
    [
        ({}, "a.b", True),
        ({"ExitCode": 86, "LastRemoteHost": "slot1_2@a.b"}, "a.b", True),
        (FAULTY, "a.b", False),
        (FAULTY, "c.b", True),
        ({**FAULTY, "JobCurrentStartDate": 5, "LastVacateTime": 4}, "a.b", False),
        ({**FAULTY, "JobCurrentStartDate": 5, "LastVacateTime": 6}, "a.b", True),  # it was lost
    ],
)
def test_a_gangs_job_does_not_return_to_a_machine_with_a_fault(
    place: Path, left: dict[str, object], machine: str, may_run: bool
) -> None:
    lines = attempt(*planned(place)).submit.read_text().splitlines()
    (rule,) = [line for line in lines if line.startswith("Requirements = $(Requirements:true)")]
    job = classad2.ClassAd({**left})
    job["Requirements"] = classad2.ExprTree(rule.partition("true) && ")[2])
    slot = classad2.ClassAd({"Machine": machine, "Requirements": True})
    assert job.symmetricMatch(slot) is may_run


def test_a_rank_gets_the_files_that_it_needs(place: Path) -> None:
    study, run = planned(place)
    sent = attempt(study, run).submit.read_text()
    assert {"agent.pyz", "trial.py"} <= {path.name for path in run.code.iterdir()}
    assert "/code/agent.pyz" in sent
    assert not list(run.code.rglob("__pycache__"))
    assert "exec python3 -I -S agent.pyz --ranks -- sh go.sh" in run.agent.read_text()


def test_an_attempt_begins_with_nothing_of_the_one_before(place: Path) -> None:
    study, run = planned(place)
    trial = attempt(study, run)
    for file in (logs := trial.agent_logs(4)):
        file.write_text("words")
    trial.roster.write_text("{}")
    attempt(study, run)
    assert trial.gang.is_dir()
    assert not trial.roster.exists()
    assert [file.read_text() for file in logs] == [""] * 4
    assert (order := read_order(trial)) is not None
    assert order.name == "A.l1.t01"


def test_an_attempt_has_a_place_of_its_own_in_s3_where_the_study_wants_it(place: Path) -> None:
    size = {"min": 2, "max": 4, "checkpoints": "s3://ours/gangs/"}
    study, run = planned(place, resources={"nodes": size})
    assert stat.S_IMODE(run.gang_variables.stat().st_mode) == 0o600
    prefixes = [read_json(attempt(study, run).gang_store)["prefix"] for _ in range(2)]
    assert len({*prefixes}) == 2
    (left,) = read_json(attempt(study, run).gang_store)["earlier"][1:]
    assert left == prefixes[0], "an attempt names what may remain of those before it"
    for prefix in prefixes:
        assert prefix.startswith(f"s3://ours/gangs/{study.name}/r1/regions/A/")
    words = " ".join(StatusReader(run).read().troubles)
    assert "checkpoints of gangs are left in S3 and cost money: s3://ours/gangs/" in words
    assert prefix in words
    (other := place / "other").mkdir()
    study, run = planned(other)
    assert not run.gang_variables.exists()
    assert not attempt(study, run).gang_store.exists()


def test_a_plan_says_how_many_slots_a_trial_takes(place: Path) -> None:
    study, run = planned(place)
    text = plan_text(Run(run.root))
    assert "each on 2 to 4 slots of 1 cpu(s)" in text
    region = build_graph(study).regions[0]
    # optimizer, report, the region and its keeper
    assert build_graph(study).node_count == 4 + len(region.trial_nodes) + len(region.end_nodes)


@pytest.mark.parametrize("name", ["agent.pyz", "stop.json"])
def test_a_trainer_file_with_the_name_of_a_gang_file_is_refused(place: Path, name: str) -> None:
    (place / name).write_text("")
    with pytest.raises(InputError, match=f"'{name}' is a name that trialfleet itself uses"):
        planned(place, trainer={"command": ["sh", "go.sh"], "files": ["go.sh", name]})


STUDY = """\
name: demo
regions: [A]
objective: {metric: loss, direction: minimize}
search_space: {x: {type: float, low: 0, high: 1}}
accelerator: cpu
"""
OWN = "trainer: {command: [python3, train.py], files: [train.py]}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OWN + "resources: {nodes: {min: 3, max: 2}}", "min: must be at most max, which is 2"),
        (OWN + "resources: {nodes: {min: 0, max: 2}}", "min"),
        (OWN + "resources: {nodes: 2}", "its keys: min, max"),
        (
            OWN + "resources: {nodes: {min: 1, max: 2, checkpoints: http://x}}",
            "checkpoints: must be s3://BUCKET or s3://BUCKET/PREFIX",
        ),
        (
            OWN + "resources: {gpus: 0.5, nodes: {min: 1, max: 2}}",
            "must be a whole number with `nodes`",
        ),
    ],
)
def test_impossible_settings_of_a_gang_are_refused_with_the_reason(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "study.yaml").write_text(f"{STUDY}{text}\n")
    with pytest.raises(InputError) as caught:
        load_study(tmp_path / "study.yaml")
    assert words in str(caught.value)
