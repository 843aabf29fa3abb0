"""Complete runs on a real pool, without faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import MOODY, MakeRun
from tests.pool.watching import assert_exactly_once
from trialfleet import RunState
from trialfleet.workflows.cli.main import main

pytestmark = pytest.mark.usefixtures("pool")


def test_a_run_of_three_regions_publishes_their_models(make_run: MakeRun) -> None:
    led = {"trials": 5, "lanes": 2, "startup_trials": 2}  # by the model, from the third on
    run = make_run(regions=["A", "São Paulo", 'it\'s "C"'], budget=led)
    run.submit()
    status = run.wait()
    assert status.state is RunState.DONE, status
    assert_exactly_once(run, 5)
    for region in status.regions:
        assert (region.done, region.failed, region.running, region.queued) == (5, 0, 0, 0)
        published = Path(region.published or "")
        assert (published / "weights").exists()
        assert (published.parent / "latest").resolve() == published
    assert "São Paulo" in run.report.read_text()
    assert {b.region for b in run.best()} == set(run.study.region_table)


def test_by_hand_condor_submit_dag_is_enough(make_run: MakeRun, tmp_path: Path) -> None:
    """Under /tmp, too, where a clone is often tried first."""
    assert tmp_path.is_relative_to("/tmp")
    run = make_run(out=tmp_path / "run", budget={"trials": 2, "lanes": 1})
    subprocess.run(["condor_submit_dag", run.folder / "study.dag"], cwd="/", check=True)
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 2)


def test_stop_says_that_it_waits_for_the_runs_jobs(
    make_run: MakeRun, wait_for: Callable[..., None]
) -> None:
    run = make_run({"steps": 400, "seconds": 0.25}, regions=["A", "B"])
    run.submit()
    wait_for(lambda: any(trial.state == "running" for trial in run.trials()))
    done = CliRunner().invoke(main, ["stop", str(run.folder)])
    assert done.stdout.splitlines()[0] == "stopped"
    *waits, last = done.stderr.splitlines()
    assert waits
    for line in waits:
        assert re.fullmatch(r"\d+ s: waits for the end of \d+ job\(s\) of the run", line)
    assert re.fullmatch(r"\d+ s: writes the report", last)


@pytest.mark.thorough
def test_by_hand_a_run_is_stopped_and_resumed(
    make_run: MakeRun, wait_for: Callable[..., None]
) -> None:
    """As docs/by-hand.md says it."""
    run = make_run(budget={"trials": 4, "lanes": 1})
    dag = run.folder / "study.dag"
    subprocess.run(["condor_submit_dag", dag], cwd="/", check=True)
    wait_for(lambda: any(trial.state == "complete" for trial in run.trials()))
    subprocess.run(["condor_rm", str(run.status().root)], check=True)
    wait_for(lambda: run.status().state is RunState.STOPPED)
    subprocess.run(["condor_submit_dag", "-update_submit", dag], cwd="/", check=True)
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 4)


@pytest.mark.thorough
def test_a_run_works_in_a_folder_with_a_space_and_a_quote(make_run: MakeRun, work: Path) -> None:
    run = make_run(out=work / "it's a run é", budget={"trials": 2, "lanes": 1})
    run.submit()
    assert run.wait().state is RunState.DONE


@pytest.mark.thorough
def test_a_trainer_in_another_language_needs_only_the_contract(make_run: MakeRun) -> None:
    trainer = Path(__file__).parent / "trainers" / "quadratic.sh"
    run = make_run(
        {"steps": 3},
        trainer={"command": ["sh", trainer.name], "files": [str(trainer)]},
        budget={"trials": 2, "lanes": 1},
    )
    run.submit()
    assert run.wait().state is RunState.DONE
    assert [r.state for r in run.trials()] == ["complete", "complete"]


SHELL = """\
[ -e {gate}/tried ] || {{ touch {gate}/tried; exit 1; }}
for step in 1 2 3; do
    echo "{{\\"step\\": $step, \\"metrics\\": {{\\"loss\\": 0.$step}}}}" >>progress.jsonl
done
while [ ! -e {gate}/open ]; do sleep 0.1; done
sleep 2
echo x >model/x
echo '{{"status": "complete", "metrics": {{"loss": 0.5}}}}' >result.json
"""


@pytest.mark.thorough
def test_a_trial_without_own_measurements_has_htcondors(
    make_run: MakeRun, work: Path, wait_for: Callable[..., None]
) -> None:
    (work / "train.sh").write_text(SHELL.format(gate=work))
    run = make_run(
        trainer={"command": ["sh", "train.sh"], "files": [str(work / "train.sh")]},
        budget={"trials": 1, "lanes": 1},
    )
    run.submit()

    def reported() -> bool:
        (region,) = run.status().regions
        return [(trial.step, trial.value) for trial in region.running_trials] == [(3, 0.3)]

    wait_for(reported)
    (work / "open").touch()
    assert run.wait().state is RunState.DONE
    (record,) = run.trials()
    assert record.attempts == 2
    assert record.seconds is None
    assert record.machine
    assert record.slot
    assert record.slot.endswith(f"@{record.machine}")
    assert record.started is not None
    assert record.ended is not None
    assert record.wall_seconds is not None
    assert record.last_wall_seconds is not None
    assert 2 <= record.last_wall_seconds < record.wall_seconds
    assert record.wall_seconds <= record.ended - record.started
    assert record.cpu_seconds is not None
    assert 0 < record.cpu_seconds < record.last_wall_seconds  # it hardly computes
    assert record.memory_mb is not None
    assert record.memory_mb > 0
    (region,) = json.loads((run.folder / "report.json").read_text())["regions"]
    (trial,) = region["trials"]
    assert trial["curve"] == [[1, 0.1], [2, 0.2], [3, 0.3]]
    assert trial["wall_seconds"] == record.wall_seconds
    assert region["final_job"]["wall_seconds"] >= 2
    total = record.wall_seconds + region["final_job"]["wall_seconds"]
    assert region["compute_seconds"] == pytest.approx(total)


@pytest.mark.thorough
def test_two_runs_at_once_do_not_mix(make_run: MakeRun) -> None:
    runs = [make_run(run=f"r{i}", budget={"trials": 3, "lanes": 2}) for i in range(2)]
    for run in runs:
        run.submit()
    for run in runs:
        assert run.wait().state is RunState.DONE
        assert_exactly_once(run, 3)


@pytest.mark.thorough
def test_two_studies_of_one_folder_with_one_run_id_do_not_mix(
    make_run: MakeRun, work: Path
) -> None:
    """The same region names, the same id, one pool, one publish folder."""
    runs = [
        make_run(name=name, out=work / name, regions=["A", "B"], budget={"trials": 2, "lanes": 1})
        for name in ("one", "other")
    ]
    for run in runs:
        run.submit()
    for run in runs:
        assert run.wait().state is RunState.DONE
        assert_exactly_once(run, 2)
        for region in ("A", "B"):
            models_folder = work / "models" / run.study.name / region
            assert (models_folder / "latest").resolve() == (models_folder / "r1").resolve()
            content = json.loads((models_folder / "latest" / "provenance.json").read_text())
            assert content["study"] == run.study.name


@pytest.mark.thorough
def test_plan_and_run_of_one_study_at_once_both_work(work: Path) -> None:
    study = work / "study.yaml"
    study.write_text(
        "name: demo\nregions: [A]\nobjective: {metric: loss, direction: minimize}\n"
        "search_space: {x: {type: float, low: 0, high: 1}}\nbudget: {trials: 2, lanes: 1}\n"
        f"trainer: {{command: [python3, {MOODY.name}], files: [{MOODY}]}}\n"
        "resources: {memory: 100MB, disk: 20MB}\naccelerator: cpu\n"
    )
    trialfleet = Path(sys.executable).with_name("trialfleet")
    commands = [
        subprocess.Popen([trialfleet, *words], cwd=work, stdout=subprocess.PIPE, text=True)
        for words in (
            ["plan", "--json", str(study)],
            ["run", str(study)],
            ["plan", "--json", str(study)],
        )
    ]
    outputs = [process.communicate()[0] for process in commands]
    assert [process.returncode for process in commands] == [0, 0, 0]
    planned = {json.loads(text)["run"] for text in (outputs[0], outputs[2])}
    folders = {path.name for path in (work / "runs" / "demo").iterdir()}
    assert len(planned) == 2
    assert len(folders) == 3
    (done,) = folders - planned
    assert (work / "models" / "demo" / "A" / "latest").resolve().name == done
