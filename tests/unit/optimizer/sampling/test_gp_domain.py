"""Tests of points as rows: decoding, canonical rows, conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, IntDistribution

from tests.search_spaces import value_at
from trialfleet.optimizer.sampling.gp.domain import Column, Domain
from trialfleet.optimizer.space import SearchSpace

pytestmark = pytest.mark.slow


SPACE = SearchSpace.model_validate(
    {
        "rate": {"type": "float", "low": 1e-5, "high": 1, "log": True},
        "drop": {"type": "float", "low": 0, "high": 0.5, "step": 0.1},
        "units": {"type": "int", "low": 8, "high": 64, "step": 8},
        "rows": {"type": "int", "low": 1, "high": 5_000_000, "log": True},
        "flag": {"type": "categorical", "choices": [True, False]},
        "kind": {"type": "categorical", "choices": ["sgd", "adam", "lion"]},
        "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"kind": ["sgd", "lion"]}},
        "nesterov": {
            "type": "categorical",
            "choices": ["yes", "no"],
            "default": "no",
            "when": {"units": [8, 64], "flag": True},
        },
    }
)


def domain(space: SearchSpace = SPACE) -> Domain:
    return Domain(space.distributions(), space.conditions(), space.defaults())


def from_unit(space: SearchSpace, unit: list[float]) -> dict[str, Any]:
    at = zip(space.parameters.items(), unit, strict=True)
    return space.canonical({name: value_at(entry, u) for (name, entry), u in at})


units = st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8)


@given(units)
@settings(max_examples=200)
def test_every_point_is_decoded_from_its_row(unit: list[float]) -> None:
    point = from_unit(SPACE, unit)
    row = domain().encode([point])[0]
    assert np.allclose(domain().canonical(row[None])[0], row)
    found = domain().decode(row)
    for name in SPACE.parameters:
        if isinstance(point[name], float):
            assert np.isclose(found[name], point[name], rtol=1e-9)
        else:
            assert found[name] == point[name]
            assert type(found[name]) is type(point[name])


@given(units)
@settings(max_examples=200)
def test_conditions_hold_as_in_the_search_space(unit: list[float]) -> None:
    row = domain().spread(np.array([unit]))[0]
    point = domain().decode(row)
    snapped = {name: entry.nearest(point[name]) for name, entry in SPACE.parameters.items()}
    active = domain().active(row[None])[0]
    assert list(SPACE.active(snapped)) == [n for n, x in zip(SPACE.root, active, strict=True) if x]
    defaults = domain().defaults
    assert (row[~active] == defaults[~active]).all()


def test_each_value_of_a_grid_has_the_same_share_of_the_cube() -> None:
    unit = (np.arange(1200)[:, None] + 0.5) / 1200
    for name, count in (("drop", 6), ("units", 8), ("kind", 3)):
        one = Domain({name: SPACE.distributions()[name]})
        values, shares = np.unique(one.spread(unit), return_counts=True)
        assert len(values) == count
        assert set(shares) == {1200 // count}


def test_a_grid_of_many_values_is_searched_as_a_continuous_one() -> None:
    found = dict(zip(SPACE.parameters, domain().is_continuous, strict=True))
    assert [name for name, is_continuous in found.items() if is_continuous] == [
        "rate",
        "rows",
        "momentum",
    ]


def test_a_parameter_with_one_value_always_has_it() -> None:
    column = Column.from_distribution(IntDistribution(3, 3))
    assert column.count == 1
    assert column.decode(np.array([0.0, 0.4, 1.0])).tolist() == [3, 3, 3]


def test_values_outside_a_logarithmic_range_become_its_exact_limits() -> None:
    column = Column.from_distribution(FloatDistribution(3e-4, 0.03, log=True))
    assert column.decode(np.array([-0.1, 0.0, 1.0, 1.1])).tolist() == [3e-4, 3e-4, 0.03, 0.03]
