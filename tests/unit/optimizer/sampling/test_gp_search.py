"""Tests of expected improvement, its search, and the proposed points."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

from trialfleet.optimizer.sampling.gp.acquisition import ExpectedImprovement, log_h
from trialfleet.optimizer.sampling.gp.domain import Array, Domain
from trialfleet.optimizer.sampling.gp.kernel import Hyperparameters
from trialfleet.optimizer.sampling.gp.posterior import Posterior, Posteriors
from trialfleet.optimizer.sampling.gp.proposal import proposals
from trialfleet.optimizer.sampling.gp.search import best_points
from trialfleet.optimizer.space import SearchSpace

pytestmark = pytest.mark.slow


SPACE = {
    "x": {"type": "float", "low": 0, "high": 1},
    "n": {"type": "int", "low": 0, "high": 20},
    "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
    "y": {"type": "float", "low": 0, "high": 1, "when": {"kind": ["b", "c"]}},
}


def domain(entries: dict[str, Any] = SPACE) -> Domain:
    space = SearchSpace.model_validate(entries)
    return Domain(space.distributions(), space.conditions(), space.defaults())


def loss(params: dict[str, Any]) -> float:
    extra = {"a": 0.3, "b": 0.1, "c": 0.5}[params["kind"]]
    if params["kind"] != "a":
        extra += (params["y"] - 0.2) ** 2
    return float((params["x"] - 0.7) ** 2 + 0.01 * (params["n"] - 13) ** 2 + extra)


def rows_of(count: int, seed: int = 0) -> Array:
    unit = np.random.default_rng(seed).uniform(size=(count, len(SPACE)))
    return domain().spread(unit)


def losses(rows: Array) -> Array:
    return np.array([loss(domain().decode(row)) for row in rows])


def models(rows: Array, values: Array) -> Posteriors:
    is_categorical = domain().is_categorical
    lengths = (np.array([0.5, 0.5, 1.0, 0.5]), np.array([1.0, 0.7, 0.8, 0.9]))
    given = [Hyperparameters(length, 1.0, 0.5, 1e-6) for length in lengths]
    return Posteriors([Posterior(rows, values, is_categorical, each) for each in given])


def test_log_h_is_the_logarithm_of_h() -> None:
    z = np.linspace(-8, 8, 50)
    assert np.allclose(log_h(z), np.log(norm.pdf(z) + z * norm.cdf(z)), rtol=1e-5, atol=1e-9)


def test_log_h_is_finite_where_h_is_zero() -> None:
    z = -np.logspace(0, 8, 200)
    found = log_h(z)
    assert np.isfinite(found).all()
    assert (np.diff(found) < 0).all(), "smaller, without a step, as z falls"
    # far out h is φ(z) / z²
    far = z < -1e3
    assert np.allclose(found[far], norm.logpdf(z[far]) - 2 * np.log(-z[far]), rtol=1e-9)


def test_the_gradient_of_the_acquisition_is_its_derivative() -> None:
    rows = rows_of(12)
    improvement = ExpectedImprovement(models(rows, losses(rows)))
    others = rows_of(5, seed=1)
    logs, gradients = improvement.log_with_gradient(others)
    assert np.allclose(logs, improvement.log(others))
    for row, gradient in zip(others, gradients, strict=True):
        expected = approx_fprime(row, lambda x: float(improvement.log(x[None])[0]), 1e-7)
        assert np.allclose(gradient[[0, 1, 3]], expected[[0, 1, 3]], rtol=1e-3, atol=1e-3)


def test_the_search_finds_no_worse_point_than_a_fine_grid() -> None:
    rows = rows_of(15)
    improvement = ExpectedImprovement(models(rows, losses(rows)))
    found = best_points(domain(), improvement, rows[:3], np.random.default_rng(0))
    steps = np.linspace(0, 1, 21)
    grid = np.array(list(itertools.product(steps, steps, range(3), steps)))
    best = improvement.log(domain().canonical(grid)).max()
    assert improvement.log(found[:1])[0] >= best - 1e-6
    assert (np.diff(improvement.log(found)) <= 1e-12).all(), "the most promising first"
    assert len(np.unique(found, axis=0)) == len(found)
    assert np.array_equal(domain().canonical(found), found)


def test_known_and_pending_points_are_proposed_only_if_there_is_no_other() -> None:
    tiny = domain(
        {
            "n": {"type": "int", "low": 1, "high": 3},
            "kind": {"type": "categorical", "choices": ["a", "b"]},
        }
    )
    grid = np.array(list(itertools.product([1 / 6, 0.5, 5 / 6], [0.0, 1.0])))
    every = tiny.canonical(grid)
    known, pending, left = every[:3], every[3:5], every[5]
    found = proposals(tiny, known, np.arange(3.0), pending, seed=1)[0]
    assert np.array_equal(found[0], left)
    found = proposals(tiny, every, np.arange(6.0), pending[:0], seed=1)[0]
    assert len(found), "where nothing is left, something known"


def test_proposals_approach_the_optimum_of_a_mixed_space() -> None:
    rows = rows_of(10)
    for step in range(20):
        row = proposals(domain(), rows, losses(rows), rows[:0], seed=step)[0][0]
        rows = np.concatenate([rows, row[None]])
    assert losses(rows).min() < 0.1 + 1e-3


def test_eight_parallel_proposals_differ_and_approach_the_optimum() -> None:
    rows = rows_of(10)
    for batch in range(3):
        pending = rows[:0]
        for step in range(8):
            row = proposals(domain(), rows, losses(rows), pending, seed=8 * batch + step)[0][0]
            pending = np.concatenate([pending, row[None]])
        assert len(np.unique(pending, axis=0)) == 8
        rows = np.concatenate([rows, pending])
    assert losses(rows).min() < 0.1 + 1e-2


FRESH = """
import json, sys
import numpy as np
from tests.unit.optimizer.sampling.test_gp_search import domain
from trialfleet.optimizer.sampling.gp.proposal import proposals
rows, values, pending = map(np.array, json.load(sys.stdin))
print(json.dumps(proposals(domain(), rows, values, pending, 3)[0][:5].tolist()))
"""


def test_another_process_proposes_exactly_the_same() -> None:
    rows = rows_of(20)
    values, pending = losses(rows), rows_of(3, seed=4)
    given = json.dumps([rows.tolist(), values.tolist(), pending.tolist()])
    proposals(domain(), rows, values, pending, 9)
    here = proposals(domain(), rows, values, pending, 3)[0][:5].tolist()
    environment = os.environ | {"PYTHONHASHSEED": "5", "PYTHONPATH": str(Path.cwd())}
    fresh = subprocess.run(
        [sys.executable, "-c", FRESH],
        input=given,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(fresh.stdout) == here
