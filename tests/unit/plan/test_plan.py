"""A plan: the run's folder as files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.unit.tabular.small_trials import make_table
from trialfleet.errors import InputError
from trialfleet.workflows.cli.printing.plan_summary import plan_text
from trialfleet.workflows.control.plan import run_folder_writer as plan_module
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.control.plan.run_ids import new_run_id
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.paths import sandbox_name
from trialfleet.workflows.study.spec import Budget, Study, Trainer


def make_study(folder: Path, **changes: object) -> Study:
    (folder / "go.sh").write_text("exit 0\n")
    values: dict[str, object] = {
        "name": "demo",
        "regions": ["A", "São Paulo"],
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "budget": {"trials": 10, "lanes": 4},
        "trainer": {"command": ["sh", "go.sh"], "files": ["go.sh"]},
        "accelerator": "cpu",
    }
    return Study.model_validate({**values, **changes}).resolve(folder)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs. Nothing is submitted here, so /tmp will do."""
    return tmp_path


def contents(folder: RunFolder) -> dict[str, str]:
    root = folder.root
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in {"inputs.json", "checksums.jsonl"}  # inodes, times
    }


PLAN = """\
import sys
from pathlib import Path
from trialfleet.workflows.control.plan import run_folder_writer as plan
from trialfleet.workflows.study.frozen import load_frozen
frozen = load_frozen(Path(sys.argv[1]))
plan.write_plan(frozen.study, run="r1", out=Path(sys.argv[2]), created=frozen.created)
"""


@pytest.mark.slow
def test_the_same_study_and_run_id_give_the_same_bytes_in_any_process(place: Path) -> None:
    folder = write_plan(make_study(place), run="r1", out=place / "run")
    first = contents(folder)
    (place / "run").rename(place / "other")
    for seed in ("1", "2"):
        frozen = str(place / "other" / "study.json")
        command = [sys.executable, "-c", PLAN, frozen, str(place / "run")]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        assert contents(folder) == first
        shutil.rmtree(place / "run")
    assert "study.dag" in first


def test_a_frozen_study_is_parsed_once_while_its_file_stays_as_it_is(place: Path) -> None:
    planned = write_plan(make_study(place), run="r1", out=place / "run", notes=("a note",))
    parsed = load_frozen(planned.study)
    assert load_frozen(planned.study) is parsed
    planned.study.write_text(planned.study.read_text().replace("a note", "another"))
    assert load_frozen(planned.study).notes == ("another",)


def test_a_lane_is_one_node_unless_a_job_has_a_number_of_trials(place: Path) -> None:
    region = build_graph(make_study(place)).regions[0]
    assert region.lanes == (("A.l1",), ("A.l2",), ("A.l3",), ("A.l4",))
    assert region.next_trial("A.l2", {"A.l2.t01", "A.l1.t02"}) == "A.l2.t02"
    assert region.next_trial("A.l2", {f"A.l2.t{number:02}" for number in range(1, 11)}) is None
    assert region.find_node("A.l3.t07") == "A.l3"
    assert region.find_node("A.l5.t01") is None
    by_three = make_study(place, budget={"trials": 10, "lanes": 2, "trials_per_job": 3})
    region = build_graph(by_three).regions[0]
    assert region.lanes[0] == ("A.l1.t01-03", "A.l1.t04-06", "A.l1.t07-09")
    assert region.next_trial("A.l1.t04-06", {"A.l1.t04"}) == "A.l1.t05"
    assert region.find_node("A.l1.t05") == "A.l1.t04-06"


def test_the_names_of_nodes_and_trials_have_the_same_digits(place: Path) -> None:
    many = make_study(place, budget={"trials": 120, "lanes": 4, "trials_per_job": 1})
    region = build_graph(many).regions[0]
    for node in region.trial_nodes:
        assert region.next_trial(node, ()) == node
    alone = make_study(place, budget={"trials": 120, "lanes": 4})
    assert build_graph(alone).regions[0].next_trial("A.l1", ()) == "A.l1.t001"


def test_a_trials_folder_knows_its_nodes(place: Path) -> None:
    budgets = {"A.l1": "all", "A.l1.t01-03": 3, "A.l1.t02": 1}
    for node, per_job in budgets.items():
        study = make_study(place, budget={"trials": 6, "lanes": 1, "trials_per_job": per_job})
        folder = write_plan(study, run="r1", out=place / f"run-{per_job}")
        trial = folder.region("A").trial("A.l1.t02")
        assert (trial.root.name, trial.node_root.name) == ("A.l1.t02", node)
        assert trial.is_shared == (per_job != 1)
        assert folder.region("A").trial(node).node_root == trial.node_root


def test_lanes_hold_a_quarter_more_than_their_share(place: Path) -> None:
    budget = {"trials": 10, "lanes": 4, "trials_per_job": 1}
    region = build_graph(make_study(place, budget=budget)).regions[0]
    assert [len(lane) for lane in region.lanes] == [4, 4, 4, 4]  # 10 / 4 and a quarter, rounded up
    assert region.lanes[0][0] == "A.l1.t01"


def test_one_lane_holds_exactly_the_budget_and_lanes_never_outnumber_trials(place: Path) -> None:
    one = make_study(place, budget={"trials": 7, "lanes": 1, "trials_per_job": 1})
    assert [len(lane) for lane in build_graph(one).regions[0].lanes] == [7]
    many = make_study(place, budget={"trials": 2, "lanes": 9, "trials_per_job": 1})
    assert [len(lane) for lane in build_graph(many).regions[0].lanes] == [2, 2]


def test_every_node_has_its_folder_before_dagman_enters_it(place: Path) -> None:
    study = make_study(place)
    planned = write_plan(study, run="r1", out=place / "run")
    for region in build_graph(study).regions:
        for node in region.trial_nodes:
            assert planned.region(region.slug).trial(node).root.is_dir()


def test_only_the_dags_of_regions_may_have_a_rescue_dag(
    place: Path,
) -> None:
    folder = write_plan(make_study(place), run="r1", out=place / "run")
    assert "DAGMAN_MAX_RESCUE_NUM = 0" in folder.study_config.read_text()
    assert "DAGMAN_MAX_RESCUE_NUM" not in folder.region_config.read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": {}, "fleet": {"aws_regions": ["eu-west-1"], "autoscale": "service"}},
        {"publish": "none"},
        {"resources": {"nodes": {"min": 1, "max": 2}}},
    ],
)
def test_no_graph_has_what_a_killed_dagman_can_not_recover_from(
    place: Path, changes: dict[str, object]
) -> None:
    """NOOP jobs, skipped nodes and a FINAL one: docs/dagman-recovery.md."""
    run = write_plan(make_study(place, **changes), run="r1", out=place / "run")
    files = [files.dag.read_text() for files in run.all_dags()]
    lines = [line.split() for text in files for line in text.splitlines() if line[:1] != "#"]
    assert len(files) == 3
    assert {line[0] for line in lines if line} >= {"JOB", "SCRIPT", "RETRY", "PARENT"}
    assert [line for line in lines if {"NOOP", "PRE_SKIP", "FINAL"} & {*line}] == []


def test_a_folder_that_holds_something_is_left_alone(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "precious").touch()
    with pytest.raises(InputError, match="exists already"):
        write_plan(make_study(place), run="r1", out=place / "run")
    assert [p.name for p in (place / "run").iterdir()] == ["precious"]


def test_a_plan_on_an_almost_full_disk_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place)._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=r"5 MB are free in .*--out"):
        write_plan(make_study(place), run="r1", out=place / "runs" / "run")
    assert list((place / "runs").iterdir()) == []


def test_a_plan_that_breaks_off_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    study = make_study(place)
    monkeypatch.setattr(plan_module, "_copy_code", full)
    with pytest.raises(OSError, match="No space"):
        write_plan(study, run="r1", out=place / "runs" / "run")
    assert list((place / "runs").iterdir()) == []


def test_a_run_id_whose_model_is_published_already_is_refused(place: Path) -> None:
    (place / "models" / "demo" / "A" / "r1").mkdir(parents=True)
    with pytest.raises(InputError, match=r"^run id 'r1': a model .* is already in"):
        write_plan(make_study(place), run="r1", out=place / "run")


def test_a_study_with_a_storage_password_is_readable_by_its_owner_only(place: Path) -> None:
    study = make_study(place).model_copy(update={"storage": "postgresql+psycopg://u:p@h/d"})
    planned = write_plan(study, run="r1", out=place / "run")
    assert planned.study.stat().st_mode & 0o077 == 0


def test_a_study_with_a_storage_password_is_created_unreadable_for_others(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(place).model_copy(update={"storage": "postgresql+psycopg://u:p@h/d"})
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # a file keeps its first mode
    previous = os.umask(0)
    try:
        planned = write_plan(study, run="r1", out=place / "run")
        open_one = write_plan(make_study(place), run="r2", out=place / "open")
    finally:
        os.umask(previous)
    assert planned.study.stat().st_mode & 0o777 == 0o600
    assert open_one.study.stat().st_mode & 0o777 == 0o666  # none to hide


@pytest.mark.parametrize("run", ["latest", "", "a b", "../x", "a\nb", "x" * 65])
def test_a_run_id_that_is_no_plain_name_is_refused(place: Path, run: str) -> None:
    with pytest.raises(InputError, match="run id"):
        write_plan(make_study(place), run=run, out=place / "run")


def test_a_run_folder_with_a_name_that_dagman_cannot_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="character"):
        write_plan(make_study(tmp_path), run="r1", out=Path('/var/a"b'))


@pytest.mark.parametrize("name", ["agent", "trial.json", "trial.py", "result.json", "model"])
def test_a_trainer_file_with_a_reserved_name_is_refused(place: Path, name: str) -> None:
    (place / name).touch()
    study = make_study(place, trainer={"command": ["sh"], "files": [name]})
    with pytest.raises(InputError, match="rename"):
        write_plan(study, run="r1", out=place / "run")


def test_two_files_of_one_name_are_refused(place: Path) -> None:
    (place / "a").mkdir()
    (place / "a" / "go.sh").touch()
    study = make_study(place, trainer={"command": ["sh"], "files": ["go.sh", "a/go.sh"]})
    with pytest.raises(InputError, match=r"2 files.*go\.sh"):
        write_plan(study, run="r1", out=place / "run")


def test_a_folder_of_trainer_files_is_copied_with_its_contents(place: Path) -> None:
    (place / "lib").mkdir()
    (place / "lib" / "net.py").write_text("x = 1\n")
    study = make_study(place, trainer={"command": ["sh"], "files": ["lib"]})
    planned = write_plan(study, run="r1", out=place / "run")
    assert (planned.code / "lib" / "net.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("word", ["a b", "it's", '"', "$HOME", "`id`", "a;b", "$(touch x)", "é*"])
def test_the_trainer_gets_its_arguments_unchanged(place: Path, word: str) -> None:
    (place / "show").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (place / "show").chmod(0o755)
    trainer = Trainer(command=["./show", word], files=[str(place / "show")])
    study = make_study(place).model_copy(update={"trainer": trainer})
    planned = write_plan(study, run="r1", out=place / "run")
    (place / "agent.pyz").write_text("import os, sys; os.execv(sys.argv[2], sys.argv[2:])")
    shown = subprocess.run([planned.agent], cwd=place, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{word}|"


@pytest.mark.slow
def test_the_reference_trainer_needs_only_the_files_sent_with_it(place: Path) -> None:
    make_table(place / "rows.npz")
    study = make_study(
        place,
        trainer="tabular",
        search_space={"hidden": {"type": "int", "low": 8, "high": 64}},
        objective={"metric": "val_loss", "direction": "minimize"},
        data="rows.npz",
    )
    planned = write_plan(study, run="r1", out=place / "run")
    code = "import sys; sys.modules['trialfleet'] = None; import train, trial"
    subprocess.run([sys.executable, "-c", code], cwd=planned.code, check=True)


def test_a_run_id_is_the_time() -> None:
    assert datetime.strptime(new_run_id(), "%Y-%m-%dT%H-%M-%S")  # else a ValueError


def test_failures_allowed_and_startup_follow_the_budget() -> None:
    assert Budget(trials=100).failures_allowed == 25
    assert Budget(trials=4).failures_allowed == 3
    assert Budget(failures=0).failures_allowed == 0
    assert Budget(trials=5).startup_count == 5


def test_a_url_has_its_last_part_as_its_name_in_the_sandbox() -> None:
    assert sandbox_name("s3://bucket/2026/S%C3%A3o%20Paulo.npz") == "S%C3%A3o%20Paulo.npz"
    assert sandbox_name("/data/rows one.npz") == "rows one.npz"


@pytest.mark.parametrize(
    ("autoscale", "word"), [("service", "SERVICE"), ("provisioner", "PROVISIONER")]
)
def test_the_fleets_autoscaler_is_a_node_of_the_graph(
    place: Path, autoscale: str, word: str
) -> None:
    fleet = {"aws_regions": ["eu-west-1"], "autoscale": autoscale}
    folder = write_plan(make_study(place, fleet=fleet), run="r1", out=place / "run")
    assert f'{word} fleet fleet.sub DIR "{folder.root}"\n' in folder.dag.read_text()
    assert "arguments = autoscale\n" in folder.fleet_submit.read_text()


def test_a_fleet_without_an_autoscaler_adds_no_node(place: Path) -> None:
    fleet = {"aws_regions": ["eu-west-1"]}
    folder = write_plan(make_study(place, fleet=fleet), run="r1", out=place / "run")
    assert "fleet.sub" not in folder.dag.read_text()
    assert not folder.fleet_submit.exists()


@pytest.mark.parametrize(
    ("gpus", "expected", "message"),
    [
        (1, {"gpus": 1, "gpu_share": 1.0}, "each on 1 GPU(s), 1 cpu(s)"),
        (2, {"gpus": 2, "gpu_share": 1.0}, "each on 2 GPU(s), 1 cpu(s)"),
        (
            "1/3",
            {"gpus": 1, "gpu_share": 1 / 3},
            "each on 1/3 GPU (on nodes whose TrialfleetTrialsPerGpu is 3), 1 cpu(s)",
        ),
    ],
)
def test_trial_json_has_the_number_and_the_share_of_the_trials_gpus(
    place: Path, gpus: object, expected: dict[str, float], message: str
) -> None:
    study = make_study(place, accelerator="gpu", resources={"gpus": gpus})
    folder = write_plan(study, run="r1", out=place / "run")
    trial = folder.region("A").trial("A.l1.t01")
    order = TrialOrder(region="A", node="A.l1.t01", trial=0, mode="tune", seed=1, params={})
    TrialFiles("r1", study, folder, trial, order).write()
    contract = json.loads(trial.trial_json.read_text())
    assert {name: contract[name] for name in expected} == expected
    assert message in plan_text(Run(folder.root))


def test_a_file_that_cant_be_copied_is_named_and_nothing_is_left(place: Path) -> None:
    study = make_study(place, trainer={"command": ["sh"], "files": ["/proc/self/mem"]})
    with pytest.raises(InputError, match="'/proc/self/mem' can't be copied: "):
        write_plan(study, run="r1", out=place / "run")
    assert {path.name for path in place.iterdir()} == {"go.sh"}
