"""Tests of the early-stopping policy. Smaller is better."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from trialfleet.optimizer.stopping.curves import Curve
from trialfleet.optimizer.stopping.rule import Complete, Decision, Rule, build_curve, choose_stops

END = 40
T = np.arange(1.0, END + 1)
RULE = Rule(startup_trials=3)
GOOD = [0.1, 0.15, 0.2, 0.25]


def falling(end: float, reports: int = END) -> Curve:
    return Curve(T[:reports], end + 0.5 / T[:reports])


def complete(*ends: float) -> list[Complete]:
    return [Complete(falling(end), end + 0.5 / END) for end in ends]


def decisions(running: dict[str, Curve], rule: Rule = RULE, **more: Any) -> dict[str, Decision]:
    known: dict[str, Any] = {"complete": complete(*GOOD), "begun": 20, "stopped": 0} | more
    return choose_stops(rule, running, known.pop("complete"), **known)


def test_a_trial_predicted_to_end_worse_than_the_best_is_stopped() -> None:
    decision = decisions({"bad": falling(0.6, 10)})["bad"]
    assert (decision.step, decision.max_steps) == (10, END)
    assert decision.loss == pytest.approx(0.6 + 0.5 / END, abs=0.02)
    assert decision.best == pytest.approx(0.1 + 0.5 / END)
    assert decision.chance < 0.05


@pytest.mark.parametrize(
    ("curve", "rule", "more", "why"),
    [
        (falling(0.08, 10), RULE, {}, "it will be the best"),
        (falling(0.6, 1), RULE, {}, "it has hardly reported"),
        (falling(0.6, 10), Rule(startup_trials=3, min_steps=11), {}, "min_steps"),
        (falling(0.6, 10), Rule(startup_trials=5), {}, "startup_trials"),
        (falling(0.6, END), RULE, {}, "it is at its end"),
        (falling(0.6, 10), RULE, {"begun": 10, "stopped": 9}, "max_stopped"),
        (falling(0.6, 10), Rule(max_stopped=0.5), {"begun": 8, "stopped": 4}, "max_stopped"),
        (falling(0.6, 10), RULE, {"complete": []}, "nothing to compare with"),
    ],
)
def test_a_trial_with_a_reason_to_continue_is_not_stopped(
    curve: Curve, rule: Rule, more: dict[str, Any], why: str
) -> None:
    assert decisions({"one": curve}, rule, **more) == {}, why


def test_a_trial_with_a_report_better_than_the_best_is_not_stopped_when_it_gets_worse() -> None:
    worse = Curve(T[:10], np.array([0.05, *np.linspace(0.5, 0.9, 9)]))
    assert decisions({"one": worse}) == {}


@pytest.mark.parametrize(("running", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (9, 5)])
def test_only_the_worst_running_trials_are_stopped_at_one_time(running: int, most: int) -> None:
    bad = {f"n{i}": falling(0.5 + i / 20, 10) for i in range(running)}
    found = decisions(bad, begun=100)
    assert len(found) == most
    assert set(found) == set(sorted(bad, key=lambda name: -bad[name].losses[-1])[:most])


def test_the_last_step_is_that_of_complete_trials_unless_the_study_sets_it() -> None:
    assert decisions({"bad": falling(0.6, 10)})["bad"].max_steps == END
    longer = Rule(startup_trials=3, max_steps=80)
    assert decisions({"bad": falling(0.6, 10)}, longer)["bad"].max_steps == 80


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize(
    "odd",
    [
        np.where(T > 20, 1e30, 0.3 + 0.5 / T),  # diverged
        np.full(END, 1e30),  # diverged before the first report
        np.where(T == 20, 1e30, 0.3 + 0.5 / T),  # a spike
    ],
)
def test_odd_complete_trials_do_not_turn_early_stopping_off(odd: np.ndarray, count: int) -> None:
    """Up to two thirds of the trials are odd, as in a space with too large learning rates."""
    known = [*complete(*GOOD), *[Complete(Curve(T, odd), float(odd[-1]))] * count]
    found = decisions({"bad": falling(0.6, 10), "good": falling(0.08, 10)}, complete=known)
    assert set(found) == {"bad"}
    assert found["bad"].loss == pytest.approx(0.6 + 0.5 / END, abs=0.02)


def test_a_complete_trial_that_learns_is_not_odd_where_most_learn_nothing() -> None:
    """The prior must know that curves may fall, or each trial that still learns is stopped."""
    flat = [Complete(Curve(T, 0.69 + 1e-4 / T), 0.69 + 1e-4 / END)] * 4
    known = [*flat, Complete(Curve(T, 0.4 + 0.5 / T), 0.4 + 0.5 / END)]
    assert decisions({"learns": falling(0.41, 5)}, complete=known) == {}


def test_the_noise_of_trials_that_learn_is_not_odd_where_most_learn_nothing() -> None:
    steps, stopped = np.arange(1.0, 21), 0
    for draw in range(20):
        chance = np.random.default_rng(draw)

        def learning(end: float, chance: np.random.Generator = chance) -> Curve:
            losses = end + (0.69 - end) * np.exp(-steps / 5)
            return Curve(steps, losses + 0.01 * chance.standard_normal(20))

        flat = [Curve(steps, 0.69 + 5e-4 * chance.standard_normal(20)) for _ in range(5)]
        ends = chance.uniform(0.35, 0.5, 2)
        known = [Complete(curve, 0.69) for curve in flat]
        known += [Complete(learning(end), end) for end in ends]
        young = Curve(steps[:6], learning(min(ends) - 0.03).losses[:6])
        stopped += len(
            decisions({"best": young}, Rule(startup_trials=3, max_steps=20), complete=known)
        )
    assert stopped <= 1, "its confidence is 95%"


def test_a_trial_past_the_last_step_of_all_complete_trials_is_not_stopped() -> None:
    """Nothing is known about these steps, as when the study tunes the number of epochs."""
    short = [Complete(falling(end, 20), end + 0.5 / 20) for end in GOOD]
    longer = Rule(startup_trials=3, max_steps=80)
    assert set(decisions({"bad": falling(0.9, 19)}, longer, complete=short)) == {"bad"}
    assert decisions({"bad": falling(0.9, 20)}, longer, complete=short) == {}


def test_a_rising_curve_counts_with_its_best_value_if_the_best_epoch_counts() -> None:
    """By its last values it would be stopped."""
    rise = np.maximum(T - 8, 0) * 0.02
    known = [Complete(Curve(T, falling(end).losses + rise), end + 0.5 / 8) for end in GOOD]
    near = Curve(T[:15], falling(0.101, 15).losses + rise[:15])
    assert decisions({"near": near}, complete=known) == {}
    last = [Complete(each.curve, float(each.curve.losses[-1])) for each in known]
    far = Curve(T[:15], falling(2.0, 15).losses + rise[:15])
    assert set(decisions({"far": far}, complete=last)) == {"far"}


def test_a_result_may_differ_from_the_last_report() -> None:
    """As if reports measured a sample of the rows, or the result the average of the weights."""
    below = [Complete(each.curve, each.loss - 0.3) for each in complete(*GOOD)]
    assert decisions({"best": falling(0.05, 10)}, complete=below) == {}
    decision = decisions({"bad": falling(0.6, 10)}, complete=below)["bad"]
    assert decision.loss == pytest.approx(0.6 + 0.5 / END - 0.3, abs=0.02)
    above = [Complete(each.curve, each.loss + 0.6) for each in complete(*GOOD)]
    assert set(decisions({"bad": falling(0.6, 10)}, complete=above)) == {"bad"}
    apart = [
        Complete(each.curve, each.loss + away)
        for each, away in zip(complete(*GOOD), (-0.2, 0.2, -0.2, 0.2), strict=True)
    ]
    assert decisions({"near": falling(0.15, 10)}, complete=apart) == {}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a_trial_without_a_finite_prediction_is_not_stopped() -> None:
    huge = Curve(T[:10], np.linspace(1e308, 1.7e308, 10))
    for decision in decisions({"huge": huge}).values():
        assert math.isfinite(decision.loss + decision.deviation)


def test_a_maximized_curve_is_negated_and_gaps_are_left_out() -> None:
    curve = build_curve({3: 0.9, 1: 0.5, 2: math.nan}, "maximize")
    assert curve is not None
    assert curve.steps.tolist() == [1.0, 3.0]
    assert curve.losses.tolist() == [-0.5, -0.9]
    assert build_curve({1: math.inf}, "minimize") is None
    assert build_curve({}, "minimize") is None
