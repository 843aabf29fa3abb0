"""Causes that are injected on a real pool: `trialfleet why` names the true one.

One run has a region for each misfortune of a trainer; the others share a pool as far as they can.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.causes import CAUSES, named
from tests.conftest import MOODY, MakeRun
from tests.pool.conftest import MakePool
from tests.pool.test_daily import put_data, write_study
from tests.pool.watching import WaitFor, active, dagmans, kill_all, services
from trialfleet import InputError, Run, RunState
from trialfleet.infra.fleet.scaling import price_cap_stop
from trialfleet.infra.fleet.scaling.price_cap_stop import PriceCapStop
from trialfleet.infra.fleet.spec.limits import NO_MONEY
from trialfleet.infra.pool.embedded import Pool
from trialfleet.optimizer import budget_and_deadline_rules
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.explain import explain

pytestmark = pytest.mark.thorough
ONE = {"trials": 1, "lanes": 1}


def asked(run: Run, word: str | None = "A") -> Answer:
    return explain(word, str(run.folder))


def becomes(wait_for: WaitFor, name: str, ask: Callable[[], Answer]) -> None:
    """Wait until the cause is named that was injected; show what was said if it never is."""
    last: list[Answer] = []

    def is_named() -> bool:
        last[:] = [ask()]
        return last[0].kind is CAUSES[name].kind

    try:
        wait_for(is_named, 90)
    finally:
        named(name, last[0])


def moody(mood: str, **more: object) -> dict[str, object]:
    return {"search_space": {"mood": mood, **more}, "budget": ONE}


@pytest.mark.usefixtures("pool")
def test_why_names_each_fault_of_a_trainer(make_run: MakeRun, work: Path) -> None:
    moods = {
        "memory": "swells", "disk": "fills", "time": "hangs", "command": "exit 127",
        "crash": "raises", "signal": "dies", "silent": "silent", "garbage": "garbage",
        "metric": "other metric", "nan": "nan",
    }  # fmt: skip
    regions: dict[str, Any] = {name: moody(mood) for name, mood in moods.items()}
    regions["rejects"] = moody("rejects", x={"type": "float", "low": 0.6, "high": 1.0})
    regions["final"] = moody("good", final_mood="fails")
    mixed = {"type": "categorical", "choices": ["silent", "fails", "nan"]}
    regions["failures"] = {"search_space": {"mood": mixed}, "budget": {"trials": 6, "lanes": 1}}
    regions |= {"input": {}, "good": {"budget": ONE}}
    (data := work / "data").mkdir()
    for region in regions:
        (data / region).write_text("1")
    run = make_run(
        regions=regions,
        data="data/{region}",
        budget={"trials": 1, "lanes": 1, "failures": 9},
        retries=0,
        trainer={"command": ["python3", MOODY.name], "files": [str(MOODY)], "minutes": 0.15},
    )
    run.submit()
    (data / "input").unlink()  # before its first job, which DAGMan submits later
    assert run.wait().state is RunState.FAILED
    for region in (*moods, "rejects", "final", "input", "failures"):
        named(region, asked(run, region))
    for region in (*moods, "rejects", "input"):
        named(region, asked(run, f"{region}.l1.t01"))
    assert asked(run, "good").kind == "well"


@pytest.mark.usefixtures("pool")
def test_why_names_a_missing_model_a_blocked_publish_folder_and_spent_hours(
    make_run: MakeRun, work: Path
) -> None:
    (work / "mute.sh").write_text('echo \'{"status": "complete", "metrics": {"loss": 1}}\' > r\n')
    (work / "mute.sh").write_text((work / "mute.sh").read_text().replace("> r", "> result.json"))
    mute = {"command": ["sh", "mute.sh"], "files": ["mute.sh"]}
    spent = {"trials": 4, "lanes": 1, "hours": 1e-6}
    runs = {
        "no model": make_run(run="mute", trainer=mute, budget=ONE, retries=0),
        "publish": make_run(run="taken", publish="taken", budget=ONE),
        "hours": make_run(run="hours", budget=spent),
    }
    (work / "taken").write_text("a file where the models are to go")
    for run in runs.values():
        run.submit()
    for run in runs.values():
        run.wait()
    named("no model", asked(runs["no model"]))
    named("publish", asked(runs["publish"]))
    named("hours", asked(runs["hours"], "A.l1.t02"))


@pytest.mark.usefixtures("pool")
def test_why_names_a_missed_deadline(work: Path, make_run: MakeRun) -> None:
    from trialfleet import plan
    from trialfleet.workflows.study.frozen import load_frozen

    study = make_run(budget=ONE).study
    yesterday = datetime.now(UTC) - timedelta(days=1)
    late = RunsDay(date=yesterday.date(), deadline=yesterday)
    run = plan(study, run="late", out=work / "runs" / "late", day=late)
    assert load_frozen(run.folder / "study.json").day
    run.submit()
    run.wait()
    named("deadline", asked(run))


@pytest.fixture
def opened(work: Path) -> Callable[..., None]:
    """Open gates: of nodes whose jobs wait for that."""

    def touch(*nodes: str) -> None:
        (work / "gate").mkdir(exist_ok=True)
        for node in nodes:
            (work / "gate" / node).touch()

    touch()
    return touch


@pytest.fixture
def gated(make_run: MakeRun, work: Path, opened: Callable[..., None]) -> Callable[..., Run]:
    """Plan a run whose jobs wait for their gates to be opened."""

    def make(**changes: Any) -> Run:
        return make_run({"gate": str(work / "gate")}, **changes)

    return make


def job_of(run: Run, node: str) -> str:
    ads = job_queue.look_up(RunFolder(run.folder)).ads
    return next(str(ad["ClusterId"]) for ad in ads if ad.get("TrialfleetNode") == node)


def runs(run: Run, node: str) -> bool:
    return node in job_queue.look_up(RunFolder(run.folder)).running


@pytest.mark.usefixtures("pool")
def test_why_names_waits_holds_and_removals(gated: Callable[..., Run], wait_for: WaitFor) -> None:
    regions: dict[str, Any] = {"A": {"priority": 9}, "B": {}, "C": {}}
    chain = {"trials": 4, "lanes": 1, "trials_per_job": 1}
    run = gated(regions=regions, budget=chain, retries=0, parallel_regions=1)
    named("planned", asked(run))
    run.submit()
    wait_for(lambda: runs(run, "A.l1.t01"))
    named("lane", asked(run, "A.l1.t02"))
    becomes(wait_for, "turn", lambda: asked(run, "B"))
    subprocess.run(["condor_hold", job_of(run, "A.l1.t01")], check=True)
    becomes(wait_for, "held", lambda: asked(run))
    subprocess.run(["condor_release", job_of(run, "A.l1.t01")], check=True)
    wait_for(lambda: runs(run, "A.l1.t01"))
    subprocess.run(["condor_rm", job_of(run, "A.l1.t01")], check=True)
    becomes(wait_for, "job removed", lambda: asked(run, "A.l1.t01"))

    root = str(job_queue.look_up(RunFolder(run.folder)).root)
    subprocess.run(["condor_hold", root], check=True)
    becomes(wait_for, "DAGMan held", lambda: asked(run))
    subprocess.run(["condor_release", root], check=True)

    dagman = f'TrialfleetFolder == "{run.folder}" && TrialfleetRegion == "A" && JobUniverse == 7'
    subprocess.run(["condor_rm", "-constraint", dagman], check=True)
    becomes(wait_for, "region removed", lambda: asked(run))
    run.stop()
    named("stopped", asked(run, "B"))


@pytest.mark.usefixtures("pool")
def test_why_names_requirements_that_no_slot_meets(make_run: MakeRun, wait_for: WaitFor) -> None:
    small = {"memory": "100MB", "disk": "20MB"}
    large = make_run(run="large", resources={"memory": "900GB", "disk": "20MB"})
    nowhere = make_run(run="nowhere", resources={**small, "requirements": "Nowhere =?= true"})
    for run in (large, nowhere):
        run.submit(anyway=True)
    becomes(wait_for, "too much memory", lambda: asked(large))
    becomes(wait_for, "requirements", lambda: asked(nowhere))
    for run in (large, nowhere):
        run.stop()


@pytest.mark.usefixtures("pool")
def test_why_names_a_broken_service_a_broken_storage_and_a_full_disk(
    gated: Callable[..., Run],
    opened: Callable[..., None],
    wait_for: WaitFor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = {"trials": 3, "lanes": 1, "trials_per_job": 1}
    first, second = (gated(run=name, budget=chain) for name in ("s1", "s2"))
    for run in (first, second):
        run.submit()
    for run in (first, second):
        wait_for(lambda run=run: runs(run, "A.l1.t01"))
    # a directory where the service's socket belongs, and no service any more
    listening = services(first)
    (first.folder / "service.sock").unlink()
    (first.folder / "service.sock").mkdir()
    (first.folder / "service.sock" / "x").touch()
    for process in listening:
        process.kill()
    database = second.folder / "study.db"
    database.rename(second.folder / "away.db")
    database.mkdir()
    opened("A.l1.t01")
    becomes(wait_for, "storage", lambda: asked(second))
    becomes(wait_for, "service", lambda: asked(first))
    with monkeypatch.context() as patched:
        patched.setattr(budget_and_deadline_rules, "LEAST_FREE", 1 << 60)
        named("disk full", asked(first))
    shutil.rmtree(first.folder / "service.sock")
    database.rmdir()
    (second.folder / "away.db").rename(database)
    for run in (first, second):
        run.stop()


# --- the gate and money ---------------------------------------------------------------------------


@pytest.mark.usefixtures("pool")
def test_why_names_the_gate_and_a_newer_run(make_run: MakeRun) -> None:
    near = {"x": {"type": "float", "low": 0.29, "high": 0.31}}
    far = {"x": {"type": "float", "low": 0.9, "high": 1.0}}
    older = make_run(near, run="older", budget=ONE)

    def day(number: int, params: dict[str, Any]) -> Run:
        run = make_run(params, run=f"day{number}", budget=ONE, gate={})
        run.submit()
        assert run.wait().state is RunState.DONE
        return run

    assert asked(day(1, near)).kind == "well"
    named("gate kept", asked(day(2, far)))
    named("gate failed", asked(day(3, near | {"evaluate_mood": "fails"})))
    older.submit()
    assert older.wait().state is RunState.DONE
    named("not latest", asked(older))


@pytest.mark.usefixtures("pool")
def test_why_names_a_runs_cap(gated: Callable[..., Run], wait_for: WaitFor) -> None:
    run = gated(budget=ONE)
    run.submit()
    wait_for(lambda: runs(run, "A.l1"))
    spent = PriceCapStop(reason=f"{NO_MONEY}the run's cap of $60.00 is reached", finals=True)
    price_cap_stop.end(run.run_id, spent, str(run.folder))
    run.wait()
    named("run's cap", asked(run))


@pytest.mark.usefixtures("pool")
def test_why_names_missing_and_unchanged_data(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    first, second = date(2026, 11, 20), date(2026, 11, 21)
    put_data(work, first, A="1")
    put_data(work, second, A="1")
    days = Days(write_study(work), clock=lambda: datetime(2026, 11, 22, 12, tzinfo=UTC))
    days.run(first)
    named("missing data", explain("B"))
    days.run(second)
    named("unchanged data", explain("A"))


# --- pools of their own ---------------------------------------------------------------------------


@pytest.fixture
def own_pool(make_pool: MakePool) -> Iterator[Pool]:
    """A pool with one slot and without a supervisor, so that stalled runs stay."""
    knobs = {"SUPERVISOR": "/bin/sleep", "SUPERVISOR_ARGS": "100000", "DAGMAN_HOLD_CLAIM_TIME": "0"}
    with active(make_pool(cpus=1, knobs=knobs)) as pool:
        yield pool


def test_why_names_a_busy_draining_empty_or_stopped_pool(
    own_pool: Pool, gated: Callable[..., Run], wait_for: WaitFor, work: Path
) -> None:
    (work / "other.sub").write_text(
        "executable = /bin/sleep\narguments = 1000\nrequest_cpus = 1\nrequest_memory = 10MB\n"
        "request_disk = 1MB\nshould_transfer_files = YES\ntransfer_executable = false\nqueue 2\n"
    )
    subprocess.run(["condor_submit", "other.sub"], cwd=work, check=True)
    wait_for(lambda: own_pool.status().jobs.get("running"))
    run = gated(budget=ONE)
    run.submit()
    becomes(wait_for, "busy", lambda: asked(run))
    assert explain("1.0").kind == "well"  # another's job
    waits = explain("1.1")
    assert waits.kind == "busy"
    assert "with 1 job of others" in waits.why

    slot = subprocess.run(
        ["condor_status", "-constraint", "PartitionableSlot", "-af", "Name"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    drain = ["condor_drain", "-graceful", "-reason", "a new disk", slot]
    subprocess.run(drain, check=True)
    subprocess.run(["condor_rm", "1"], check=True)
    becomes(wait_for, "draining", lambda: asked(run))
    subprocess.run(["condor_drain", "-cancel", slot], check=False)

    subprocess.run(["condor_off", "-fast", "-startd"], check=True)
    becomes(wait_for, "no slots", lambda: asked(run))
    subprocess.run(["condor_off", "-fast", "-schedd"], check=True)
    becomes(wait_for, "schedd down", lambda: asked(run))
    own_pool.down(grace=5)
    becomes(wait_for, "pool down", lambda: asked(run))


def test_why_names_a_dagman_missing_from_the_queue(
    own_pool: Pool, gated: Callable[..., Run], wait_for: WaitFor
) -> None:
    run = gated(budget=ONE)
    run.submit()
    wait_for(lambda: runs(run, "A.l1"))
    kill_all(own_pool, wait_for)
    for log in own_pool.folder.glob("spool/job_queue.log*"):
        log.unlink()
    wait_for(lambda: not dagmans(run))
    own_pool.up()
    becomes(wait_for, "DAGMan gone", lambda: asked(run))
    assert "if a supervisor runs" in asked(run).advice


def test_why_names_unwilling_slots_and_a_closed_access_point(
    make_pool: MakePool, make_run: MakeRun, wait_for: WaitFor
) -> None:
    knobs = {"START": 'Owner == "nobody-at-all"', "START_LOCAL_UNIVERSE": "False"}
    with active(make_pool(knobs=knobs)):
        run = make_run(budget=ONE)
        run.submit(anyway=True)
        becomes(wait_for, "unwilling", lambda: asked(run))
        run.stop()
    with active(make_pool(knobs={"START_LOCAL_UNIVERSE": "False"})):
        run = make_run(budget=ONE, run="r2")
        run.submit()
        becomes(wait_for, "closed", lambda: asked(run))
        run.stop()


def test_why_and_status_name_a_negotiator_that_is_off(
    make_pool: MakePool, make_run: MakeRun, wait_for: WaitFor
) -> None:
    with active(make_pool()):
        subprocess.run(["condor_off", "-negotiator"], check=True)
        run = make_run(budget=ONE)
        run.submit()
        becomes(wait_for, "no negotiator", lambda: asked(run))
        wait_for(lambda: any("negotiator" in line for line in run.status().troubles), 60)
        run.stop()


def test_an_unknown_name_is_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    with pytest.raises(InputError, match="is not a run, region, node, job or instance"):
        explain("nowhere")
