"""Tests of the reasons not to begin a trial, a full training or a gate."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from trialfleet.optimizer.budget_and_deadline_rules import (
    LEAST_FREE,
    Activity,
    Facts,
    UsdBudget,
    refusal,
)
from trialfleet.optimizer.region_types import Refused, Stopped

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
BUDGET = UsdBudget(name="budget.usd", usd=4.0, spent=2.0, reserved=1.0, trial=1.0)
PAID = Facts(
    free=LEAST_FREE,
    folder="/runs/r1",
    deadline=NOON,
    now=NOON - timedelta(minutes=1),
    failed=2,
    failures=2,
    last_failure="A.l1.t02: no GPU",
    begun=19,
    trials=20,
    age_hours=1.9,
    hours=2.0,
    budgets=lambda: [BUDGET],
)
# In order of precedence, each with its message.
REASONS: list[tuple[dict[str, Any], Refused]] = [
    (
        {"free": 5 << 20},
        Refused(
            "no space: 5 MB are free in '/runs/r1'; at least 64 MB must be free, because "
            "HTCondor's logs may need them"
        ),
    ),
    ({"out_of_money": {"tune": "no money is left"}}, Refused("no money is left")),
    ({"now": NOON}, Refused("the day's deadline, 2026-11-22 12:00 UTC, is over")),
    (
        {"failed": 3},
        Stopped(
            "3 trials failed for good; budget.failures allows 2; the last one was A.l1.t02: no GPU"
        ),
    ),
    ({"begun": 20}, Refused("the budget of 20 trials is used up")),
    ({"age_hours": 2.0}, Refused("the budget of 2 hours is used up")),
    (
        {"budgets": lambda: [BUDGET, BUDGET._replace(spent=2.1)]},
        Refused(
            "budget.usd of 4 USD is used up: 2.1 USD are spent, 1 are reserved for running jobs "
            "and for full trainings to come, one more trial costs about 1"
        ),
    ),
]


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (7.9994, "8"),
        (2.1, "2.1"),
        (60.0, "60"),
        (0.0123, "0.012"),
        (1e-06, "1e-06"),
        (1e5, "100000"),
    ],
)
def test_an_amount_is_rounded_in_the_message(usd: float, shown: str) -> None:
    used_up = BUDGET._replace(usd=usd, spent=usd, reserved=0.0)
    refused = refusal("trial", replace(PAID, budgets=lambda: [used_up]))
    assert refused
    assert refused.reason == f"budget.usd of {shown} USD is used up: {shown} USD are spent"


@pytest.mark.parametrize("activity", get_args(Activity))
def test_an_activity_begins_if_no_reason_prevents_it(activity: Activity) -> None:
    assert refusal(activity, Facts()) is None
    assert refusal(activity, PAID) is None


@pytest.mark.parametrize("at", range(len(REASONS)))
def test_the_first_reason_is_returned(at: int) -> None:
    facts: dict[str, Any] = {}
    for changed, _ in REASONS[at:]:
        facts |= changed
    expected = REASONS[at][1]
    found = refusal("trial", replace(PAID, **facts))
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("activity", "reasons"),
    [
        ("region", {"failed"}),
        ("anything", {"free"}),
        ("attempt", {"free", "out_of_money", "now"}),
        ("full training", {"free", "failed"}),
        ("gate", {"free"}),
    ],
)
def test_activities_other_than_trials_have_fewer_reasons(
    activity: Activity, reasons: set[str]
) -> None:
    changes = [facts for facts, _ in REASONS]
    refused = [facts for facts in changes if refusal(activity, replace(PAID, **facts))]
    assert {name for facts in refused for name in facts} == reasons


@pytest.mark.parametrize("activity", ["attempt", "trial", "full training", "gate"])
def test_every_activity_is_refused_if_full_trainings_have_no_money_left(activity: Activity) -> None:
    assert refusal(activity, replace(PAID, out_of_money={"final": "spent"})) == Refused("spent")


def test_budgets_in_usd_are_gathered_only_if_nothing_else_refuses() -> None:
    def gathered() -> list[UsdBudget]:
        pytest.fail("it takes long")

    assert refusal("trial", replace(PAID, begun=20, budgets=gathered))


def test_every_fact_can_refuse() -> None:
    decisive = {name for facts, _ in REASONS for name in facts}
    limits = {"folder", "deadline", "failures", "last_failure", "trials", "hours"}
    assert decisive | limits == {each.name for each in fields(Facts)}
