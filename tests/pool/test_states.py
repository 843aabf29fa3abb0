"""All views of one run agree: status, trials, best, report, their JSON and their pages."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from trialfleet import Run, RunState
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.scripts.report_program import write_report
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.usefixtures("pool")
WaitFor = Callable[..., None]
COUNTS = {  # the words of trials, and where `status` counts them
    "complete": "done",
    "failed": "failed",
    "pruned": "pruned",
    "running": "running",
    "queued": "queued",
    "held": "on_hold",
    "interrupted": "interrupted",
}


def output_of(*words: str) -> str:
    done = CliRunner().invoke(main, list(words), terminal_width=200, env={"COLUMNS": "200"})
    assert done.exit_code in ({0, 1} if words[0] == "status" else {0}), done.output
    return done.output


def of(run: Run, *words: str) -> Any:
    return json.loads(output_of(*words, str(run.folder), "--json"))


def assert_views_agree(run: Run) -> dict[str, tuple[str, Counter[str]]]:
    """Return each region's word and how many trials have which."""
    status, trials = of(run, "status"), of(run, "trials")
    rows = list(csv.DictReader(io.StringIO(output_of("trials", "--csv", str(run.folder)))))
    assert [row["state"] for row in rows] == [trial["state"] for trial in trials]
    folder = RunFolder(run.folder)
    report = json.loads(read_report(folder).to_json())
    page, table = output_of("status", str(run.folder)), output_of("trials", str(run.folder))
    seen = {}
    for region, reported in zip(status["regions"], report["regions"], strict=True):
        name = region["name"]
        words = Counter(trial["state"] for trial in trials if trial["region"] == name)
        assert {word: region[field] for word, field in COUNTS.items() if region[field]} == words
        assert Counter(trial["state"] for trial in reported["trials"]) == words
        changing = {"best", "running_trials", "seconds_left", "usd"}
        assert {key: reported[key] for key in region.keys() - changing} == {
            key: region[key] for key in region.keys() - changing
        }
        over = f"{words['complete'] + words['failed'] + words['pruned']}/{region['budget']}"
        row = next(line.split() for line in page.splitlines() if line.split()[:1] == [name])
        assert row[1] == region["stage"]
        assert over in row
        assert (
            Counter(line.split()[2] for line in table.splitlines() if line.split()[:1] == [name])
            == words
        )
        best = [entry for entry in of(run, "best") if entry["region"] == name]
        assert [entry["stage"] for entry in best] == (
            [region["stage"]] if words["complete"] else []
        )
        seen[name] = (region["stage"], words)
    summary = output_of("report", str(run.folder))
    assert f"{status['run']}  {status['state']}" in page
    for stage, words in seen.values():
        assert stage in summary
        assert f"{sum(words[word] for word in ('complete', 'failed', 'pruned'))}/" in summary
    html = run.report.read_text()
    assert all(f">{stage}<" in html for stage, _ in seen.values())
    return seen


@pytest.mark.thorough
def test_views_of_a_running_and_a_stopped_run_agree(
    make_run: MakeRun, work: Path, wait_for: WaitFor, pool: Pool
) -> None:
    gate = work / "gate"
    gate.mkdir()
    run = make_run({"gate": str(gate)}, budget={"trials": 4, "lanes": 2})
    run.submit()
    for node in ("A.l1.t01", "A.l2.t01"):
        (gate / node).touch()
    wait_for(lambda: sum(t.state == "complete" for t in run.trials()) == 2)
    wait_for(lambda: run.status().regions[0].running == 2)
    expected = Counter(complete=2, running=2)
    assert assert_views_agree(run) == {"A": ("tuning", expected)}
    at_work = pool.status()  # the two DAGMans, of run and region, are one run
    assert (at_work.runs, at_work.trials, at_work.jobs) == (1, {"running": 2}, {"running": 2})
    (machine,) = at_work.machines
    assert machine.in_use.cpus + machine.offered_room.cpus == 4
    done = CliRunner().invoke(main, ["stop", str(run.folder)])
    assert done.stdout.splitlines()[0] == "stopped"
    assert done.stdout.splitlines()[1].startswith("next: trialfleet resume ")
    expected = Counter(complete=2, interrupted=2)
    assert assert_views_agree(run) == {"A": ("stopped", expected)}
    assert CliRunner().invoke(main, ["status", str(run.folder)]).exit_code == 1
    shown = output_of("status", str(run.folder))
    assert "ULOG" not in shown
    assert "DAGMan" not in shown
    run.resume()
    for path in ("A.l1.t02", "A.l2.t02", "A.l1.t03", "A.l2.t03", "A.best"):
        (gate / path).touch()
    assert run.wait().state is RunState.DONE
    assert assert_views_agree(run) == {"A": ("published", Counter(complete=4))}


@pytest.mark.thorough
def test_views_of_a_run_with_a_failed_region_agree(make_run: MakeRun) -> None:
    moods: dict[str, Any] = {
        "A": {"search_space": {"mood": "fails"}},
        "B": {"search_space": {"mood": "sometimes"}},
    }
    run = make_run({"mood": "good"}, regions=moods, budget={"trials": 2, "lanes": 1}, retries=0)
    run.submit()
    assert run.wait().state is RunState.FAILED
    assert assert_views_agree(run) == {
        "A": ("failed", Counter(failed=2)),
        "B": ("published", Counter(complete=1, failed=1)),
    }
    shown = output_of("status", str(run.folder))
    assert "B" in shown
    assert "2/2" in shown
    assert "A failed: " in shown


@pytest.mark.thorough
def test_views_of_a_run_without_publishing_agree(make_run: MakeRun, work: Path) -> None:
    regions = ["A", "B"]
    run = make_run(regions=regions, publish="none", budget={"trials": 3, "lanes": 2})
    run.submit()
    status = run.wait()
    assert status.state is RunState.DONE, status
    expected = ("tuned", Counter(complete=3))
    assert assert_views_agree(run) == {"A": expected, "B": expected}
    assert not (work / "models").exists()
    for region in regions:
        assert not (run.folder / "regions" / region / "best" / "log").exists()
    assert write_report(RunFolder(run.folder), None).regions[0].stage == "tuned"
    done = CliRunner().invoke(main, ["resume", str(run.folder)])
    assert "is done: there is nothing to resume" in done.output


@pytest.mark.thorough
def test_one_regions_dag_alone_is_enough_to_tune(make_run: MakeRun, wait_for: WaitFor) -> None:
    import subprocess

    run = make_run(publish="none", budget={"trials": 2, "lanes": 1})
    subprocess.run(["condor_submit_dag", run.folder / "regions/A/region.dag"], cwd="/", check=True)
    wait_for((run.folder / "regions/A/tuned.json").exists)
    wait_for(lambda: run.status().root is None)
    assert run.status().state is RunState.DONE


@pytest.mark.thorough
def test_a_trainer_that_ignores_its_mode_is_reported_after_one_full_training(
    make_run: MakeRun, work: Path
) -> None:
    trainer = work / "quick.sh"
    trainer.write_text('echo \'{"status": "complete", "metrics": {"loss": 1}}\' > result.json\n')
    run = make_run(
        regions=["A", "B", "C"],
        parallel_regions=1,
        trainer={"command": ["sh", trainer.name], "files": [str(trainer)]},
        budget={"trials": 2, "lanes": 1},
        retries=5,
    )
    run.submit()
    assert run.wait().state is RunState.FAILED
    jobs = run.folder.glob("regions/*/trials/*/log")
    assert sum(log.read_text().count("best begins") for log in jobs) == 1  # one region's, once
    assert not list(run.folder.glob("regions/*/best/log"))  # nor in a job of its own
    assert {stage for stage, _ in assert_views_agree(run).values()} == {"failed"}
    assert all("t.model" in str(region.reason) for region in run.status().regions)
