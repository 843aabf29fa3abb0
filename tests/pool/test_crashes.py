"""A run continues by itself after a DAGMan or the pool was killed in any phase of a region."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import MakeRun
from tests.pool.watching import (
    WaitFor,
    active,
    assert_exactly_once,
    dagmans,
    finished_trials,
    kill_all,
    processes_with,
    programs_of,
    put_before_client,
    services,
)
from trialfleet import Run, RunState
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder

TRIALS = ("A.l1.t01", "A.l2.t01")  # of two lanes
BACK_SECONDS = 60.0  # until all runs again after a kill


class Gated:
    """A run of one region, two trials in two lanes, whose jobs end when their gates are opened."""

    def __init__(self, run: Run, gate: Path, wait_for: WaitFor) -> None:
        self.run = run
        self.folder = RunFolder(run.folder)
        self._gate = gate
        self._wait_for = wait_for

    def until(self, phase: str) -> None:
        """Bring the region to a phase and keep it there."""
        self.run.submit()
        self._wait_for(lambda: len(dagmans(self.run)) == 2)
        if phase == "start":
            return
        self._wait_for(lambda: self._wait_at_gates(*TRIALS))
        if phase == "trials":
            return
        self.open(TRIALS[0])
        self._wait_for(lambda: finished_trials(self.run) == 1 and self._lanes_over() == 1)
        if phase == "last trial":
            return
        self.open(TRIALS[1])
        self._wait_for(lambda: self._wait_at_gates("A.best"))
        if phase == "best":
            return
        self.open("A.best")
        self.freeze(phase)

    def open(self, *nodes: str) -> None:
        for node in nodes:
            (self._gate / node).touch()

    def finish(self) -> None:
        """Open all gates, let all go on that was frozen, and wait for the end."""
        self.open(*TRIALS, "A.best")
        for process in processes_with(str(self.run.folder)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        assert self.run.wait().state is RunState.DONE
        assert_exactly_once(self.run, 2)

    def freeze(self, name: str) -> None:
        """Stop a program of the graph as soon as it runs."""
        found: list[psutil.Process] = []

        def runs() -> bool:
            found.extend(programs_of(self.run.folder, name))
            return bool(found)

        self._wait_for(runs)
        for process in found:
            process.send_signal(signal.SIGSTOP)

    def dagman_of_region(self) -> psutil.Process:
        self._wait_for(lambda: len(dagmans(self.run)) == 2)
        return next(p for p in dagmans(self.run) if "regions" in p.cwd())

    def kill_dagmans(self) -> None:
        """Kill those that there are, and wait until others have taken their places."""
        victims = dagmans(self.run)
        assert victims
        for process in victims:
            process.kill()
        self._wait_for(lambda: len(dagmans(self.run)) == len(victims), BACK_SECONDS)

    def _wait_at_gates(self, *nodes: str) -> bool:
        return all((self._gate / f"{node}.waits").exists() for node in nodes)

    def _lanes_over(self) -> int:
        """Lanes that have no job any more: with a job for each trial, the next node is skipped."""
        log = self.folder.region("A").scripts_log.read_text()
        return log.count("skipped") + log.count("its trials are recorded")


MakeGated = Callable[..., Gated]


@pytest.fixture
def make_gated(make_run: MakeRun, work: Path, wait_for: WaitFor) -> MakeGated:
    def make(**budget: Any) -> Gated:
        (gate := work / "gate").mkdir()
        run = make_run({"gate": str(gate)}, budget={"trials": 2, "lanes": 2, **budget})
        return Gated(run, gate, wait_for)

    return make


@pytest.fixture
def gated(make_gated: MakeGated) -> Gated:
    """The last trial's job trains the best settings, too."""
    return make_gated()


@pytest.fixture
def chains(make_gated: MakeGated) -> Gated:
    """A job for each trial: a lane is a chain of two nodes, of which the second is skipped."""
    return make_gated(trials_per_job=1)


PHASES = [
    "start",
    "trials",
    "last trial",
    "publish",
    "report",
]  # and best, in every run of the tests


def thorough(*phases: str) -> list[Any]:
    return [pytest.param(phase, marks=pytest.mark.thorough) for phase in phases]


@pytest.mark.parametrize("phase", thorough(*PHASES, "best"))
@pytest.mark.usefixtures("pool")
def test_a_run_continues_after_every_dagman_was_killed(phase: str, gated: Gated) -> None:
    gated.until(phase)
    gated.kill_dagmans()
    gated.finish()
    assert gated.run.status().repairs == ()  # DAGMan recovers by itself
    assert {record.attempts for record in gated.run.trials()} == {1}  # and nothing is trained again


@pytest.mark.parametrize("phase", thorough("last trial", "best", "publish"))
def test_a_run_continues_after_the_pool_was_killed(
    phase: str, gated: Gated, make_pool: Callable[..., Pool], wait_for: WaitFor
) -> None:
    with active(make_pool()) as pool:
        gated.until(phase)
        kill_all(pool, wait_for)
        pool.up()
        gated.finish()


@pytest.mark.thorough
def test_a_run_continues_after_the_pool_went_down_during_a_full_training(
    gated: Gated, make_pool: Callable[..., Pool], wait_for: WaitFor
) -> None:
    with active(make_pool()) as pool:
        gated.until("best")
        pool.down()
        pool.up()
        wait_for(lambda: len(dagmans(gated.run)) == 2, BACK_SECONDS)
        assert gated.run.status().repairs == ()  # it waits for no cool-down
        gated.finish()


# Two nodes that were skipped, with one id: a DAGMan of HTCondor 25.14 that was killed between them
# writes this when it skips nodes by PRE_SKIP (docs/dagman-recovery.md).
COLLISION = """\
034 (000.2147483647.001) 2026-11-20 10:00:00.000 PRE script return value is PRE_SKIP value
    DAG Node: A.l1.t02
...
034 (000.2147483647.001) 2026-11-20 10:00:01.000 PRE script return value is PRE_SKIP value
    DAG Node: A.l2.t02
...
"""


@pytest.mark.usefixtures("pool")
def test_a_dagman_that_can_not_recover_is_replaced(chains: Gated, wait_for: WaitFor) -> None:
    chains.until("trials")
    files = chains.folder.region("A").dag_files
    with files.nodes_log.open("a") as log:
        log.write(COLLISION)
    chains.dagman_of_region().kill()
    wait_for(lambda: "ended with exit code" in str(chains.run.status().troubles))
    wait_for(lambda: chains.run.status().repairs)
    assert chains.run.status().state is RunState.RUNNING
    chains.finish()
    assert list(files.aside.iterdir())  # files of the one before are kept


def _halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _spoil(file: Path) -> None:
    with file.open("r+b") as content:
        content.write(b"\xff\0 no event\n" * 20)


def _empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [_halve, _spoil, _empty, Path.unlink])
@pytest.mark.parametrize("what", ["nodes_log", "lock"])
@pytest.mark.usefixtures("pool")
def test_a_run_continues_after_damage_to_a_killed_dagmans_files(
    what: str, damage: Callable[[Path], None], gated: Gated
) -> None:
    gated.until("trials")
    region = gated.dagman_of_region()
    region.suspend()
    damage(getattr(gated.folder.region("A").dag_files, what))
    region.kill()
    gated.finish()


@pytest.mark.thorough
def test_without_a_supervisor_resume_repairs_a_run_at_once(
    chains: Gated, pool: Pool, wait_for: WaitFor
) -> None:
    chains.until("trials")
    supervisors = programs_of(pool.folder, "supervise")
    assert supervisors
    for supervisor in supervisors:
        supervisor.suspend()
    try:
        with chains.folder.region("A").dag_files.nodes_log.open("a") as log:
            log.write(COLLISION)
        chains.dagman_of_region().kill()
        wait_for(lambda: "ended with exit code" in str(chains.run.status().troubles))
        chains.run.resume()
        assert [repair["remedy"] for repair in chains.run.status().repairs] == ["replace"]
        chains.finish()
    finally:
        for supervisor in supervisors:
            supervisor.resume()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_killed_service_is_restarted_before_a_script_needs_it(
    gated: Gated, wait_for: WaitFor
) -> None:
    """The service reads trials' reports between two scripts, and may stop a trial."""
    gated.until("best")
    logged = gated.folder.service_log.read_text()
    killed = services(gated.run)
    for service in killed:
        service.kill()
    psutil.wait_procs(killed)
    wait_for(lambda: services(gated.run), BACK_SECONDS)
    gated.finish()
    assert gated.folder.service_log.read_text().startswith(logged)


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_graph_that_can_not_recover_is_submitted_again(gated: Gated, wait_for: WaitFor) -> None:
    gated.until("trials")
    event = COLLISION.replace("A.l1.t02", "A").replace("A.l2.t02", "report")
    with gated.folder.dag_files.nodes_log.open("a") as log:
        log.write(event)
    next(p for p in dagmans(gated.run) if "regions" not in p.cwd()).kill()
    wait_for(lambda: gated.run.status().repairs)
    gated.finish()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_job_that_runs_again_after_its_end_stops_no_graph(gated: Gated) -> None:
    gated.until("report")
    _run_again_after_its_end(gated)
    gated.kill_dagmans()
    gated.finish()
    assert gated.run.status().repairs == ()
    assert gated.run.report.exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_graph_that_can_not_recover_during_its_report_still_reports(
    gated: Gated, wait_for: WaitFor
) -> None:
    gated.until("report")
    event = COLLISION.replace("A.l1.t02", "A").replace("A.l2.t02", "report")
    with gated.folder.dag_files.nodes_log.open("a") as log:
        log.write(event)
    for dagman in dagmans(gated.run):  # none is left where the event itself ended it
        dagman.kill()
    wait_for(lambda: gated.run.status().repairs)
    gated.finish()
    wait_for(gated.run.report.exists)


def _run_again_after_its_end(gated: Gated) -> None:
    """Tell of the region's job what a schedd does that was killed before it noted the job's end."""
    log = gated.folder.dag_files.nodes_log
    (job,) = re.findall(r"^005 \((\S+)\)", log.read_text(), re.MULTILINE)
    with log.open("a") as more:
        more.write(f"001 ({job}) 2026-11-20 10:00:00.000 Job executing on host: <[::1]:1>\n...\n")


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_dagman_that_missed_a_jobs_end_is_replaced(chains: Gated, wait_for: WaitFor) -> None:
    chains.until("trials")
    files = chains.folder.region("A").dag_files
    region = chains.dagman_of_region()
    length = files.nodes_log.stat().st_size
    region.suspend()
    chains.open(*TRIALS)
    wait_for(lambda: not job_queue.look_up(chains.folder).running)
    os.truncate(files.nodes_log, length)  # as on a disk that was full when the jobs ended
    region.resume()
    wait_for(lambda: "not in the queue" in str(chains.run.status().repairs))
    chains.finish()


# A POST script fails before it records its trial; then the PRE script of the retry is killed.
RETRY_CUT_OFF = """\
#!/bin/sh
case "$1 $3" in
"tell A.l1") mkdir "$0.told" 2>/dev/null && exit 1 ;;
"ask A.l1") [ -d "$0.told" ] && mkdir "$0.asked" 2>/dev/null && kill -KILL $$ ;;
esac
exec "$0.own" "$@"
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_dagman_that_missed_the_end_of_a_script_is_restarted(
    gated: Gated, wait_for: WaitFor
) -> None:
    put_before_client(gated.run, RETRY_CUT_OFF)
    gated.until("trials")
    gated.open(TRIALS[0])
    wait_for(lambda: "missed the end" in str(gated.run.status().troubles))
    wait_for(lambda: gated.run.status().repairs)
    gated.finish()
    assert [repair["remedy"] for repair in gated.run.status().repairs] == ["kick"]
    [beside] = [record for record in gated.run.trials() if record.node == TRIALS[1]]
    assert beside.attempts == 1  # the trial that trained meanwhile continued


@pytest.mark.thorough
def test_a_run_whose_queue_is_lost_continues_from_its_study(
    gated: Gated, make_pool: Callable[..., Pool], wait_for: WaitFor
) -> None:
    with active(make_pool()) as pool:
        gated.until("last trial")
        kill_all(pool, wait_for)
        for file in (pool.folder / "spool").glob("job_queue.log*"):
            file.unlink()
        before = {r.node: r.value for r in gated.run.trials() if r.state == "complete"}
        pool.up()
        gated.finish()
        assert before.items() <= {r.node: r.value for r in gated.run.trials()}.items()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_resume_releases_a_graph_that_a_person_holds(gated: Gated, wait_for: WaitFor) -> None:
    gated.until("trials")
    own = f"{job_queue.run_constraint(gated.folder)} && DAGManJobId =?= undefined"
    schedd.apply_action("Hold", own, "for a while")
    wait_for(lambda: gated.run.status().state is RunState.HELD)
    gated.run.resume()
    gated.finish()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_resume_leaves_a_healthy_run_alone(gated: Gated) -> None:
    gated.until("trials")
    before = {p.pid for p in dagmans(gated.run)}
    gated.run.resume()
    assert {p.pid for p in dagmans(gated.run)} == before
    gated.finish()
