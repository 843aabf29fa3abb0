"""Run ids: unique, even if several runs are planned in the same second."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.plan.test_plan import make_study
from trialfleet.errors import InputError
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.plan import run_folder_writer as plan_module
from trialfleet.workflows.control.plan import run_ids
from trialfleet.workflows.control.run.new_run import plan
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts import disk_space
from trialfleet.workflows.facts.runs.lookup import find_run, runs_here
from trialfleet.workflows.study.frozen import FrozenStudy, dump_frozen
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.terminal.run_list import list_runs

pytestmark = pytest.mark.slow


SECOND = "2026-11-20T10-00-00"
PLAN = """\
import sys
from pathlib import Path
from trialfleet.workflows.control.plan import run_folder_writer as plan, run_ids
from trialfleet.workflows.control.run import new_run
from trialfleet.workflows.study.frozen import load_frozen

run_ids.new_run_id = lambda: "2026-11-20T10-00-00"  # all in one second
study = load_frozen(Path(sys.argv[1])).study
sys.stdin.readline()
out = sys.argv[2] if len(sys.argv) > 2 else None
planned = new_run.plan(study, out=out)
print(planned.run_id, planned.folder)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory. Nothing is submitted here, so /tmp will do."""
    monkeypatch.setattr(run_ids, "new_run_id", lambda: SECOND)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_at_once(place: Path, study: Study, outs: list[str | None]) -> list[tuple[str, Path]]:
    frozen = FrozenStudy.model_validate(
        {"run": "r", "folder": "/r", "created": "2026-11-20T10:00:00Z", "study": study}
    )
    (place / "frozen.json").write_text(dump_frozen(frozen))
    plans = [
        subprocess.Popen(
            [sys.executable, "-c", PLAN, str(place / "frozen.json"), *([out] if out else [])],
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for out in outs
    ]
    outputs = [process.communicate("go\n")[0].split() for process in plans]
    assert [process.returncode for process in plans] == [0] * len(outs)
    return [(run, Path(folder)) for run, folder in outputs]


@pytest.mark.parametrize("publish", ["models", "none"])  # none: the folder alone is claimed
def test_plans_of_one_study_in_one_second_each_get_an_id_and_a_folder(
    place: Path, publish: str
) -> None:
    planned = plan_at_once(place, make_study(place, publish=publish), [None] * 4)
    runs = {SECOND, *(f"{SECOND}-{number}" for number in (2, 3, 4))}
    assert {run for run, _ in planned} == runs
    for run, folder in planned:
        assert folder == place / "runs" / "demo" / run
        assert (folder / "study.dag").exists()
    assert {folder.name for folder in (place / "runs" / "demo").iterdir()} == runs


def test_plans_into_given_folders_at_the_same_time_each_get_an_id(place: Path) -> None:
    outs: list[str | None] = ["a", "b", "1/c", "2/c"]
    planned = plan_at_once(place, make_study(place), outs)
    assert {run for run, _ in planned} == {"a", "b", "c", "c-2"}  # models would have one place
    assert sorted(folder.name for _, folder in planned) == ["a", "b", "c", "c"]


def test_a_run_in_a_folder_of_its_own_has_that_folders_name(place: Path) -> None:
    study = make_study(place)
    run = plan(study, out="runs/demo/mine")
    assert run.run_id == "mine"
    assert Run(find_run("mine")).run_id == "mine"
    assert [each.run for each in list_runs(runs_here())] == ["mine"]
    shutil.rmtree(run.folder)
    assert plan(study, out="runs/demo/mine").run_id == "mine"  # planned again
    assert plan(study, out="elsewhere/mine").run_id == "mine-2"
    assert plan(study, out="mine and others").run_id == SECOND  # no id of a run


# a plan that stops half-way, until it is killed or gets a line
HALF_A_PLAN = """\
make = plan._make_trial_folders
def stop(*given):
    print("half", flush=True)
    sys.stdin.readline()
    make(*given)
plan._make_trial_folders = stop
study = load"""


def test_the_draft_of_a_killed_plan_is_removed_by_the_next_plan_but_no_other(place: Path) -> None:
    study = make_study(place)
    frozen = FrozenStudy.model_validate(
        {"run": "r", "folder": "/r", "created": "2026-11-20T10:00:00Z", "study": study}
    )
    (place / "frozen.json").write_text(dump_frozen(frozen))
    script = PLAN.replace("study = load", HALF_A_PLAN)
    killed, slow = (
        subprocess.Popen(
            [sys.executable, "-c", script, "frozen.json", f"runs/{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("killed", "slow")
    )
    for process in (killed, slow):
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "half\n"
    (place / "runs/.plan-mine").mkdir()
    assert len([*place.glob("runs/.plan-*")]) == 3
    killed.kill()
    killed.communicate()
    plan(study, out="runs/next")
    assert len([*place.glob("runs/.plan-*")]) == 2
    slow.communicate("\n", timeout=60)
    assert slow.returncode == 0
    assert Run(place / "runs/slow").run_id == "slow"
    assert [*place.glob("runs/.plan-*")] == [place / "runs/.plan-mine"]


def test_an_error_names_a_relative_out_and_leaves_no_claim(place: Path) -> None:
    study = make_study(place)
    plan(study, out="mine")
    before = sorted(place.rglob("*"))
    with pytest.raises(InputError, match="mine"):
        plan(study, out="mine")
    assert sorted(place.rglob("*")) == before


def test_a_run_of_two_names_is_refused(place: Path) -> None:
    (place / "study.yaml").write_text("")
    words = ["plan", "study.yaml", "--run-id", "r1", "--out", "runs/mine"]
    for options in (words, [*words[:2], *words[4:], *words[2:4]]):
        done = CliRunner().invoke(main, options)
        assert done.exit_code == 2
        assert "--run-id 'r1' and --out 'runs/mine' give the run two names" in done.output
        assert "--out 'runs/mine/r1'" in done.output


def test_an_id_under_which_models_are_published_is_not_given_again(place: Path) -> None:
    (place / "models" / "demo" / "A" / SECOND).mkdir(parents=True)
    assert plan(make_study(place)).run_id == f"{SECOND}-2"


def test_another_study_may_have_a_run_of_the_same_id(place: Path) -> None:
    assert plan(make_study(place)).run_id == SECOND
    assert plan(make_study(place, name="other")).run_id == SECOND


def test_a_run_under_tmp_is_planned_with_a_warning(place: Path) -> None:
    notices: list[str] = []
    run = plan(make_study(place), notice=notices.append)
    assert run.folder.is_relative_to("/tmp")
    (warning,) = notices
    assert warning.startswith(f"the run's folder '{run.folder}' is under /tmp, which many machines")


def test_a_plan_that_fails_leaves_no_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 0)
    with pytest.raises(InputError, match="MB"):
        plan(make_study(place))
    for made in ("runs", "models"):
        assert not (place / made).exists()
    (other := place / "models" / "other").mkdir(parents=True)
    with pytest.raises(InputError, match="MB"):
        plan(make_study(place), out=place / "here")
    assert [*(place / "models").iterdir()] == [other]


@pytest.mark.usefixtures("empty_queue")
def test_removing_the_last_run_of_a_study_removes_the_studys_folder(place: Path) -> None:
    first, second = plan(make_study(place)), plan(make_study(place))
    first.remove()
    assert second.folder.exists()
    second.remove()
    assert [*(place / "runs").iterdir()] == []


def test_claims_are_forgotten_when_their_second_cant_come_again(place: Path) -> None:
    claims = place / "models" / "demo" / ".planned"
    claims.mkdir(parents=True)
    for name, age in (("yesterday", 90_000), ("just now", 10)):
        (claims / name).touch()
        moment = (claims / name).stat().st_mtime - age
        os.utime(claims / name, (moment, moment))
    plan(make_study(place))
    assert {claim.name for claim in claims.iterdir()} == {"just now", SECOND}


def test_a_second_plan_with_the_same_id_is_refused(place: Path) -> None:
    study = make_study(place)
    first = plan(study, run="r1")
    (place / ".plan-second").mkdir()
    with pytest.raises(InputError, match="exists already"):
        plan_module._put(place / ".plan-second", first.folder)  # planned since it was looked at
    with pytest.raises(InputError, match="exists already"):
        plan(study, run="r1")


@pytest.mark.parametrize(
    "run", ["", ".", "..", 'a"b', "a\nb", "x y", "-x", "latest", "study.json", "daily.db"]
)
def test_an_invalid_run_id_is_refused_with_the_rule(place: Path, run: str) -> None:
    study = make_study(place)
    plan(study, run="r1")
    with pytest.raises(
        InputError, match=r"^run id .*: use at most 64 letters.*'latest', 'study\.json'"
    ):
        plan(study, run=run)
    assert [path.name for path in (place / "runs" / "demo").iterdir()] == ["r1"]


@pytest.mark.parametrize(("out", "what"), [("file", "is a file"), ("full", "contains other files")])
def test_the_error_describes_an_existing_path_that_is_no_run(
    place: Path, out: str, what: str
) -> None:
    (place / "file").touch()
    (place / "full" / "of").mkdir(parents=True)
    with pytest.raises(InputError, match=rf"{out}' exists already and {what}; choose another"):
        plan(make_study(place), out=place / out)


def test_the_working_folder_is_not_replaced_by_a_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(place)
    (empty := place / "empty").mkdir()
    monkeypatch.chdir(empty)
    before = empty.stat().st_ino
    for out in (".", empty, "../empty", "../empty/"):
        with pytest.raises(InputError, match=r"empty' is the working folder, .* choose another"):
            plan(study, out=out)
    assert empty.stat().st_ino == before
    assert not any(empty.iterdir())
    assert not (place / "models").exists()
    with pytest.raises(InputError, match="contains other files"):
        plan(study, out="..")


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("name", ["x" * 300, "é" * 128])
def test_a_name_that_no_file_can_have_is_refused(place: Path, command: str, name: str) -> None:
    assert CliRunner().invoke(main, ["init", "demo"]).exit_code == 0
    (place / "runs" / "first").mkdir(parents=True)
    for options in (["--run-id", name], ["--out", name], ["--out", f"{name}/r"]):
        done = CliRunner().invoke(main, [command, "demo/study.yaml", *options])
        assert done.exit_code == 2, done.output
        rule = (
            "use at most 64 letters" if options[0] == "--run-id" else "a name has at most 255 bytes"
        )
        assert rule in done.stderr
        assert not any((place / "runs/first").iterdir())
        assert not (place / "demo/models").exists()
