"""Budgets in USD: the rule, and how requests for trials follow it. The test simulates the jobs."""

from __future__ import annotations

import heapq
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import MakeRun
from tests.job_logs import JobLog
from tests.unit.report.report_studies import text_of
from tests.unit.scripts import Scripts, region_of
from trialfleet import Run
from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.budget_amounts import (
    ExpectedCosts,
    Spending,
    expected_costs,
    usd_budget,
)
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import CostsBefore, dump_frozen, load_frozen
from trialfleet.workflows.views.report.report_reader import read_report

pytestmark = pytest.mark.slow


# -- the rule --------------------------------------------------------------------------------------


def spent_of(*trials: float, under_way: tuple[float, ...] = (), **more: Any) -> Spending:
    return Spending(trials=trials, under_way=under_way, **more)


def why(budget: float, spending: Spending, before: ExpectedCosts | None = None) -> str | None:
    found = usd_budget("budget.usd", budget, [spending], expected_costs([spending], before))
    refused = refusal("trial", Facts(budgets=lambda: [found]))
    return refused.reason if refused else None


def test_a_trial_begins_only_if_the_budget_also_covers_reserved_money() -> None:
    done = {"full_is_over": True}
    assert why(4.0, spent_of(1.0, 1.0, under_way=(0.5,), **done)) is None  # 2 + 1 + 1
    reason = why(3.9, spent_of(1.0, 1.0, under_way=(0.5,), **done))
    assert reason == (
        "budget.usd of 3.9 USD is used up: 2 USD are spent, 1 are reserved for running jobs and "
        "for full trainings to come, one more trial costs about 1"
    )
    assert why(4.4, spent_of(1.0, 1.0, under_way=(1.5,), **done))  # it takes longer than others
    assert why(4.9, spent_of(1.0, 1.0, under_way=(0.5,)))  # a full training costs at least a trial
    assert why(5.0, spent_of(1.0, 1.0, under_way=(0.5,))) is None


def test_while_the_cost_of_a_trial_is_unknown_only_spent_money_counts() -> None:
    assert why(1.0, spent_of(under_way=(0.1, 0.2))) is None
    assert why(0.3, spent_of(under_way=(0.1, 0.3)))
    before = ExpectedCosts(trial=0.4, full=0.0)
    assert why(1.0, spent_of(under_way=(0.1, 0.2)), before)
    assert why(1.6, spent_of(under_way=(0.1, 0.2)), before) is None


@given(
    budget=st.floats(0.5, 50),
    lanes=st.integers(1, 8),
    spread=st.floats(1, 3),
    full=st.floats(0.2, 3),
    seed=st.integers(0, 1000),
)
def test_a_region_exceeds_its_budget_by_at_most_one_trial_per_lane(
    budget: float, lanes: int, spread: float, full: float, seed: int
) -> None:
    """Lanes of trials that cost 1 / spread to spread; a trial's cost is also its time."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    over: list[float] = []
    running: list[tuple[float, float]] = []  # its end, and its cost
    before, now = ExpectedCosts(trial=1.0, full=full), 0.0
    while True:
        so_far = tuple(usd - (end - now) for end, usd in running)
        at = spent_of(*over, under_way=so_far)
        if len(running) < lanes and why(budget, at, before) is None:
            usd = chance.uniform(1 / spread, spread)
            heapq.heappush(running, (now + usd, usd))
        elif running:
            now, usd = heapq.heappop(running)
            over.append(usd)
        else:
            break
    assert sum(over) <= budget + lanes * spread
    if lanes == 1:  # the best is known whenever one begins
        assert sum(over) <= budget + spread


# -- the asks --------------------------------------------------------------------------------------

SECONDS_PER_USD = 4000  # of a slot of `JobLog`: a quarter of 3.60 USD per hour


class PaidScripts(Scripts):
    """Scripts of a run whose jobs cost money."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.logs: dict[str, JobLog] = {}
        for region in run.study.region_table:
            self.folder.region(region).dag_files.submit.touch()  # as DAGMan's submission does

    def begin(self, node: str) -> str:
        """Ask for a trial, whose job begins at once; return the refusal, if it is one."""
        reply = self.call("ask", region_of(node), node)
        if reply.exit_code == EXITS["skip"]:
            return reply.message
        if node not in self.logs:
            self.logs[node] = JobLog(self.trial(node).log, begin=JobLog.now())
            self.logs[node].submitted(0)
            self.logs[node].executes(0)
        return ""

    def end(self, node: str, usd: float) -> None:
        """End the job of a trial, as if it had run for as long as this money lasts."""
        self.logs[node].terminated(usd * SECONDS_PER_USD)
        assert self.finish(node) == EXITS["done"]


def scripts_of(make_run: MakeRun, budget: dict[str, Any], **changes: Any) -> PaidScripts:
    whole = {"trials": 20, "lanes": 2, **budget}
    return PaidScripts(make_run(budget=whole, publish="none", **changes))


def test_a_region_with_its_money_spent_begins_no_trial(make_run: MakeRun) -> None:
    scripts = scripts_of(make_run, {"usd": 25})
    assert scripts.begin("A.l1.t01") == ""
    scripts.end("A.l1.t01", usd=10)
    assert scripts.begin("A.l1.t02") == ""
    assert scripts.begin("A.l1.t02") == ""  # the same trial: it has begun
    message = scripts.begin("A.l2.t01")  # 10 are spent, 10 are pending
    assert (
        "A.l2.t01: skipped: budget.usd of 25 USD is used up: 10 USD are spent, 10 are reserved"
        in message
    )
    scripts.end("A.l1.t02", usd=10)
    assert "20 USD are spent, one more trial costs about 10" in scripts.begin("A.l1.t03")
    assert scripts.call("conclude", "A", "A.tuned").exit_code == EXITS["skip"]
    run = scripts.run
    assert [record.usd for record in run.trials()] == [10, 10]
    (region,) = run.status().regions
    assert region.usd == 20
    assert region.spent
    assert region.spent.startswith("budget.usd of 25 USD is used up")
    page = text_of(read_report(scripts.folder))
    assert "A ended early: budget.usd of 25 USD is used up" in page


def test_a_regions_own_budget_does_not_limit_other_regions(make_run: MakeRun) -> None:
    regions = {"A": None, "B": {"budget": {"usd": 5}}}
    scripts = scripts_of(make_run, {"usd": 100}, regions=regions)
    for region in "AB":
        assert scripts.begin(f"{region}.l1.t01") == ""
        scripts.end(f"{region}.l1.t01", usd=5)
    assert scripts.begin("A.l1.t02") == ""
    assert "budget.usd of 5 USD" in scripts.begin("B.l1.t02")


def test_the_budget_of_a_run_counts_all_regions_and_keeps_their_full_trainings(
    make_run: MakeRun,
) -> None:
    budget = {"trials": 20, "lanes": 2, "usd_per_run": 60}
    scripts = PaidScripts(make_run(budget=budget, regions=["A", "B"]))
    assert scripts.begin("A.l1.t01") == ""
    scripts.end("A.l1.t01", usd=10)
    assert scripts.begin("B.l1.t01") == ""
    assert scripts.begin("A.l1.t02") == ""  # 10 spent, 10 + 20 reserved, 10 its own
    assert scripts.begin("A.l2.t01") == ""  # 10 spent, 20 + 20 reserved, 10 its own
    message = scripts.begin("B.l2.t01")
    assert "budget.usd_per_run of 60 USD is used up: 10 USD are spent, 50 are reserved" in message
    for node in ("A.l1.t02", "B.l1.t01", "A.l2.t01"):
        scripts.end(node, usd=10)
    assert scripts.begin("B.l1.t02")
    assert scripts.ask_best().exit_code in {EXITS["done"], EXITS["defer"]}


def run_of_day(run: Run, day: str) -> Run:
    """Return the same run, of a day."""
    file = RunFolder(run.folder).study
    frozen = load_frozen(file).model_copy(update={"day": RunsDay(date=day)})
    file.write_text(dump_frozen(frozen))
    return Run(run.folder)


def test_the_budget_of_a_day_counts_its_other_runs(make_run: MakeRun) -> None:
    budget = {"trials": 9, "lanes": 2, "usd_per_day": 25}
    runs = {
        name: run_of_day(make_run(run=name, budget=budget, publish="none"), day)
        for name, day in [("one", "2026-11-22"), ("two", "2026-11-22"), ("three", "2026-11-23")]
    }
    other = make_run(run="other", name="other", budget=budget, publish="none")
    first, third = PaidScripts(runs["one"]), PaidScripts(runs["three"])
    for scripts in (first, third, PaidScripts(run_of_day(other, "2026-11-22"))):
        assert scripts.begin("A.l1.t01") == ""
        scripts.end("A.l1.t01", usd=15)
    assert third.begin("A.l1.t02")  # 15 and 15 are more than 25
    second = PaidScripts(runs["two"])
    message = second.begin("A.l1.t01")
    assert "budget.usd_per_day of 25 USD is used up: 15 USD are spent" in message
    named = "no trial completed, so there are no best settings: budget.usd_per_day of 25 USD"
    assert named in second.call("conclude", "A", "A.tuned").message


@pytest.mark.parametrize("damaged", ["study", "database"])
def test_no_trial_begins_while_the_cost_of_another_run_of_the_day_is_unknown(
    make_run: MakeRun, damaged: str
) -> None:
    budget = {"trials": 9, "lanes": 2, "usd_per_day": 25}
    today = str(datetime.now(UTC).date())
    one, two = (
        run_of_day(make_run(run=name, budget=budget, publish="none"), today)
        for name in ("one", "two")
    )
    first, second = PaidScripts(one), PaidScripts(two)
    assert first.begin("A.l1.t01") == ""
    first.end("A.l1.t01", usd=15)
    file: Path = getattr(first.folder, damaged)
    kept = file.read_bytes()
    file.write_bytes(b"{" * 5000)
    reply = second.call("ask", "A", "A.l1.t01")
    assert reply.exit_code == EXITS["defer"]
    unknown = f"the cost of the run {str(one.folder)!r}, which counts for budget.usd_per_day, is"
    assert unknown in reply.message
    file.write_bytes(kept)
    assert "budget.usd_per_day of 25 USD is used up" in second.begin("A.l1.t01")


def test_an_old_run_that_can_not_be_read_does_not_count(make_run: MakeRun) -> None:
    budget = {"trials": 9, "lanes": 2, "usd_per_day": 25}
    today = str(datetime.now(UTC).date())
    one, two = (
        run_of_day(make_run(run=name, budget=budget, publish="none"), today)
        for name in ("one", "two")
    )
    old = RunFolder(one.folder).study
    old.write_text("{")
    os.utime(old, (0, 0))
    draft = RunFolder(one.folder.parent / ".plan-trialfleet-x")  # of a plan that was killed
    draft.root.mkdir()
    draft.study.touch()
    assert PaidScripts(two).call("ask", "A", "A.l1.t01").exit_code == EXITS["done"]


def test_the_trial_cost_of_earlier_runs_counts_from_the_first_trial(make_run: MakeRun) -> None:
    run = make_run(budget={"trials": 9, "lanes": 4, "usd": 25}, publish="none")
    file = RunFolder(run.folder).study
    before = load_frozen(file).model_copy(update={"costs": CostsBefore(trial=10.0, full=None)})
    file.write_text(dump_frozen(before))
    scripts = PaidScripts(Run(run.folder))
    assert [scripts.begin(f"A.l{lane}.t01") == "" for lane in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]


def test_without_a_price_the_budget_refuses_no_trial(make_run: MakeRun) -> None:
    scripts = scripts_of(make_run, {"usd": 0.01})
    for node in ("A.l1.t01", "A.l1.t02"):
        assert scripts.ask(node) == EXITS["done"]
        assert scripts.finish(node, 1.0) == EXITS["done"]
    assert scripts.run.status().regions[0].usd is None
