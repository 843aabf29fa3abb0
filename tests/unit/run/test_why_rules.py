"""The rules of `trialfleet why`: from facts to one answer, the cause that explains others first."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.mock_aws.nodes_at_hand import pool_node
from trialfleet.optimizer.region_types import Complete, Failed
from trialfleet.workflows.facts.dagman.failing_scripts import FailingScript
from trialfleet.workflows.facts.dagman.job_queue import HeldJob, QueuedRun
from trialfleet.workflows.facts.jobs.agent_messages import Over, ReportedEnd
from trialfleet.workflows.facts.jobs.executions import Execution
from trialfleet.workflows.facts.journal.journal import Ending, Outcome
from trialfleet.workflows.facts.models.history import Change
from trialfleet.workflows.facts.models.verdict import ComparedModel, Verdict
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.runs.failed_attempts import Cause
from trialfleet.workflows.facts.runs.region_records import RegionRecords
from trialfleet.workflows.rules.gate_decision import PassedModel
from trialfleet.workflows.rules.resource_limits import over_by_agent
from trialfleet.workflows.rules.slot_matching import Prospects
from trialfleet.workflows.rules.states import RunState, Stage, TrialState
from trialfleet.workflows.status.attempts.outcome import read_outcome
from trialfleet.workflows.status.run_faults import Fault, Remedy
from trialfleet.workflows.status.status_reader import RunSnapshot
from trialfleet.workflows.status.status_types import RunStatus
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.why.answer import Answer, Blame, Kind
from trialfleet.workflows.views.why.facts import (
    InstanceFacts,
    NodeFacts,
    Queued,
    RegionFacts,
    RunFacts,
    Scaling,
)
from trialfleet.workflows.views.why.failure_advice import kind_of_attempt
from trialfleet.workflows.views.why.instance_rules import explain_instance, kind_of_leaving
from trialfleet.workflows.views.why.node_rules import explain_node
from trialfleet.workflows.views.why.region_rules import explain_region, region_notes
from trialfleet.workflows.views.why.run_rules import explain_blocked
from trialfleet.workflows.views.why.waiting_job_rules import explain_wait, kind_of_refusal

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
STUDY = Study.model_validate(
    {
        "name": "demo",
        "regions": ["A", "B", "New York"],
        "data": "/d/{region}.npz",
        "objective": {"metric": "loss", "direction": "minimize"},
        "search_space": {"rate": {"type": "float", "low": 0.1, "high": 1}},
        "budget": {"trials": 4},
        "trainer": {"command": ["true"]},
        "publish": "none",
    }
)
FROZEN = FrozenStudy(
    run="r1",
    folder="/r/r1",
    created=NOW,
    places={"resources.memory": "/s/study.yaml:9"},
    study=STUDY,
)
STATUS = RunStatus(
    run="r1",
    study="demo",
    folder="/r/r1",
    state=RunState.RUNNING,
    root="1.0",
    metric="loss",
    direction="minimize",
    regions=(),
)
IN_QUEUE = QueuedRun(
    root="1.0",
    root_held=None,
    running=frozenset(),
    idle=frozenset(),
    held=(),
    regions=frozenset({"A"}),
    ads=(),
)
SNAPSHOT = RunSnapshot(
    status=STATUS,
    unfinished={},
    trials={},
    records={},
    queued=IN_QUEUE,
    queue_away="",
    storage_away="",
    faults=(),
    service_away="",
    no_space="",
)
RUN = RunFacts(frozen=FROZEN, snapshot=SNAPSHOT, now=NOW)
REGION = RegionFacts(
    name="A",
    slug="A",
    state=RunState.RUNNING,
    stage=Stage.TUNING,
    budget=4,
    records=RegionRecords(),
)
NODE = NodeFacts(node="A.l1.t01", region="A")
FITS = Prospects(slots=2, fit=2, willing=2, concurrency=2, lacking=(), has_fleet=False)
RUNS = RunningTrial(node="A.l1.t01", slot=None, started=None, step=None, value=None)
QUEUED = Queued(job="7.0", seconds=60, prospects=FITS)
FAILS = FailingScript(
    node="A.l1.t02",
    script="ask",
    error="KeyError: 'x'",
    cause="error",
    times=3,
    since=datetime(2026, 11, 20, 2, 10, tzinfo=UTC),
)
OVER = FROZEN.model_copy(update={"day": RunsDay(date=NOW.date(), deadline=NOW)})
GAVE_UP = RegionRecords(stopped={"script": "ask"})
HOURS = STUDY.budget.model_copy(update={"hours": 1.0})
REPORT_FAILS = replace(FAILS, node="report", script="report", error="/r: No space left on device")
AWAITED = replace(FAILS, error="the storage of study 'demo' can't be used", cause="storage")
GONE = replace(FAILS, script="ask-best", error="the data can't be read: /d/a.csv: No such file")
ALL_THE_SAME = "to use the new model anyway"
LOST = Fault(region=None, job=None, what="the queue lost it", remedy=Remedy.SUBMIT, patience=5)
UNANSWERED = Fault(region="A", what="jobs wait for it", remedy=Remedy.SERVE, patience=15)
HELD_SERVICE = HeldJob(node="optimizer", job="2.0", reason="by hand")


def a_run(**changes: Any) -> RunFacts:
    """Return our run with changes to its study, its status or another source."""

    def changed(of: Any) -> Any:
        names = {each.name for each in fields(of)} & {*changes}
        return replace(of, **{name: changes.pop(name) for name in names})

    status, queued = changed(STATUS), changed(IN_QUEUE)
    run: RunFacts = changed(
        replace(RUN, snapshot=replace(changed(SNAPSHOT), status=status, queued=queued))
    )
    study = STUDY.model_copy(update=changes)
    return replace(run, frozen=run.frozen.model_copy(update={"study": study}))


def region(run: RunFacts = RUN, **changes: Any) -> Answer:
    return explain_region(run, replace(REGION, **changes))


def test_a_failing_script_is_shown_with_its_error_and_number_of_failures() -> None:
    answer = region(failing=(FAILS,))
    assert answer.why.startswith("ask of A.l1.t02 fails: KeyError: 'x'; it will be retried")
    assert "failures in a row: 3, since " in answer.why


def cause(error: str, blame: str = "") -> Cause:
    return Cause(error=error, attempts=2, of=2, log="err", blame=blame)


@pytest.mark.parametrize(
    ("run", "changes", "kind"),
    [
        ({}, {"running_trials": (RUNS,) * 2}, Kind.WELL),
        ({"state": RunState.STOPPED}, {"stage": Stage.STOPPED}, Kind.STOPPED),
        ({"htcondor": "pool-down"}, {}, Kind.POOL_DOWN),
        ({"faults": (LOST,)}, {}, Kind.DAGMAN_GONE),
        ({"root_held": "by me"}, {}, Kind.DAGMAN_HELD),
        ({"no_space": "the disk is full"}, {"failing": (AWAITED,)}, Kind.DISK_FULL),
        ({}, {"failing": (AWAITED,)}, Kind.STORAGE),
        ({}, {"failing": (replace(AWAITED, cause="space"),)}, Kind.DISK_FULL),
        ({}, {"failing": (AWAITED, FAILS), "running_trials": (RUNS,) * 2}, Kind.SCRIPT),
        ({"service_away": "no answer"}, {"failing": (FAILS,)}, Kind.SCRIPT),
        ({"service_away": "no answer for 40 s"}, {"running_trials": (RUNS,) * 2}, Kind.SERVICE),
        ({}, {"failing": (GONE,)}, Kind.DATA_MISSING),
        ({}, {"stage": Stage.FAILED, "reason": GONE.error}, Kind.DATA_MISSING),
        (
            {},
            {"stage": Stage.FAILED, "reason": "x", "records": GAVE_UP},
            Kind.SCRIPT,
        ),
        ({"closed": ("no local jobs",)}, {}, Kind.CLOSED),
        ({"storage_away": "gone"}, {}, Kind.STORAGE),
        ({}, {"held": (HeldJob(node="A.l1.t01", job="7.0", reason="by hand"),)}, Kind.HELD),
        ({"held": (HELD_SERVICE,)}, {"running_trials": (RUNS,)}, Kind.HELD),
        ({"held": (HELD_SERVICE,), "faults": (UNANSWERED,)}, {}, Kind.HELD),
        ({"held": (HELD_SERVICE,), "root_held": "by me"}, {}, Kind.DAGMAN_HELD),
        ({"parallel_regions": 1}, {"stage": Stage.WAITING}, Kind.TURN),
        ({}, {"stage": Stage.WAITING}, Kind.SOON),
        ({}, {"waiting": QUEUED}, Kind.BUSY),
        ({}, {"waiting": replace(QUEUED, free=1)}, Kind.SOON),
        ({}, {"waiting": replace(QUEUED, free=1, seconds=601)}, Kind.STUCK),
        ({}, {"waiting": replace(QUEUED, free=1, has_negotiator=False)}, Kind.POOL_DOWN),
        ({}, {"waiting": replace(QUEUED, draining="a new disk")}, Kind.DRAINING),
        (
            {"out_of_money": {"tune": "no money is left: x"}},
            {"running_trials": (RUNS,)},
            Kind.MONEY,
        ),
        ({"frozen": OVER}, {"running_trials": (RUNS,)}, Kind.DEADLINE),
        ({"budget": HOURS}, {"hours_spent": 1.5, "running_trials": (RUNS,)}, Kind.BUDGET),
        ({}, {"spent": "budget.usd of 8 USD is used up: x"}, Kind.BUDGET),
    ],
)
def test_why_names_the_cause_for_a_region_under_way(
    run: dict[str, Any], changes: dict[str, Any], kind: Kind
) -> None:
    assert region(a_run(**run), **changes).kind is kind


@pytest.mark.parametrize(
    ("changes", "kind", "blame"),
    [
        ({"reason": "x", "cause": cause("exit code 1: KeyError")}, Kind.CRASH, Blame.USER),
        ({"reason": "x", "cause": cause("exit code 1: EIO", "node")}, Kind.NODE, Blame.NODE),
        ({"reason": "the model can't be published: x"}, Kind.PUBLISH, Blame.USER),
        ({"reason": "not trained: no money is left: cap"}, Kind.MONEY, Blame.MONEY),
        ({"reason": "the full training left nothing in model/: x"}, Kind.NO_MODEL, Blame.USER),
        ({"reason": "no trial: the day's deadline, x, is over"}, Kind.DEADLINE, Blame.PERSON),
        ({"reason": "3 trials failed for good"}, Kind.FAILURES, Blame.USER),
    ],
)
def test_why_names_the_cause_and_the_blame_of_a_failed_region(
    changes: dict[str, Any], kind: Kind, blame: Blame
) -> None:
    """Its own end is recorded: that the pool is down as well explains nothing."""
    answer = region(a_run(htcondor="pool-down"), stage=Stage.FAILED, **changes)
    assert (answer.kind, answer.blame) == (kind, blame)


@pytest.mark.parametrize(
    ("slots", "own", "foreign", "words"),
    [
        (1, 1, 0, "the only slot that can run it is busy with 1 job of this run;"),
        (
            2,
            2,
            1,
            "all 2 slots that can run it are busy with 2 jobs of this run and 1 job of others;",
        ),
    ],
)
def test_the_answer_counts_the_busy_slots_and_their_jobs(
    slots: int, own: int, foreign: int, words: str
) -> None:
    found = replace(FITS, slots=slots, fit=slots, willing=slots)
    answer = region(waiting=replace(QUEUED, prospects=found, own=own, foreign=foreign))
    assert words in answer.why


def test_a_wait_for_a_busy_slot_refers_to_the_runs_status() -> None:
    """It works in a shell without condor_q."""
    assert region(waiting=QUEUED).lines()[1] == (
        "next: no action is needed; to watch: trialfleet status /r/r1 --watch"
    )


def test_the_advice_has_the_command_that_starts_the_pool_that_is_down() -> None:
    up = "TRIALFLEET_POOL=/p trialfleet pool up"
    answer = region(a_run(htcondor="pool-down", pool_up=up))
    assert answer.lines()[1] == f"next: {up}"


def test_the_advice_names_the_place_of_the_setting_that_was_too_low() -> None:
    error = "over its memory: used 612 MB of 512 MB; raise resources.memory in /s/study.yaml:9"
    answer = region(stage=Stage.FAILED, reason="no trial completed", cause=cause(error))
    assert answer.lines()[1] == (
        "next: raise resources.memory in /s/study.yaml:9: trialfleet run /s/study.yaml --check"
    )


@pytest.mark.parametrize(
    ("over", "kind"),
    [
        ("memory", Kind.MEMORY),
        ("time", Kind.TIME),
        ("disk", Kind.DISK),
        ("files", Kind.TOO_MANY_FILES),
    ],
)
def test_each_limit_that_a_trial_may_exceed_has_a_kind(over: Over, kind: Kind) -> None:
    ended = ReportedEnd(code=1, cpu_seconds=1.0, memory_mb=600.0, over=over)
    assert kind_of_attempt(over_by_agent(ended, None, {}, has_result=False)) is kind


def test_the_advised_check_trains_the_region_that_failed() -> None:
    failed: dict[str, Any] = {"stage": Stage.FAILED, "cause": cause("exit code 1")}
    assert region(**failed).command == "trialfleet run /s/study.yaml --check"
    answer = region(name="New York", **failed)
    assert answer.command == "trialfleet run /s/study.yaml --check-region 'New York'"
    node = replace(NODE, region="B", state=TrialState.FAILED, error="exit code 1: no")
    assert (
        explain_node(RUN, REGION, node).command == "trialfleet run /s/study.yaml --check-region B"
    )


def kept_for(why: str) -> Verdict:
    return Verdict(
        verdict="kept",
        why=why,
        metric="loss",
        champion=ComparedModel(run="r0"),
        challenger=ComparedModel(run="r1"),
        baseline=None,
        interval=None,
    )


def test_a_budget_that_ended_the_trials_is_shown_with_the_regions_outcome() -> None:
    spent = RegionRecords(spent="budget.usd of 8 USD is used up: 8 USD are spent")
    answer = region(stage=Stage.PUBLISHED, published="/m/A/r1", records=spent)
    assert answer.kind is Kind.WELL
    [note] = answer.notes
    assert note.startswith("no trial starts after 0 of 4: budget.usd of 8 USD")
    assert note.endswith(": budget.usd of 8 USD is used up: 8 USD are spent")


def test_why_explains_published_and_rejected_models() -> None:
    kept = kept_for("loss 0.4, champion 0.1")
    published: dict[str, Any] = {"stage": Stage.PUBLISHED, "published": "/m/A/r1"}
    assert region(**published).kind is Kind.WELL
    assert region(**published, records=RegionRecords(verdict=kept)).kind is Kind.GATE_KEPT
    facts = replace(REGION, **published, records=RegionRecords(verdict=kept))
    assert region_notes(facts, explain_region(RUN, facts)) == [
        "A: the gate kept the current model (run r0) instead of this one: loss 0.4, champion 0.1"
    ]
    unmeasured = kept_for("the gate's job failed: exit code 1")
    assert region(**published, records=RegionRecords(verdict=unmeasured)).kind is Kind.GATE_FAILED
    later = region(**published, not_latest="latest stays with r2: planned later; to change that: x")
    assert (later.kind, later.command) == (Kind.NOT_LATEST, "trialfleet promote /m/A/r1")
    assert "to change that" not in later.why
    assert not later.notes
    moved = Change(run="r0", previous="r1", time=NOW.isoformat(), by="rollback")
    back = region(**published, moved=moved)
    assert (back.kind, back.command) == (Kind.NOT_LATEST, "trialfleet promote /m/A/r1")
    current = "the model of r0 has been current since 2026-11-20 "
    assert back.why.startswith(f"its model was rolled back: {current}")


@pytest.mark.parametrize(
    ("why", "step"),
    [
        ("loss 0.4, champion 0.1", f"no action is needed; {ALL_THE_SAME}"),
        (
            "no better than a constant prediction (loss 0.4, baseline 0.4); are the labels right?",
            f"check the labels and the join of today's data first; {ALL_THE_SAME}",
        ),
        (
            "no fair comparison; 9 of 9 rows hold values that the champion never saw: 'x' in 9",
            f"compare the spelling of these values with that of other days; {ALL_THE_SAME}",
        ),
        (
            "the gate's job failed: exit code 1",
            f"fix the trainer's mode evaluate; {ALL_THE_SAME}",
        ),
        (
            "the gate's job failed: there is no column temperature; the model needs temperature, x",
            f"restore these columns in today's data; {ALL_THE_SAME}",
        ),
    ],
)
def test_the_advice_on_a_rejected_model_depends_on_the_reason(why: str, step: str) -> None:
    kept = RegionRecords(verdict=kept_for(why))
    answer = region(stage=Stage.KEPT, published="/m/A/r1", records=kept)
    assert "kept the current model (run r0) instead of this one" in answer.why
    assert answer.lines()[1] == f"next: {step}: trialfleet promote /m/A/r1"


@pytest.mark.parametrize(
    ("ending", "why", "kind"),
    [
        (Ending.UNCHANGED, "", Kind.DATA_UNCHANGED),
        (Ending.FAILED, "data of 2026-11-20 isn't there: /d/A.npz", Kind.DATA_MISSING),
        (Ending.FAILED, "the day's deadline was over before the region began", Kind.DEADLINE),
        (Ending.FAILED, "not planned: the folder can't be written", Kind.NOT_PLANNED),
    ],
)
def test_why_names_the_reason_of_a_day_without_a_run(ending: Ending, why: str, kind: Kind) -> None:
    day = Outcome(date=date(2026, 11, 20), region="A", attempt=1, ending=ending, why=why)
    assert region(day=day).kind is kind


# --- nodes ----------------------------------------------------------------------------------------

EVICTED = Execution(
    slot="slot1_1@ip-10",
    began=0.0,
    ended=9.0,
    is_over=True,
    ended_by="JOB_EVICTED",
    reason="startd is draining",
)


@pytest.mark.parametrize(
    ("changes", "kind", "blame"),
    [
        ({"before": "A.l1.t00"}, Kind.LANE, Blame.NOBODY),
        ({"skipped": "the budget of 1 hours is used up"}, Kind.BUDGET, Blame.NOBODY),
        ({"state": TrialState.RUNNING}, Kind.WELL, Blame.NOBODY),
        ({"state": TrialState.FAILED, "error": "loss is nan"}, Kind.NOT_FINITE, Blame.USER),
        (
            {"state": TrialState.FAILED, "error": "exit code 1: EIO", "blame": "node"},
            Kind.NODE,
            Blame.NODE,
        ),
        ({"state": TrialState.QUEUED, "queued": QUEUED}, Kind.BUSY, Blame.NOBODY),
        ({"held": "via condor_hold", "job": "7.0"}, Kind.HELD, Blame.PERSON),
        (
            {"queued": QUEUED, "last": EVICTED, "leaving": "spot interruption: soon"},
            Kind.SPOT,
            Blame.SPOT,
        ),
        (
            {"queued": QUEUED, "last": EVICTED, "leaving": "3 jobs failed here within 60 s"},
            Kind.FAILING_JOBS,
            Blame.NODE,
        ),
        (
            {"queued": QUEUED, "last": EVICTED._replace(ended_by="JOB_RECONNECT_FAILED")},
            Kind.LOST,
            Blame.NODE,
        ),
        (
            {"queued": QUEUED, "last": EVICTED._replace(reason="via condor_vacate_job")},
            Kind.REMOVED,
            Blame.PERSON,
        ),
    ],
)
def test_why_names_the_cause_and_the_blame_for_a_node(
    changes: dict[str, Any], kind: Kind, blame: Blame
) -> None:
    answer = explain_node(RUN, REGION, replace(NODE, **changes))
    assert (answer.kind, answer.blame) == (kind, blame)


def test_a_failing_report_is_named_once() -> None:
    assert str(REPORT_FAILS) == "report fails: /r: No space left on device; it will be retried"


def test_a_trial_that_was_stopped_early_is_explained_by_the_numbers_of_its_order() -> None:
    order = {"step": 8, "max_steps": 20, "predicted": 0.85, "deviation": 0.0213, "best": 0.15}
    stopped = replace(NODE, state=TrialState.STOPPED_EARLY, stopped=order)
    why = explain_node(RUN, REGION, stopped).why
    assert "not be the best: at step 8 of 20 the prediction for its end was 0.85 ± 0.021" in why
    assert why.endswith("the best is 0.15")
    for lacking in ({}, {**order, "deviation": None}, {**order, "step": "x"}):
        assert explain_node(RUN, REGION, replace(stopped, stopped=lacking)).why.endswith("the best")


def test_the_cause_that_stops_a_run_explains_its_nodes() -> None:
    down = a_run(htcondor="schedd-down", queue_away="no answer")
    answer = explain_node(down, REGION, replace(NODE, state=TrialState.QUEUED))
    assert answer.kind is Kind.SCHEDD_DOWN


def test_the_outcome_of_a_gates_job_is_shown_for_its_region() -> None:
    let = PassedModel(why="test_auc 0.79, champion 0.78", is_worse=False)
    published = replace(
        REGION, state=RunState.DONE, stage=Stage.PUBLISHED, published="/m/A/r1", gate=let
    )
    over = NodeFacts(node="A.gate", is_end=True, state=TrialState.COMPLETE)
    answer = explain_node(a_run(state=RunState.DONE), published, over)
    assert str(let) in answer.why


def test_a_job_that_waits_for_shared_files_waits_for_no_slot() -> None:
    answer = explain_wait(RUN, Queued(job="7.0", seconds=60, blocked=True))
    assert (answer.kind, answer.blame) == (Kind.SOON, Blame.NOBODY)
    assert answer.why == "its job (job 7.0) has a slot and is receiving the files that jobs share"
    assert answer.evidence == ("job 7.0 has waited for files for 60 s",)


def test_the_pool_is_blamed_for_a_job_whose_files_never_arrive() -> None:
    fault = Fault(
        region="A",
        job=7,
        what="A.l1.t01: HTCondor doesn't start it",
        remedy=Remedy.COPY,
        patience=10,
        has_parent=True,
        node="A.l1.t01",
    )
    run = a_run(faults=(fault,))
    answer = explain_wait(run, Queued(job="7.0", seconds=60, blocked=True))
    assert (answer.kind, answer.blame, answer.why) == (Kind.FILES, Blame.POOL, fault.what)
    assert answer.command == run.resume
    other = explain_wait(run, Queued(job="77.0", seconds=60, blocked=True))
    assert other.kind is Kind.SOON
    assert explain_blocked(run, run.snapshot.faults) is None


# --- AWS and instances ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("2 more nodes would be useful: AWS launched 0 of 2 nodes (InsufficientInstanceCapacity)",
         Kind.CAPACITY),
        ("1 x g5: AWS refuses: RequestLimitExceeded: Request limit exceeded.", Kind.THROTTLE),
        ("1 x g5: the permission ec2:RunInstances is denied (x)", Kind.PERMISSION),
        ("3 more nodes would be useful: the cap is $1.00 per hour, $0.90 is used", Kind.PRICE_CAP),
        ("3 more nodes would be useful: the fleet has at most 4 nodes", Kind.MAX_NODES),
        ("3 more nodes would be useful: $0.10 is left of the run's cap of $5.00", Kind.MONEY),
        ("who is asking: no AWS credentials here: set AWS_PROFILE", Kind.CREDENTIALS),
        ("the last 3 nodes were never fit for a trial; retried at 12:00", Kind.UNFIT_NODES),
        ("2 trial(s) ask for more than a node has, e.g. 8 GPUs", Kind.MATCH),
        ("the instances in eu-west-1: AWS can't be asked: timed out", Kind.AWS),
        ("nothing to say", None),
    ],
)  # fmt: skip
def test_the_autoscalers_notes_explain_a_wait(line: str, kind: Kind | None) -> None:
    assert kind_of_refusal(line) is kind
    report = {"state": "scaling", "at": NOW.isoformat(), "step": {"notes": [line], "nodes": {}}}
    run = a_run(scaling=Scaling(report, wanted=True))
    none = replace(QUEUED, prospects=replace(FITS, slots=0, fit=0, willing=0))
    assert explain_wait(run, none).kind is (kind or Kind.NO_SLOTS)


def test_why_names_a_silent_autoscaler() -> None:
    none = replace(QUEUED, prospects=replace(FITS, slots=0, fit=0, willing=0))
    old = {"state": "scaling", "at": (NOW - timedelta(minutes=9)).isoformat(), "step": {}}
    for report in (None, old, {"state": "ended", "at": NOW.isoformat()}):
        run = a_run(scaling=Scaling(report, wanted=True))
        assert explain_wait(run, none).kind is Kind.AUTOSCALER


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("spot interruption: terminate at 2026", Kind.SPOT),
        ("rebalance recommendation of 2026", Kind.SPOT),
        ("lease expired at 2026: the manager has not renewed it", Kind.LEASE),
        ("3 jobs failed here within 60 s: 7.0 (exit code 1)", Kind.FAILING_JOBS),
        ("idle for 10 minutes", Kind.IDLE),
        ("its GPU failed the probe: Xid 79", Kind.SICK),
        ("a new disk", None),
    ],
)
def test_the_drain_reason_of_a_node_explains_why_it_leaves(words: str, kind: Kind | None) -> None:
    assert kind_of_leaving(words) is kind
    leaving = pool_node("i-1", draining=True, drain_reason=words)
    node = InstanceFacts(machine=leaving, now=NOW)
    assert explain_instance(node).kind is (kind or Kind.DRAINING)


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "result", "kind"),
    [
        (1, "", Kind.CRASH),
        (-11, "", Kind.CRASH),
        (127, "", Kind.COMMAND),
        (64, '{"status": "failed", "error": "x is too large"}', Kind.REJECTED),
        (0, "", Kind.NO_RESULT),
        (0, "}{", Kind.BAD_RESULT),
        (0, "[1]", Kind.BAD_RESULT),
        (0, '{"status": "complete", "metrics": {"auc": 1}}', Kind.BAD_RESULT),
        (0, '{"status": "complete", "metrics": {"loss": NaN}}', Kind.NOT_FINITE),
        (0, '{"metrics": {"loss": 1}}', Kind.BAD_RESULT),
        (0, '{"status": "complete", "metrics": {"loss": "0.5"}}', Kind.BAD_RESULT),
        (0, '{"status": "complete", "metrics": {"loss": null}}', Kind.BAD_RESULT),
        (64, '{"status": "failed", "error": "the objective loss is nan"}', Kind.NOT_FINITE),
    ],
)
def test_the_kind_of_a_failed_attempt_is_read_from_its_error(
    tmp_path: Path, code: int, result: str, kind: Kind
) -> None:
    place = TrialFolder(tmp_path)
    place.result.write_text(result)
    outcome = read_outcome(place, code, "loss", {})
    assert isinstance(outcome, Failed)
    assert kind_of_attempt(outcome.error) is kind
    assert not isinstance(outcome, Complete)


def test_a_refused_package_is_a_fault_of_the_output() -> None:
    error = "its result can't be used: 'model/weights.pt' is not a readable file or folder"
    assert kind_of_attempt(error) is Kind.OUTPUT


@pytest.mark.parametrize("warning", ["drift", "holdout", "changed", "checks"])
def test_each_warning_of_a_region_is_a_note(warning: str) -> None:
    changes: dict[str, Any] = {warning: "look here"}
    assert region(**changes).notes == ("look here",)
