"""Trials and regions at a limit of their run: the deadline of the day, or the cap of the costs."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.unit.scripts import Scripts
from tests.unit.terminal import printed
from trialfleet.infra.fleet.scaling.last_report import default_report
from trialfleet.workflows.control.scripts.report_program import write_report
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import dump_frozen, load_frozen
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.terminal.status_view import run_view

pytestmark = pytest.mark.slow
PAST = datetime(2026, 11, 20, 9, tzinfo=UTC)


def with_deadline(scripts: Scripts, deadline: datetime = PAST) -> Scripts:
    """Return the scripts of the same run with a deadline of its day."""
    file = scripts.folder.study
    day = RunsDay(date=date(2026, 11, 20), deadline=deadline)
    file.write_text(dump_frozen(load_frozen(file).model_copy(update={"day": day})))
    return Scripts(scripts.run)


def test_after_the_days_deadline_the_best_settings_are_trained_in_full(
    scripts: Scripts,
) -> None:
    scripts.train(0.5)
    scripts.ask("A.l1.t02")  # and its job is lost
    late = with_deadline(scripts)
    assert late.ask("A.l1.t02") == late.ask("A.l1.t03") == EXITS["skip"]
    message = late.call("ask", "A", "A.l1.t03").message
    assert "the day's deadline, 2026-11-20 09:00 UTC, is over" in message
    assert [t.state for t in late.run.trials()] == ["complete", "pruned"]
    assert late.ask_best().exit_code == EXITS["done"]


RAN = "001 (007.000.000) 2026-11-20 10:00:01 Job executing on host: <127.0.0.1:1>\n...\n"
REMOVED = "009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.\n\tby the policy\n...\n"


@pytest.mark.parametrize(
    ("log", "is_over", "state"),
    [
        (REMOVED, True, "pruned"),
        (REMOVED, False, "unknown"),  # somebody removed it: it is retried
        (RAN + REMOVED, True, "unknown"),  # … and ask abandons it
    ],
)
def test_a_trial_that_waits_for_a_slot_at_the_days_deadline_is_abandoned(
    scripts: Scripts, log: str, is_over: bool, state: str
) -> None:
    scripts.ask("A.l1.t01")
    scripts.trial("A.l1.t01").log.write_text(log)
    late = with_deadline(scripts) if is_over else scripts
    late.tell("A.l1.t01", -1002)
    (record,) = late.run.trials()
    assert record.state == state
    if state == "pruned":
        assert "the day's deadline, 2026-11-20 09:00 UTC, is over" in str(record.error)
        assert late.ask("A.l1.t01") == EXITS["skip"]


def test_submit_files_have_the_days_deadline_except_for_full_trainings(scripts: Scripts) -> None:
    deadline = datetime(2100, 1, 1, tzinfo=UTC)
    late = with_deadline(scripts, deadline)
    late.train(0.5, 0.5, 0.5)
    late.ask_best()
    at = f"time() >= {int(deadline.timestamp())}"
    assert at in late.trial("A.l1.t01").submit.read_text()
    assert at not in late.best.submit.read_text()


def test_a_region_without_a_complete_trial_at_the_days_deadline_fails(scripts: Scripts) -> None:
    late = with_deadline(scripts)
    assert late.ask("A.l1.t01") == EXITS["skip"]
    result = late.ask_best()
    assert result.exit_code == EXITS["stop"]
    assert "no trial completed, so there are no best settings: the day's deadline" in result.message


UNPAID = "no money is left: the run's cap of $60.00 is reached: $60.01 is spent"
# the autoscaler removes a job with the reason
ABORTED = f"009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.\n\t{UNPAID}\n...\n"


def test_without_money_waiting_trials_are_abandoned_and_no_other_begins(
    make_run: MakeRun,
) -> None:
    scripts = Scripts(make_run(budget={"trials": 8, "lanes": 4, "failures": 0}))
    nodes = [f"A.l{lane}.t01" for lane in (1, 2, 3, 4)]
    for node in nodes:
        scripts.ask(node)
    scripts.finish(nodes[0], 0.2)
    scripts.trial(nodes[1]).log.write_text(ABORTED)
    for _ in range(2):  # DAGMan may ask twice
        assert scripts.tell(nodes[1], -1002) == EXITS["done"]
    scripts.restart_service()  # the service was killed
    assert scripts.ask("A.l1.t02") == EXITS["skip"]
    assert scripts.ask(nodes[2]) == EXITS["skip"]  # asked, and its job was lost
    assert scripts.finish(nodes[3], 0.1) == EXITS["done"]  # it ended before it was removed
    records = scripts.run.trials()
    assert [record.state for record in records] == ["complete", "pruned", "pruned", "complete"]
    assert records[1].error == UNPAID
    assert scripts.ask_best().exit_code == EXITS["done"]
    assert not scripts.files.stopped.exists()


def test_a_full_training_without_money_stops_its_region(scripts: Scripts) -> None:
    scripts.train(0.5)
    assert scripts.ask_best().exit_code == EXITS["done"]
    scripts.best.log.write_text(ABORTED)
    reply = scripts.tell_best(-1002)
    assert reply.exit_code == EXITS["stop"]
    assert UNPAID in reply.message
    again = scripts.ask_best()
    assert (again.exit_code, again.message) == (reply.exit_code, reply.message)
    assert scripts.ask("A.l1.t02") == EXITS["skip"]


def test_a_region_without_a_trial_says_that_no_money_is_left(scripts: Scripts) -> None:
    spending.note(scripts.folder, "tune", UNPAID)
    assert scripts.ask("A.l1.t01") == EXITS["skip"]
    reply = scripts.ask_best()
    assert reply.exit_code == EXITS["stop"]
    assert reply.message.endswith(f"there are no best settings: {UNPAID}")
    assert scripts.run.trials() == []


def test_the_report_shows_why_trials_ended_early(scripts: Scripts) -> None:
    assert read_report(scripts.folder).notice == ""
    spending.note(scripts.folder, "tune", UNPAID)
    report = write_report(scripts.folder, None)
    assert report.notice == f"Trials ended early: {UNPAID}."
    assert json.loads(scripts.folder.report_data.read_text())["notice"] == report.notice
    assert "Trials ended early: no money is left" in scripts.folder.report_page.read_text()


def test_spending_names_the_nodes_that_run_after_the_autoscaler_ended(make_run: MakeRun) -> None:
    fleet = {"name": "left", "aws_regions": ["eu-west-1"]}
    folder = RunFolder(make_run(fleet=fleet).folder)
    now = datetime(2026, 11, 27, 5, 0, tzinfo=UTC)
    life = {"type": "g5.xlarge", "price": 0.4, "launched": "2026-11-27T04:00:00+00:00"}
    expires, ended = ("2026-11-27T05:40:00+00:00", "2026-11-27T04:30:00+00:00")
    nodes = {"i-1": life | {"expires": expires}, "i-2": life | {"ended": ended}}
    step = {"since": life["launched"], "spent": 0.1, "instances": nodes}
    folder.fleet_state.write_text(json.dumps({"run": "r1", "state": "ended", "step": step}))

    def money(at: datetime) -> spending.Spending:
        spec = load_frozen(folder.study).study.fleet
        return spending.read_spending(folder, "r1", spec, at) or pytest.fail("no money")

    assert money(now).nodes_left == (
        "nodes that still ran when the autoscaler ended: i-1 (until 05:40 UTC at the latest, for "
        "0.4000 USD per hour); trialfleet fleet scale 0 ends them"
    )
    assert money(now).spent == pytest.approx(0.6)
    later = money(now + timedelta(hours=2))
    assert later.nodes_left is None
    assert later.spent == pytest.approx(0.4 * 100 / 60 + 0.2)
    folder.fleet_state.write_text(json.dumps({"run": "r1", "state": "scaling", "step": step}))
    assert money(now).nodes_left is None


def test_a_silent_autoscaler_is_a_trouble_only_of_a_run_under_way(make_run: MakeRun) -> None:
    folder = RunFolder(make_run(fleet={"name": "mute", "aws_regions": ["eu-west-1"]}).folder)
    spec, now = load_frozen(folder.study).study.fleet, datetime(2026, 11, 27, 5, 0, tzinfo=UTC)
    report = {"run": "r1", "state": "scaling", "at": "2026-11-27T04:50:00+00:00", "step": {}}
    for age, is_under_way, trouble in (
        (10, True, "the fleet's autoscaler: has not reported since 04:50 UTC"),
        (10, False, None),
        (4, True, None),
    ):
        at = (now - timedelta(minutes=age)).isoformat()
        folder.fleet_state.write_text(json.dumps(report | {"at": at}))
        money = spending.read_spending(folder, "r1", spec, now, is_under_way=is_under_way)
        assert money is not None
        assert money.trouble == trouble


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_status_shows_the_money_spent_and_left(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_hand: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fleet = {"name": "f", "aws_regions": ["eu-west-1"], "price_cap": {"run": 60}}
    folder = RunFolder(make_run(fleet=fleet).folder)
    assert StatusReader(folder).read().money is None
    place = default_report("f") if by_hand else folder.fleet_state
    place.parent.mkdir(parents=True, exist_ok=True)
    report = {"run": "r1", "state": "failing", "error": "AWS says no", "step": {"spent": 12.5}}
    place.write_text(json.dumps(report))
    status = StatusReader(folder).read()
    assert status.to_json()["money"] == {
        "spent": 12.5,
        "cap": 60.0,
        "left": 47.5,
        "reserve": 12.0,
        "ended": None,
        "trouble": "the fleet's autoscaler: AWS says no",
        "nodes_left": None,
    }
    spending.note(folder, "tune", UNPAID)
    text = printed(run_view(StatusReader(folder).read()))
    assert "fleet: 12.50 USD spent of 60.00, 47.50 left" in text
    assert f"trials ended: {UNPAID}" in text
    assert "the fleet's autoscaler: AWS says no" in text
    place.write_text(json.dumps(report | {"run": "another"}))
    assert StatusReader(folder).read().money is None
