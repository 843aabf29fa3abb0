"""A check of the trainer runs one trial as a job that the study does not record."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.pool.conftest import CPUS, MakePool
from tests.pool.watching import WaitFor, active, assert_exactly_once
from trialfleet import InputError, RunState
from trialfleet.infra.pool.schedd import query
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.run.trainer_check import check
from trialfleet.workflows.facts.run_folder.folder import RunFolder


@pytest.mark.usefixtures("pool")
def test_a_check_of_a_working_trainer_leaves_the_run_planned(make_run: MakeRun, work: Path) -> None:
    (work / "rows.csv").write_text("1,2\n")
    run = make_run(regions=["A", "B"], data="rows.csv", budget={"trials": 2, "lanes": 1})
    before = {path.name for path in run.folder.iterdir()}
    with pytest.raises(InputError, match=r"no region 'C'; regions: 'A', 'B'"):
        run.check(region="C")
    assert run.check(region="B").region == "B"
    checked = run.check()
    assert checked.region == "A"
    assert checked.metrics is not None
    assert checked.metrics["loss"] == pytest.approx(0.04)  # of the default settings
    assert "A with its default settings: loss 0.04" in str(checked)
    assert "only A of 2 regions was tried" in str(checked)
    assert {path.name for path in run.folder.iterdir()} == before | {"hand.lock"}
    assert run.status().state is RunState.PLANNED
    run.submit()
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 2)
    with pytest.raises(InputError, match="the check only works before submission"):
        run.check()


@pytest.mark.usefixtures("pool")
def test_a_failing_trainer_is_shown_with_its_last_output(make_run: MakeRun) -> None:
    run = make_run({"mood": "fails"})
    with pytest.raises(InputError) as caught:
        run.check()
    place = run.folder / "check"
    assert str(caught.value) == (
        "the trainer fails with the default settings of region 'A': exit code 1: I always fail; "
        f"its last output, from '{place}/err':\n  I always fail\n"
        f"the trial's input and output files are in '{place}'"
    )
    assert (place / "trial.json").exists()
    assert not (run.folder / "study.db").exists()
    assert run.status().state is RunState.PLANNED


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_each_mode_of_the_trainer_is_tried(make_run: MakeRun) -> None:
    gated = make_run(gate={})
    assert gated.check().modes == ("tune", "final", "evaluate")
    assert not (gated.folder / "check").exists()
    assert make_run(run="r2").check().modes == ("tune", "final")
    assert make_run(run="r3", publish="none").check().modes == ("tune",)
    slow = check(RunFolder(make_run({"final_mood": "hangs"}, run="r4").folder), seconds=15)
    assert (slow.modes, slow.unseen) == (("tune",), "final")


@pytest.mark.parametrize(
    ("params", "gate", "words"),
    [
        pytest.param(
            {"final_mood": "no model"},
            None,
            "the full training left nothing in model/",
            marks=pytest.mark.thorough,
        ),
        ({"final_mood": "reserved name"}, None, "have the trainer choose another file name"),
        pytest.param(
            {"final_mood": "raises"},
            None,
            "fails in mode final (its full training) with",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"evaluate_mood": "silent"},
            {},
            "mode evaluate (the gate's job, docs/gate.md)",
            marks=pytest.mark.thorough,
        ),
        ({"evaluate_mood": "as tune"}, {}, "the trainer doesn't know the mode evaluate"),
        pytest.param(
            {},
            {"metric": "profit"},
            "the gate's metric 'profit'; it reports: loss",
            marks=pytest.mark.thorough,
        ),
    ],
)
@pytest.mark.usefixtures("pool")
def test_a_mode_that_fails_is_reported(
    make_run: MakeRun, params: dict[str, str], gate: dict[str, str] | None, words: str
) -> None:
    run = make_run(params, gate=gate)
    with pytest.raises(InputError) as caught:
        run.check()
    assert words in str(caught.value)
    assert ("ZeroDivisionError" in str(caught.value)) == (params.get("final_mood") == "raises")


@pytest.mark.usefixtures("pool")
def test_run_with_check_submits_nothing_where_the_trainer_fails(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    assert CliRunner().invoke(main, ["init", "first"]).exit_code == 0
    (work / "first/train.py").write_text("import no_such_module\n")
    result = CliRunner().invoke(main, ["run", "first/study.yaml", "--check", "--out", "run"])
    assert result.exit_code == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in result.stderr
    assert not (work / "run").exists()
    assert f"{work}/.failed-check/err" in result.stderr
    assert "no_such_module" in (work / ".failed-check/err").read_text()
    assert (work / ".failed-check/trial.json").exists()
    assert query(f'TrialfleetFolder == "{work / "run"}"', ["ClusterId"]) == []


@pytest.mark.usefixtures("pool")
def test_a_check_does_not_wait_for_a_long_training(make_run: MakeRun, wait_for: WaitFor) -> None:
    run = make_run({"mood": "hangs"})
    checked = check(RunFolder(run.folder), seconds=15)
    assert (checked.metrics, checked.waited) == (None, False)
    wait_for(lambda: query(f'TrialfleetFolder == "{run.folder}"', ["ClusterId"]) == [])


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_check_says_what_it_waits_for_and_where_it_runs(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    whole = {"cpus": CPUS, "memory": "64MB", "disk": "20MB"}
    budget = {"trials": 2, "lanes": 2}
    first = make_run({"mood": "hangs"}, resources=whole, budget=budget)
    first.submit()
    wait_for(
        lambda: len(query(f'TrialfleetFolder == "{first.folder}" && JobUniverse == 5', [])) == 2
    )
    wait_for(lambda: first.status().regions[0].running == 1)
    second = make_run(run="r2", resources=whole)
    waits = "busy with 1 job of others"
    said: list[str] = []

    def progress(line: str) -> None:
        if waits in line and not any(waits in each for each in said):
            first.stop()
        said.append(line)

    assert check(RunFolder(second.folder), seconds=240, progress=progress).metrics
    assert any(line.startswith("tune: ") and waits in line for line in said)
    assert said[-1].startswith("final: runs on slot1")


@pytest.mark.thorough
def test_a_check_without_a_free_slot_reports_that_it_has_no_result(
    make_run: MakeRun, make_pool: MakePool, wait_for: WaitFor
) -> None:
    with active(make_pool(memory_mb=1000)):
        large = {"memory": "700MB", "disk": "20MB"}
        first = make_run({"mood": "hangs"}, resources=large, budget={"trials": 1, "lanes": 1})
        first.submit()
        wait_for(lambda: first.status().regions[0].running == 1)
        second = make_run(run="r2", resources=large)
        checked = check(RunFolder(second.folder), seconds=5)
        assert (checked.metrics, checked.waited) == (None, True)
        assert "the trainer was not started" in str(checked)
        first.stop()


@pytest.mark.usefixtures("pool")
def test_a_check_that_no_slot_can_run_is_refused(make_run: MakeRun) -> None:
    run = make_run(resources={"memory": "900GB", "disk": "20MB"})
    with pytest.raises(
        InputError, match=r"the trainer can't be started in this pool: .*memory: needs 900 GB"
    ):
        run.check()


@pytest.mark.usefixtures("pool")
def test_a_check_tries_the_first_region_that_a_slot_can_run(make_run: MakeRun, work: Path) -> None:
    with (work / "large").open("wb") as file:
        file.truncate(4 << 40)
    (work / "small").write_text("1,2\n")
    data = {"A": "large", "B": "small", "C": "small"}
    run = make_run(regions={name: {"data": [file]} for name, file in data.items()})
    checked = run.check()
    assert (checked.region, checked.waited) == ("B", False)
    assert checked.metrics
    with pytest.raises(InputError, match=r"can't be started in .*: no slot .*disk: needs 4096 GB"):
        run.check(region="A")


@pytest.mark.usefixtures("pool")
def test_run_refuses_a_region_that_fits_no_slot_before_it_tries_the_trainer(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    with (work / "large").open("wb") as file:
        file.truncate(4 << 40)
    (work / "small").write_text("1,2\n")
    (work / "study.yaml").write_text(STUDY)
    result = CliRunner().invoke(main, ["run", "study.yaml", "--check", "--out", "run"])
    assert result.exit_code == 2
    assert "trials of A: " in result.stderr
    assert "disk: needs 40" in result.stderr
    assert "starting the trainer" not in result.output
    assert not (work / "run").exists()


STUDY = """\
name: demo
regions: {A: {data: [large]}, B: {data: [small]}}
objective: {metric: loss, direction: minimize}
search_space: {x: {type: float, low: 0.0, high: 1.0}}
trainer: {command: ["false"]}
"""
