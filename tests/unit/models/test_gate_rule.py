"""The gate's rule: which of two measured models passes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trialfleet.workflows.facts.models.verdict import BASELINE, CHALLENGER, CHAMPION, Verdict
from trialfleet.workflows.rules.gate_decision import (
    Measurement,
    Rule,
    bootstrap,
    decide,
    passed_message,
)

pytestmark = pytest.mark.slow


def rule(**changes: Any) -> Rule:
    settings: dict[str, Any] = {
        "metric": "auc",
        "direction": "maximize",
        "tolerance": 0.0,
        "confidence": 0.95,
        "baseline": True,
        "seed": 0,
    }
    return Rule(**settings | changes)


def measured(value: float, losses: Any = None) -> Measurement:
    return Measurement(
        metrics={"auc": value}, losses=None if losses is None else np.array(losses, dtype=float)
    )


def verdict(
    asked: Rule, champion: Measurement, challenger: Measurement, **more: Measurement
) -> Verdict:
    models = {CHAMPION: champion, CHALLENGER: challenger, **more}
    return decide(asked, models, champion="r1", challenger="r2")


@pytest.mark.parametrize(
    ("direction", "tolerance", "champion", "challenger", "promoted"),
    [
        ("maximize", 0.0, 0.8, 0.8, True),
        ("maximize", 0.0, 0.8, 0.79, False),
        ("maximize", 0.02, 0.8, 0.79, True),
        ("maximize", 0.02, 0.8, 0.77, False),
        ("minimize", 0.0, 0.8, 0.79, True),
        ("minimize", 0.0, 0.8, 0.81, False),
        ("minimize", 0.02, 0.8, 0.81, True),
    ],
)
def test_without_losses_the_metric_decides_with_its_direction_and_the_tolerance(
    direction: str, tolerance: float, champion: float, challenger: float, promoted: bool
) -> None:
    asked = rule(direction=direction, tolerance=tolerance)
    found = verdict(asked, measured(champion), measured(challenger))
    assert (found.promoted, found.interval) == (promoted, None)
    assert f"auc {challenger:.4g}, champion {champion:.4g}" in found.why


def losses(seed: int, mean: float, rows: int = 500) -> Any:
    return np.abs(np.random.default_rng(seed).normal(mean, 0.2, rows))


def test_a_metric_that_is_worse_by_chance_passes() -> None:
    found = verdict(rule(), measured(0.80, losses(0, 0.5)), measured(0.79, losses(1, 0.5)))
    assert found.promoted
    assert "may be chance" in found.why
    assert found.interval
    assert found.interval[0] < 0 < found.interval[1]


@pytest.mark.parametrize("rows", [30, 500, 5000])
def test_one_row_that_makes_the_metric_four_times_worse_does_not_pass(rows: int) -> None:
    """A third of all samples don't draw that row: the interval begins below zero."""
    asked = rule(metric="rmse", direction="minimize", tolerance=0.01)
    old = losses(0, 0.5, rows)
    new = old + np.random.default_rng(1).normal(0, 0.02, rows)
    new[7] += 15 * old.sum()
    pair = [
        Measurement(metrics={"rmse": float(np.sqrt(each.mean()))}, losses=each)
        for each in (old, new)
    ]
    assert pair[1].metrics["rmse"] > 3.9 * pair[0].metrics["rmse"]
    found = verdict(asked, *pair)
    assert found.interval
    assert found.interval[0] < 0
    assert not found.promoted
    assert "a few rows may cause that, but chance alone does not" in found.why


@pytest.mark.parametrize(
    ("challenger", "is_worse", "words"),
    [
        (0.79, True, "the gate let a model pass that measured worse: auc 0.79, champion 0.8; the"),
        (0.81, False, "the gate let it pass: auc 0.81, champion 0.8"),
    ],
)
def test_the_message_about_a_model_that_passed_says_whether_it_measured_worse(
    challenger: float, is_worse: bool, words: str
) -> None:
    pair = measured(0.80, losses(0, 0.5)), measured(challenger, losses(1, 0.5))
    found = passed_message(rule(), verdict(rule(), *pair))
    assert found
    assert found.is_worse is is_worse
    assert str(found).startswith(words)
    assert passed_message(rule(), verdict(rule(), measured(0.8), measured(0.7))) is None


def test_a_metric_that_is_worse_by_more_than_chance_does_not_pass() -> None:
    found = verdict(rule(), measured(0.80, losses(0, 0.5)), measured(0.70, losses(1, 0.7)))
    assert not found.promoted
    assert "with 95% confidence" in found.why
    assert found.interval
    assert 0.1 < found.interval[0] < 0.2 < found.interval[1]


def test_the_verdict_on_a_slightly_worse_model_names_a_tolerance() -> None:
    one = losses(0, 0.5)
    asked = rule(metric="rmse", direction="minimize")
    pair = {"rmse": 165.2}, {"rmse": 165.2 + 4.196e-05}
    old, new = (
        Measurement(metrics=pair[0], losses=one),
        Measurement(metrics=pair[1], losses=one + 0.006),
    )
    found = verdict(asked, old, new)
    assert not found.promoted
    assert "rmse 165.20004, champion 165.2: worse by 4.196e-05" in found.why
    assert "losses per row are higher by at least 0.006 on average with 95%" in found.why
    assert found.why.endswith(
        "if such a small loss is acceptable, set gate.tolerance, to 5e-05 for example"
    )
    given = rule(metric="rmse", direction="minimize", tolerance=5e-05)
    assert verdict(given, old, new).promoted
    much = verdict(rule(), measured(0.80, losses(0, 0.5)), measured(0.70, losses(1, 0.7)))
    assert "gate.tolerance" not in much.why


def test_the_tolerance_is_in_the_metrics_unit_whatever_the_losses() -> None:
    pair = measured(0.80, losses(0, 0.5)), measured(0.79, losses(1, 0.7))
    assert verdict(rule(tolerance=0.02), *pair).promoted
    assert not verdict(rule(tolerance=0.005), *pair).promoted


def test_losses_of_different_rows_are_not_compared() -> None:
    found = verdict(rule(), measured(0.8, [0.1, 0.2]), measured(0.7, [0.1, 0.2, 0.3]))
    assert not found.promoted
    assert "of 2 and 3 rows, can't be compared" in found.why


def test_a_model_that_is_no_better_than_a_constant_is_never_promoted() -> None:
    constant = measured(0.5, np.full(500, 0.5))
    guessing = measured(0.51, losses(1, 0.5))  # above 0.5 by chance
    champion = measured(0.49, losses(2, 0.6))  # on shuffled labels it looks worse
    found = verdict(rule(), champion, guessing, **{BASELINE: constant})
    assert not found.promoted
    assert "are the labels right?" in found.why
    worse = verdict(rule(), champion, measured(0.495), **{BASELINE: constant})
    assert worse.why.startswith("no better than a constant prediction (")
    assert ", champion " in worse.why  # and how good the current model is on these rows
    assert verdict(rule(baseline=False), champion, guessing, **{BASELINE: constant}).promoted
    learnt = measured(0.7, losses(1, 0.3))
    assert verdict(rule(), champion, learnt, **{BASELINE: constant}).promoted


@pytest.mark.parametrize("name", [CHAMPION, CHALLENGER])
def test_the_verdict_names_the_model_that_lacks_the_metric(name: str) -> None:
    models = {CHAMPION: measured(0.8), CHALLENGER: measured(0.9)}
    models[name] = Measurement(metrics={"loss": 1.0})
    found = decide(rule(), models, champion="r1", challenger="r2")
    assert not found.promoted
    assert found.why == f"the {name} has no number 'auc'; its numbers: loss"


def verdict_with_unseen_values(
    champion: tuple[float, float], challenger: tuple[float, float], share: float
) -> Verdict:
    """Return the verdict on losses at values that the champion knows, and at new ones."""
    rows = 1000
    is_new = np.arange(rows) < share * rows
    noise = 0.1 * np.random.default_rng(0).normal(size=rows)
    each = {
        name: np.where(is_new, losses[1], losses[0]) + noise
        for name, losses in (("champion", champion), ("challenger", challenger))
    }
    found = {
        name: Measurement(metrics={"loss": each[name].mean()}, losses=each[name]) for name in each
    }
    found["champion"] = replace(found["champion"], note=NEW)
    for name, losses in each.items():
        known = losses[~is_new]
        metrics = {"loss": known.mean()} if len(known) else {}
        found[f"{name}_seen"] = Measurement(metrics=metrics, losses=known)
    return verdict(rule(metric="loss", direction="minimize"), **found)


NEW = "many rows hold values that the champion never saw"


@pytest.mark.parametrize(
    ("champion", "challenger", "share", "promoted", "words"),
    [
        ((1, 9), (1, 1), 0.1, True, NEW),  # a new shop, and the new model knows it
        ((1, 9), (2, 1), 0.4, False, "on the rows whose values the champion knows: loss 1.99"),
        ((1, 9), (1, 1), 0.6, False, "which is no fair comparison"),
        ((1, 9), (2, 2), 1.0, False, "which is no fair comparison"),
        ((1, 1), (2, 2), 0.1, False, "worse by 1"),
    ],
)
def test_a_challenger_must_pass_on_the_rows_that_the_champion_can_know(
    champion: Any, challenger: Any, share: float, promoted: bool, words: str
) -> None:
    found = verdict_with_unseen_values(champion, challenger, share)
    assert found.promoted is promoted
    assert words in found.why
    assert found.why.endswith(NEW)


def test_the_gate_seldom_rejects_an_equal_challenger_and_mostly_rejects_a_worse_one() -> None:
    """At 95% an equal one is kept in 9% of cases; half of them have a worse metric."""
    kept = {0.5: 0, 0.53: 0}
    for mean in kept:
        for seed in range(40):
            pair = losses(2 * seed, 0.5), losses(2 * seed + 1, mean)
            values = [measured(-float(each.mean()), each) for each in pair]
            kept[mean] += not verdict(rule(), *values).promoted
    assert kept[0.5] <= 6
    assert kept[0.53] >= 24


def test_the_bootstrap_agrees_with_the_central_limit_and_is_repeatable() -> None:
    rows = np.random.default_rng(3).exponential(1.0, 4000) - 1.0
    low, high = bootstrap(rows, 0.95, seed=0)
    error = rows.std() / np.sqrt(len(rows))
    assert low == pytest.approx(rows.mean() - 1.645 * error, abs=0.2 * error)
    assert high == pytest.approx(rows.mean() + 1.645 * error, abs=0.2 * error)
    assert bootstrap(rows, 0.95, seed=0) == (low, high)
    many = np.random.default_rng(4).normal(0, 1, 50_000)
    low, high = bootstrap(many, 0.95, seed=0)  # in groups
    error = 1 / np.sqrt(len(many))
    assert high - low == pytest.approx(2 * 1.645 * error, rel=0.05)


def test_reading_a_verdict_returns_what_was_written() -> None:
    found = verdict(rule(), measured(0.8, [0.1, 0.2]), measured(0.7, [0.3, 0.4]))
    assert Verdict.from_json(json.loads(json.dumps(found.to_json()))) == found
    alone = replace(found, champion=None, interval=None)
    assert Verdict.from_json(alone.to_json()) == alone
