"""Tests of predicted ends of learning curves. Smaller is better."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trialfleet.optimizer.stopping.curves import Curve, CurveModel, Prediction

END = 100
T = np.arange(1.0, END + 1)


def power_laws(count: int, seed: int, noise: float = 0.005) -> list[Curve]:
    rng = np.random.default_rng(seed)
    curves = []
    for _ in range(count):
        end, fall, power = rng.uniform(0.1, 0.6), rng.uniform(0.3, 0.9), rng.uniform(0.3, 1.5)
        losses = end + fall * T**-power + noise * rng.standard_normal(END)
        curves.append(Curve(T, losses))
    return curves


def head(curve: Curve, reports: int) -> Curve:
    return Curve(curve.steps[:reports], curve.losses[:reports])


def test_the_end_is_within_the_predicted_interval() -> None:
    """Expect 95 % of 200 within two deviations, for curves of the model's kind."""
    model = CurveModel(power_laws(20, seed=1), END)
    for reports in (5, 15, 40):
        away = []
        for curve in power_laws(200, seed=2):
            found = model.predict(head(curve, reports))
            away.append((curve.losses[-1] - found.mean) / found.deviation)
        assert np.mean(np.abs(away) < 2) > 0.88
        assert 0.6 < np.std(away) < 1.4


def test_more_reports_give_better_predictions() -> None:
    model = CurveModel(power_laws(10, seed=1), END)
    (curve,) = power_laws(1, seed=3)
    deviations = [model.predict(head(curve, n)).deviation for n in (3, 10, 30, 90)]
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[-1] < 0.02


def test_unfamiliar_curves_give_large_deviations() -> None:
    """A plateau predicts its end only if complete plateaus stayed plateaus."""
    step = Curve(T, np.where(T < 60, 0.8, 0.2))  # one complete curve improves late
    without = CurveModel(power_laws(6, seed=1), END)
    with_it = CurveModel([*power_laws(5, seed=1), step], END)
    plateau = Curve(T[:20], np.full(20, 0.8))
    assert with_it.predict(plateau).deviation > 3 * without.predict(plateau).deviation


def test_predictions_scale_and_shift_with_the_losses() -> None:
    complete, (curve,) = power_laws(5, seed=1), power_laws(1, seed=4)

    def moved(one: Curve) -> Curve:
        return Curve(1000 * one.steps, 50 * one.losses - 7)

    plain = CurveModel(complete, END).predict(head(curve, 12))
    other = CurveModel([moved(one) for one in complete], 1000 * END).predict(moved(head(curve, 12)))
    assert other.mean == pytest.approx(50 * plain.mean - 7)
    assert other.deviation == pytest.approx(50 * plain.deviation)


def test_the_same_reports_give_exactly_the_same_prediction() -> None:
    def predicted() -> tuple[float, float]:
        found = CurveModel(power_laws(5, seed=1), END).predict(head(power_laws(1, seed=4)[0], 9))
        return found.mean, found.deviation

    assert predicted() == predicted()


@pytest.mark.parametrize(
    "losses",
    [np.zeros(END), np.full(END, 1e300), np.linspace(0, 1e-12, END), np.linspace(1, 1e9, END)],
)
def test_odd_curves_give_finite_predictions(losses: np.ndarray) -> None:
    model = CurveModel([Curve(T, losses), Curve(T[:1], losses[:1])], END)
    found = model.predict(Curve(T[:1], losses[:1]))
    assert math.isfinite(found.mean)
    assert found.deviation > 0
    assert 0 <= found.probability_below(0.5) <= 1


def test_a_mixtures_moments_are_those_of_its_samples() -> None:
    mixture = Prediction(np.array([0.25, 0.75]), np.array([0.0, 2.0]), np.array([1.0, 0.5]))
    rng = np.random.default_rng(0)
    which = rng.random(400_000) < 0.25
    samples = np.where(which, rng.normal(0, 1, 400_000), rng.normal(2, 0.5, 400_000))
    assert mixture.mean == pytest.approx(samples.mean(), abs=0.01)
    assert mixture.deviation == pytest.approx(samples.std(), abs=0.01)
    assert mixture.probability_below(1.0) == pytest.approx(np.mean(samples < 1.0), abs=0.005)
