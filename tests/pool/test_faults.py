"""Runs on a real pool of which processes, or the whole pool, are killed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.pool.watching import (
    SLOW,
    WaitFor,
    active,
    assert_exactly_once,
    dagmans,
    finished_trials,
    kill_all,
    services,
)
from trialfleet import InputError, Run, RunState
from trialfleet.classads import JobStatus
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.dagman.repair import replace
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.jobs.job_log import read_executions
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.run_faults import Fault, Remedy


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_killing_the_service_again_and_again_loses_nothing(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run(SLOW, budget={"trials": 6, "lanes": 2})
    run.submit()
    for finished in (1, 3):
        wait_for(lambda finished=finished: finished_trials(run) >= finished)
        killed = services(run)
        assert killed
        for process in killed:
            process.kill()
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 6)


@pytest.fixture
def begin(make_run: MakeRun, wait_for: WaitFor) -> Callable[..., Run]:
    """Submit a run, of four trials by default; return it once it knows a value."""

    def begun(**settings: Any) -> Run:
        run = make_run(SLOW, **{"budget": {"trials": 4, "lanes": 2}, **settings})
        run.submit()
        wait_for(lambda: finished_trials(run) >= 1)
        return run

    return begun


def test_the_service_has_the_condor_config_of_its_pool(
    begin: Callable[..., Run], pool: Pool
) -> None:
    """It asks machines whether they are broken, before it blames a trial."""
    run = begin()
    found = services(run)
    assert {each.environ().get("CONDOR_CONFIG") for each in found} == {str(pool.condor_config)}
    run.stop()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_killing_dagman_loses_nothing(begin: Callable[..., Run]) -> None:
    run = begin()
    victims = dagmans(run)
    assert len(victims) == 2  # the graph's and the region's
    for process in victims:
        process.kill()
    assert run.status().state is RunState.RUNNING
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 4)


@pytest.mark.thorough
def test_killing_the_pool_loses_no_trial(
    begin: Callable[..., Run], make_pool: Callable[..., Pool], wait_for: WaitFor
) -> None:
    with active(make_pool()) as pool:
        run = begin()
        kill_all(pool, wait_for)
        assert run.status().state is RunState.UNKNOWN
        assert "can't be read" in (run.status().notice or "")
        pool.up()
        assert run.wait().state is RunState.DONE
        assert_exactly_once(run, 4)


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_region_whose_dagman_is_removed_is_shown_as_stopped(
    begin: Callable[..., Run], wait_for: WaitFor
) -> None:
    run = begin(regions=["A", "B"], budget={"trials": 2, "lanes": 1})
    job = f'TrialfleetFolder == "{run.folder}" && TrialfleetRegion == "A" && JobUniverse == 7'
    subprocess.run(["condor_rm", "-constraint", job], check=True)
    wait_for(lambda: run.status().regions[0].state is RunState.STOPPED)
    reason = run.status().regions[0].reason or ""
    assert reason.startswith("its jobs were removed: via condor_rm (by user ")
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert status.regions[1].state is RunState.DONE
    run.resume()
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 2)


@pytest.mark.usefixtures("pool")
def test_a_stopped_run_continues_where_it_was(begin: Callable[..., Run]) -> None:
    run = begin()
    with pytest.raises(InputError, match="submitted before"):
        run.submit()
    resumed = CliRunner().invoke(main, ["resume", str(run.folder), "--no-watch"])
    assert resumed.output.startswith("the run is already running as job "), resumed.output
    stopped = run.stop()
    before = {r.node: (r.trial, r.params) for r in run.trials()}
    assert stopped.state is RunState.STOPPED
    assert run.report.exists()
    with pytest.raises(InputError, match="nothing to stop"):
        run.stop()
    run.resume()
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 4)
    after = {r.node: (r.trial, r.params) for r in run.trials()}
    assert before.items() <= after.items()
    executions = read_executions(RunFolder(run.folder).dag_files.log)
    assert [end is not None and end > begun for begun, end in executions] == [True, True]
    with pytest.raises(InputError, match="nothing to resume"):
        run.resume()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_region_that_failed_runs_again_at_resume(make_run: MakeRun) -> None:
    run = make_run({"final_mood": "fails"}, regions=["A"], budget={"trials": 1, "lanes": 1})
    run.submit()
    assert run.wait().state is RunState.FAILED
    trainer = run.folder / "code" / "moody.py"
    asks = """params.get(f"{order['mode']}_mood", "good")"""
    assert asks in trainer.read_text()
    trainer.write_text(trainer.read_text().replace(asks, '"good"'))
    run.resume()
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 1)


@pytest.mark.usefixtures("pool")
def test_replacing_a_regions_dagman_leaves_the_dagmans_of_other_regions(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run(SLOW, regions=["A", "B"], budget={"trials": 3, "lanes": 1})
    folder = RunFolder(run.folder)
    for slug in ("A", "B"):
        dag = folder.region(slug).dag_files.dag
        subprocess.run(["condor_submit_dag", dag], cwd="/", check=True)
    wait_for(lambda: run.trials("A") and run.trials("B"))
    before = graphs_in_queue(folder)
    fault = Fault(
        region="A", job=before["A"], what="it stalls", remedy=Remedy.REPLACE, patience=0.0
    )
    replace(folder, fault)
    after = graphs_in_queue(folder)
    assert after["A"] != before["A"]
    assert after["B"] == before["B"]
    wait_for(lambda: all(folder.region(slug).published.exists() for slug in ("A", "B")))
    assert_exactly_once(run, 3)


def graphs_in_queue(folder: RunFolder) -> dict[str, int]:
    """Return the cluster id of each region's DAGMan that is not being removed."""
    ads = job_queue.look_up(folder).ads
    dags = (ad for ad in ads if job_queue.is_dagman(ad) and ad["JobStatus"] != JobStatus.REMOVED)
    return {ad["TrialfleetRegion"]: ad["ClusterId"] for ad in dags}
