"""Tests of covariance, likelihood, posterior, hyperparameters and transformed values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from trialfleet.optimizer.sampling.gp.domain import Array
from trialfleet.optimizer.sampling.gp.fitting import MOST_FITTED, SAMPLES, posteriors
from trialfleet.optimizer.sampling.gp.kernel import (
    Hyperparameters,
    covariance,
    covariance_and_slopes,
)
from trialfleet.optimizer.sampling.gp.posterior import Likelihood, Posterior, Posteriors
from trialfleet.optimizer.sampling.gp.standardized_results import standardize

CATEGORICAL = np.array([False, False, True])
GIVEN = Hyperparameters(np.array([0.3, 0.8, 1.5]), joint=1.3, additive=0.6, noise=1e-3)
LOGS = np.log([*GIVEN.lengths, GIVEN.joint, GIVEN.additive, GIVEN.noise])


def some_rows(count: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    rows = random.uniform(size=(count, 3))
    rows[:, 2] = random.integers(0, 3, count)
    return rows


def values_at(rows: Array) -> Array:
    return np.asarray(np.sin(5 * rows[:, 0]) + rows[:, 1] ** 2 + 0.5 * (rows[:, 2] == 1))


def matern(r: float) -> float:
    return float((1 + 5**0.5 * r + 5 / 3 * r * r) * np.exp(-(5**0.5) * r))


def covariance_by_pairs(left: Array, right: Array) -> Array:
    """Return the covariance, computed pair by pair."""
    found = np.empty((len(left), len(right)))
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            deltas = np.array([x[0] - y[0], x[1] - y[1], float(x[2] != y[2])]) / GIVEN.lengths
            alone = np.mean([matern(abs(d)) for d in deltas])
            together = matern(float(np.sqrt((deltas**2).sum())))
            found[i, j] = GIVEN.joint * together + GIVEN.additive * alone
    return found


def moments(posterior: Posterior, rows: Array) -> tuple[Array, Array]:
    """Return mean and deviation at points."""
    means, deviations = Posteriors([posterior]).means_and_deviations(rows)
    return means[0], deviations[0]


def test_the_slopes_of_the_covariance_are_its_derivatives() -> None:
    squares = np.array([[0.1, 0.5, 1.0], [1e-3, 0.0, 2.0]])
    found = covariance_and_slopes(np.sqrt(squares), GIVEN)[2]
    for row, expected in zip(squares, found, strict=True):
        derivative = approx_fprime(row, lambda x: sum(covariance(np.sqrt(x), GIVEN)), 1e-8)
        assert np.allclose(expected, derivative, rtol=1e-3)


def test_the_gradient_of_the_likelihood_is_its_derivative() -> None:
    rows = some_rows(12)
    likelihood = Likelihood(rows, values_at(rows), CATEGORICAL)
    value, gradient, _ = likelihood.with_gradient(LOGS)
    assert value == pytest.approx(likelihood.negative_log(LOGS))
    assert np.allclose(gradient, approx_fprime(LOGS, likelihood.negative_log, 1e-6), atol=1e-3)


def test_the_likelihood_is_that_of_a_normal_distribution() -> None:
    rows = some_rows(9)
    values = values_at(rows)
    whole = covariance_by_pairs(rows, rows) + GIVEN.noise * np.eye(9)
    expected = -multivariate_normal(cov=whole).logpdf(values) - 9 / 2 * np.log(2 * np.pi)
    found = Likelihood(rows, values, CATEGORICAL).negative_log(LOGS)
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_posterior_is_the_conditional_normal_distribution() -> None:
    rows, others = some_rows(10), some_rows(4, seed=1)
    values = values_at(rows)
    whole = covariance_by_pairs(rows, rows) + GIVEN.noise * np.eye(10)
    cross = covariance_by_pairs(others, rows)
    mean = cross @ np.linalg.solve(whole, values)
    variance = GIVEN.variance - np.einsum("ij,ji->i", cross, np.linalg.solve(whole, cross.T))
    found = Posterior(rows, values, CATEGORICAL, GIVEN)
    assert np.allclose(moments(found, others)[0], mean, atol=1e-6)
    assert np.allclose(moments(found, others)[1], np.sqrt(variance), atol=1e-6)
    assert np.allclose(found.mean(others), mean, atol=1e-6)


def test_the_gradients_of_mean_and_deviation_are_their_derivatives() -> None:
    rows = some_rows(10)
    other = Hyperparameters(2 * GIVEN.lengths, joint=0.4, additive=0.9, noise=1e-2)
    each = [Posterior(rows, values_at(rows), CATEGORICAL, given) for given in (GIVEN, other)]
    at = np.array([0.4, 0.7, 1.0])
    stacked = Posteriors(each).with_gradient(np.array([at, at + 0.1]))
    means, deviations, by_means, by_deviations = (found[:, 0] for found in stacked)
    for place, posterior in enumerate(each):
        mean, deviation = (float(x[0]) for x in moments(posterior, at[None]))
        assert (means[place], deviations[place]) == pytest.approx((mean, deviation))
        for which, found in enumerate((by_means[place], by_deviations[place])):
            expected = approx_fprime(
                at, lambda x, p=posterior, i=which: float(moments(p, x[None])[i][0]), 1e-7
            )
            assert np.allclose(found[:2], expected[:2], atol=1e-5)
            assert found[2] == 0.0, "a choice has no direction"


def test_pending_points_change_no_mean_and_reduce_the_deviation() -> None:
    rows, pending, others = some_rows(10), some_rows(3, seed=2), some_rows(20, seed=3)
    before = Posterior(rows, values_at(rows), CATEGORICAL, GIVEN)
    after = before.fantasize(pending)
    assert np.allclose(after.mean(others), before.mean(others), atol=1e-6)
    assert (moments(after, others)[1] <= moments(before, others)[1] + 1e-9).all()
    assert (moments(after, pending)[1] < 0.1).all()
    both, values = (
        np.concatenate([rows, pending]),
        np.concatenate([before.values, before.mean(pending)]),
    )
    refitted = Posterior(both, values, CATEGORICAL, GIVEN)
    assert np.allclose(moments(after, others), moments(refitted, others), atol=1e-6)
    assert before.fantasize(np.empty((0, 3))) is before


def test_fitted_hyperparameters_show_the_important_parameter_and_no_noise() -> None:
    random = np.random.default_rng(0)
    rows = some_rows(40, seed=5)
    values = standardize(np.sin(6 * rows[:, 0]))
    found = posteriors(rows, values, CATEGORICAL, random)
    assert len(found.each) == SAMPLES
    lengths = np.median([each.given.lengths for each in found.each], axis=0)
    assert lengths[0] < lengths[1] / 2
    assert lengths[0] < lengths[2] / 2
    assert np.median([each.given.noise for each in found.each]) < 1e-3


def test_fitted_hyperparameters_show_noise() -> None:
    random = np.random.default_rng(0)
    rows = some_rows(60, seed=6)
    noisy = values_at(rows) + 0.5 * random.standard_normal(60)
    found = posteriors(rows, standardize(noisy), CATEGORICAL, random)
    assert 0.05 < np.median([each.given.noise for each in found.each]) < 1.0


@pytest.mark.slow
def test_all_results_count_although_hyperparameters_are_fitted_to_some() -> None:
    rows = some_rows(2 * MOST_FITTED)
    values = standardize(values_at(rows))
    found = posteriors(rows, values, CATEGORICAL, np.random.default_rng(0))
    assert 1 < len(found.each) < SAMPLES
    assert np.abs(found.each[0].mean(rows) - found.each[0].values).max() < 0.05


def test_equal_points_with_different_values_are_allowed() -> None:
    rows = np.repeat(some_rows(3), 5, axis=0)
    values = standardize(np.arange(15.0))
    assert len(posteriors(rows, values, CATEGORICAL, np.random.default_rng(0)).each) == SAMPLES


# -- values ----------------------------------------------------------------------------------------


def test_standardizing_keeps_the_order_of_values() -> None:
    values = np.random.default_rng(0).lognormal(0, 3, 50)
    found = standardize(values)
    assert (np.argsort(found) == np.argsort(values)).all()
    assert found.mean() == pytest.approx(0, abs=1e-9)
    assert found.std() == pytest.approx(1)


def test_one_diverged_value_does_not_hide_differences_between_the_others() -> None:
    values = np.array([*np.linspace(0.2, 0.4, 20), 1e6])
    assert np.ptp(standardize(values)[:20]) > 0.3
    assert np.ptp(((values - values.mean()) / values.std())[:20]) < 1e-5, "as it would be"


@pytest.mark.parametrize(
    "values",
    [[0.0] * 8, [3.0], [1e300] * 4, [1e300, -1e300] * 4, [1.0, 2.0], [0, 0, 0, 0, 1e-300]],
)
def test_standardized_values_are_finite_and_stay_different(values: list[float]) -> None:
    found = standardize(np.array(values))
    assert np.isfinite(found).all()
    assert len(set(found)) == len(set(values))
