"""Views of a run whose jobs train one trial after another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from optuna.trial import TrialState as Stored

from tests.conftest import MakeRun
from tests.job_logs import BEGIN, JobLog
from tests.stored_runs import StoredRun, stored, stored_trial
from tests.unit.run.test_running import EMPTY
from tests.unit.run.test_shared_jobs import USD_PER_SECOND
from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.workflows.control.scripts.budgets_spent import region_spending
from trialfleet.workflows.facts.dagman.job_queue import HeldJob, QueuedRun
from trialfleet.workflows.facts.jobs.job_facts import read_jobs
from trialfleet.workflows.facts.jobs.job_log import read_executions
from trialfleet.workflows.facts.jobs.ordered_trial import (
    end_place,
    in_lane,
    ordered_trial,
    shared_nodes,
)
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.cost_sums import Kind, sum_known
from trialfleet.workflows.rules.states import RunState, TrialState
from trialfleet.workflows.status import status_reader as status
from trialfleet.workflows.status.attempts.job_record import read_execution
from trialfleet.workflows.status.costs.bill import BilledRun, run_items
from trialfleet.workflows.status.lost_work import region_executions
from trialfleet.workflows.status.run_trials import RunTrials
from trialfleet.workflows.status.unfinished_trials import (
    RunningTrial,
    jobs_without_trial,
    running_trials,
    unfinished_states,
)
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.report.chart_data import cost_bars
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.serve.live_runs import LiveRun, NodeReader
from trialfleet.workflows.views.serve.live_timeline import timeline_of_run
from trialfleet.workflows.views.serve.region_and_trial_pages import trial_page
from trialfleet.workflows.views.why.run_sources import RunFactsReader
from trialfleet.workflows.views.why.subject import find_subject

pytestmark = pytest.mark.slow
AD: dict[str, Any] = {
    "ClusterId": 13, "ProcId": 0, "JobUniverse": 5, "JobStatus": 2, "TrialfleetNode": "A.l1",
    "TrialfleetRegion": "A", "TrialfleetMode": "tune", "RemoteHost": "slot1_1@a",
    "JobCurrentStartExecutingDate": 1, "EnteredCurrentStatus": 1, "NumShadowStarts": 2,
}  # fmt: skip
WAITS = {**AD, "ClusterId": 14, "TrialfleetNode": "A.l2", "JobStatus": 1}
QUEUED = replace(
    EMPTY, running=frozenset({"A.l1"}), idle=frozenset({"A.l2"}), ads=(AD, WAITS)
)  # fmt: skip


class Views:
    """A run of two lanes: the first has told a trial and is at the next, the second waits."""

    def __init__(self, opened: StoredRun) -> None:
        self.stored, self.run = opened, opened.run
        self.folder = RunFolder(opened.run.folder)
        self.frozen = load_frozen(self.folder.study)
        self.files, self.graph = self.folder.region("A"), opened.graph["A"]
        self.log = JobLog(self.files.trial("A.l1").log)
        self.log.submitted(0)
        self.log.executes(10)
        self.log.marks(12, "A.l1.t01 begins")
        self.log.marks(22, "A.l1.t01 ends code=0 cpu=9.5 memory=200.0")
        place = self.files.trial("A.l1.t01")
        place.root.mkdir()
        execution = read_execution(place, self.frozen.study, 1, failed=False)
        opened.add("A", stored_trial("A.l1.t01", BEGIN, 0.5, job=execution["job"]))
        self.log.marks(25, "A.l1.t02 begins")
        self.files.trial("A.l1.t02").root.mkdir()
        opened.add("A", stored_trial("A.l1.t02", BEGIN, None, state=Stored.RUNNING))
        self.order("A.l1", "A.l1.t02")

    def order(self, node: str, name: str) -> None:
        """Write the last order of a job's agent."""
        place = self.files.trial(node)
        place.words.mkdir(exist_ok=True)
        words = {"schema": 1, "token": "t", "turn": 1, "do": "train", "name": name}
        words["trial"] = {"node": name}
        place.order.write_text(json.dumps(words))

    @property
    def trials(self) -> list[Any]:
        return RunTrials(self.folder, self.frozen).read_all()[0]["A"]

    def unfinished(self, queued: QueuedRun | None = QUEUED) -> dict[str, TrialState]:
        return unfinished_states(self.files, self.graph, self.trials, RunState.RUNNING, queued)

    def work(self) -> tuple[float, float, float | None]:
        """Return the seconds of all executions, of their lost parts, and their cost in USD."""
        items = region_executions(self.files, self.trials, self.frozen.study, None)
        found = [each for _, each in items]
        lost = sum(each.lost_seconds for each in found)
        return sum(each.seconds for each in found), lost, sum_known(each.usd for each in found)

    def running(self) -> RunningTrial:
        (found,) = running_trials(self.files, self.graph, QUEUED, "loss", self.unfinished())
        return found


@pytest.fixture
def views(make_run: MakeRun) -> Iterator[Views]:
    budget = {"trials": 6, "lanes": 2, "trials_per_job": "all"}
    with stored(make_run(regions=["A"], budget=budget)) as opened:
        yield Views(opened)


def test_a_running_job_shows_its_current_trial(views: Views) -> None:
    assert shared_nodes(views.files) == ["A.l1", "A.l2"]
    assert views.unfinished() == {"A.l1.t02": TrialState.RUNNING}
    assert views.unfinished(None) == {"A.l1.t02": TrialState.QUEUED}
    held = replace(
        QUEUED, running=frozenset(), held=(HeldJob(job="13.0", node="A.l1", reason="x"),)
    )
    assert views.unfinished(held) == {"A.l1.t02": TrialState.HELD}
    found = views.running()
    assert (found.node, found.slot, found.started) == ("A.l1.t02", "slot1_1@a", views.log.at(25))


def test_the_last_order_of_a_job_names_its_current_trial(views: Views) -> None:
    views.stored.add("A", stored_trial("A.l1.t03", BEGIN, None, state=Stored.RUNNING))
    views.order("A.l1", "A.l1.t03")
    assert views.unfinished() == {"A.l1.t02": TrialState.QUEUED, "A.l1.t03": TrialState.RUNNING}
    assert views.running().node == "A.l1.t03"


def test_reports_count_only_for_the_trial_of_the_last_order(views: Views) -> None:
    place = views.files.trial("A.l1")
    place.reports.write_text('{"step": 5, "metrics": {"loss": 0.75}}\n')
    assert (views.running().step, views.running().value) == (5, 0.75)
    views.order("A.l1", "A.l1.t01")  # the next is chosen, and its order is yet to be written
    assert views.running().step is None


def test_a_job_that_waits_without_a_trial_is_counted(views: Views) -> None:
    assert jobs_without_trial(views.files, views.graph, views.unfinished(), QUEUED) == 1
    views.stored.add("A", stored_trial("A.l2.t01", BEGIN, None, state=Stored.RUNNING))
    assert jobs_without_trial(views.files, views.graph, views.unfinished(), QUEUED) == 0


def test_a_lane_with_recorded_trials_has_made_progress(views: Views) -> None:
    for second in (100, 200, 300, 400, 500):
        views.log.evicted(second)
        views.log.executes(second + 10)
        views.log.marks(second + 20, "A.l1.t02 begins")
    (job, _) = read_jobs(views.folder, [AD, WAITS])
    first, *others = job.starts or ()
    assert first.saved_seconds == 12  # until the first trial's end
    assert [start.saved_seconds for start in others] == [0] * 5


def test_costs_of_trials_and_of_the_time_between_them_are_the_complete_bill(views: Views) -> None:
    views.log.marks(35, "A.l1.t02 ends code=0 cpu=9.5 memory=200.0")
    views.log.terminated(37)
    ((began, ended),) = read_executions(views.files.trial("A.l1").log)
    assert ended is not None
    whole = pytest.approx((ended - began) * USD_PER_SECOND)
    items = run_items(BilledRun.open(views.folder.root))
    by_kind = {kind: sum(i.seconds for i in items if i.kind is kind) for kind in Kind}
    assert (by_kind[Kind.TRIAL], by_kind[Kind.BETWEEN]) == (20, 7)
    assert sum(item.usd or 0.0 for item in items) == whole
    study, trials = views.frozen.study, views.trials
    spending = region_spending(views.files, trials, study, None)
    assert spending.spent + sum(spending.under_way) == whole
    assert views.work()[:2] == (27, 0)
    assert views.work()[2] == whole
    (region,) = read_report(views.folder).regions
    assert region.between_usd == pytest.approx(7 * USD_PER_SECOND)
    (bar,) = cost_bars(read_report(views.folder))
    assert bar.parts["trials"] == pytest.approx(17 * USD_PER_SECOND)  # with the recorded trial


def test_an_interrupted_job_loses_only_its_current_trial(views: Views) -> None:
    views.log.evicted(30)
    assert views.work()[:2] == (20, 5)


@pytest.mark.parametrize(("is_cut", "value", "lost"), [(True, 0.5, 5), (False, None, 25)])
def test_the_notes_of_a_recorded_trial_show_its_lost_work(
    views: Views, *, is_cut: bool, value: float | None, lost: float
) -> None:
    views.log.marks(35, "A.l1.t02 ends code=0")
    views.log.marks(36, "A.l1.t03 begins")
    if is_cut:
        views.log.evicted(41)
        views.log.executes(50)
        views.log.marks(51, "A.l1.t03 begins")
    views.log.marks(61, "A.l1.t03 ends code=0")
    views.log.terminated(62)
    place = views.files.trial("A.l1.t03")
    place.root.mkdir()
    execution = read_execution(place, views.frozen.study, 1, failed=value is None)
    views.stored.add("A", stored_trial("A.l1.t03", BEGIN, value, job=execution["job"]))
    assert views.work()[:2] == (43 if is_cut else 52, lost)


def test_the_full_training_in_a_lanes_job_is_found_and_paid_for(views: Views) -> None:
    views.files.best.by_lane.write_text(json.dumps({"node": "A.l1", "trial": 0, "done": False}))
    views.log.marks(35, "A.l1.t02 ends code=0 cpu=9.5 memory=200.0")
    views.stored.tell(2, 0.4)
    views.order("A.l1", "best")
    views.log.marks(36, "best begins")
    assert end_place(views.files, views.files.best) == ordered_trial(views.files, "A.l1")
    assert end_place(views.files, views.files.best).log == views.files.trial("A.l1").log
    (found,) = running_trials(views.files, views.graph, QUEUED, "loss", ())
    assert (found.node, found.started) == ("A.best", views.log.at(36))
    views.log.marks(46, "best ends code=0")
    views.log.terminated(46)
    items = run_items(BilledRun.open(views.folder.root))
    assert [item.seconds for item in items if item.kind is Kind.FULL] == [10]
    trained = in_lane(views.files, views.files.best, "A.l1")
    noted = read_execution(trained, views.frozen.study, 1, failed=False)["job"]
    write_json(views.files.best.job, noted)
    assert views.work()[2] == pytest.approx(36 * USD_PER_SECOND)
    views.files.best.job.unlink()
    views.files.best.by_lane.unlink()  # it was useless, and is retried by its own job
    items = run_items(BilledRun.open(views.folder.root))
    assert [item.seconds for item in items if item.kind is Kind.FAILED] == [10]
    whole = pytest.approx(36 * USD_PER_SECOND)
    assert sum(item.usd or 0.0 for item in items) == whole
    assert views.work()[2] == whole


def test_the_live_view_shows_trials_of_a_lane_and_their_pages(views: Views) -> None:
    views.files.trial("A.l1").agent_log.write_text("said\n")
    snapshot = LiveRun(views.folder, NodeReader()).read()
    assert [(bar.trial, bar.end - bar.start) for bar in timeline_of_run(snapshot).bars] == [(0, 10)]
    page = trial_page(snapshot, "A", "A.l1.t01")
    assert page is not None
    assert ("Output of the job's agent", "said\n", "") in page.logs
    assert trial_page(snapshot, "A", "A.l1") is not None
    assert trial_page(snapshot, "A", "A.l1.t05") is None
    assert trial_page(snapshot, "A", "../A.l1") is None


def test_a_trials_page_shows_what_it_has_printed_so_far(views: Views) -> None:
    snapshot, node = LiveRun(views.folder, NodeReader()).read(), "A.l1.t01"
    place = views.files.node_folder(node)
    place.root.mkdir(exist_ok=True)
    place.out.write_text("of an earlier attempt\n")
    place.printed_out.parent.mkdir(exist_ok=True)

    def outputs() -> dict[str, str]:
        page = trial_page(snapshot, "A", node)
        assert page
        return {title: text for title, text, _ in page.logs if title.startswith("Standard")}

    before = {"Standard output": "of an earlier attempt\n"}
    assert outputs() == before
    place.printed_out.write_text("A.l1.t00\nepoch 1\n")
    assert outputs() == before
    place.printed_out.write_text(f"{node}\nepoch 1\n")
    assert outputs() == {"Standard output so far": "epoch 1\n"}
    place.ended.write_text("{}")
    assert outputs() == before


def test_the_live_view_watches_the_reports_of_running_trials(views: Views) -> None:
    live = LiveRun(views.folder, NodeReader())
    run = live.read().run
    region = replace(run.status.regions[0], running_trials=(views.running(),))
    run = replace(run, status=replace(run.status, regions=(region,)))
    assert views.files.trial("A.l1").reports in live._report_files(run)


def test_the_status_of_a_region_is_reused_until_the_region_changes(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = [replace(QUEUED, root="1.0", regions=frozenset({"A"}))]
    monkeypatch.setattr(status, "look_up", lambda _: queue[0])
    monkeypatch.setattr(status, "faults", lambda *_: [])  # the mock of a queue has no DAGMan
    reader, place = status.StatusReader(views.folder), views.files.trial("A.l1")
    failure = {"1": {"time": "2026-11-22T09:00:00", "node": "A.best", "error": "x", "blame": ""}}
    held = HeldJob(job="13.0", node="A.l1", reason="x")

    def move() -> None:
        queue[0] = replace(queue[0], ads=({**AD, "RemoteHost": "slot1_1@b"}, WAITS))

    def hold() -> None:
        ads = ({**AD, "JobStatus": 5}, WAITS)
        queue[0] = replace(queue[0], ads=ads, running=frozenset(), held=(held,))

    last = None
    for change in (
        lambda: None,
        lambda: place.reports.write_text('{"step": 5, "metrics": {"loss": 0.75}}\n'),
        lambda: views.stored.add("A", stored_trial("A.l1.t03", BEGIN, None, state=Stored.RUNNING)),
        lambda: views.order("A.l1", "A.l1.t03"),
        lambda: views.stored.tell(2, 0.4),
        lambda: views.log.marks(40, "A.l1.t03 begins"),
        move,
        hold,
        lambda: write_json(views.files.best.failures, failure),
        lambda: write_json(views.files.changed, {"reason": "data changed"}),
    ):
        change()
        seen, fresh = reader.snapshot(), status.StatusReader(views.folder).snapshot()
        region, again = (
            replace(each.status.regions[0], seconds_left=None, usd=None) for each in (seen, fresh)
        )
        assert (region, seen.unfinished) == (again, fresh.unfinished)
        assert region != last
        assert reader.snapshot().unfinished["A"] is seen.unfinished["A"]
        last = region


def test_why_accepts_the_names_of_trials_and_of_nodes(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("A.l1", "A.l1.t02", "A.l2.t06", "A.best"):
        assert find_subject(word, str(views.folder.root)).what == "node"
    for word in ("A.l3.t01", "A.l1.t07", "A.l1.t2"):
        with pytest.raises(InputError):
            find_subject(word, str(views.folder.root))
    monkeypatch.setattr(status, "look_up", lambda _: replace(QUEUED, root="1.0"))
    facts_reader = RunFactsReader(views.folder.root)
    facts_reader._queued = QUEUED
    node, trial = (facts_reader.node(views.graph, name) for name in ("A.l1", "A.l1.t02"))
    assert (node.state, node.job) == (TrialState.RUNNING, "13.0")
    assert node.last
    assert node.last.slot == "slot1_1@a"
    assert (trial.state, trial.job, trial.in_graph) == (TrialState.RUNNING, "13.0", "A.l1")
    finished, to_come = (facts_reader.node(views.graph, name) for name in ("A.l1.t01", "A.l1.t03"))
    assert (finished.state, finished.job) == (TrialState.COMPLETE, "")
    assert (to_come.state, to_come.before) == (None, "A.l1.t02")
