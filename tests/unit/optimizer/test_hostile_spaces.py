"""Every accepted search space works with ask and tell; the others are refused."""

from __future__ import annotations

import json
import math
import warnings
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import Assignment, Complete, RegionSettings
from trialfleet.optimizer.sampling.names import Sampler
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import open_storage
from trialfleet.optimizer.storage_transactions import TrialStorage

pytestmark = pytest.mark.slow

TRIALS, STARTUP = 5, 3
EDGES = [0.0, 1.0, 0.1, 1 / 3, 1e-5, 1e-16, 1e16, 2.0**53, 5e-324, 2.3e-308, 1e300, 1.7e308]
INTEGERS = [0, 1, 2, 99, 10**6, 2**31, 2**53 - 1, 2**53]
SCALARS = [0, 1, True, False, -0.0, 0.5, 1e308, 2**64, 10**400, "", "a", "\x00", "\ud800", "é"]


def above(number: float, steps: int) -> float:
    """Return the double a number of steps above another."""
    for _ in range(steps):
        number = math.nextafter(number, math.inf)
    return number


@st.composite
def doubles(draw: st.DrawFn) -> float:
    near = draw(st.sampled_from(EDGES)) * draw(st.sampled_from([1, 1, -1]))
    return above(near, draw(st.integers(0, 3)))


@st.composite
def floats(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted([draw(doubles()), draw(doubles())])
    entry = {"type": "float", "low": low, "high": high}
    kind = draw(st.sampled_from(["plain", "log", "near", "step"]))
    if kind == "near":
        entry["high"] = above(low, draw(st.integers(1, 5)))
    if kind == "step":
        step = abs(draw(doubles()))
        count = draw(st.sampled_from([1, 2, 51, 1000, 10**9, 10**15]))
        entry |= {"step": step, "high": float(Decimal(repr(low)) + count * Decimal(repr(step)))}
    return entry | ({"log": True} if kind == "log" else {})


@st.composite
def integers(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted([draw(st.sampled_from([-1, 1])) * draw(st.sampled_from(INTEGERS)),
                        draw(st.sampled_from(INTEGERS))])  # fmt: skip
    entry = {"type": "int", "low": low, "high": high}
    kind = draw(st.sampled_from(["plain", "log", "step"]))
    if kind == "step":
        step = draw(st.sampled_from([1, 2, 10**6, 2**52]))
        entry |= {"step": step, "high": low + step * draw(st.integers(1, 51))}
    return entry | ({"log": True} if kind == "log" else {})


choices = st.lists(st.sampled_from(SCALARS), min_size=2, max_size=4, unique_by=repr).map(
    lambda values: {"type": "categorical", "choices": values}
)


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Draw valid spaces with numbers at the limits of doubles."""
    entries = draw(st.lists(st.one_of(floats(), integers(), choices), min_size=1, max_size=3))
    try:
        return SearchSpace.model_validate({f"p{i}": entry for i, entry in enumerate(entries)})
    except ValidationError:
        assume(False)  # noqa: FBT003
        raise


def ask_and_tell(space: SearchSpace, storage: TrialStorage, sampler: Sampler) -> None:
    asks = RegionSettings(
        metric="loss", direction="minimize", region="A", trials=TRIALS, startup_trials=STARTUP,
        max_failures=0, hours=None, seed=1, sampler=sampler,
    )  # fmt: skip
    study = RegionStudy(storage, "s", space, asks)
    for trial in range(TRIALS):
        answer = study.ask(f"n{trial}")
        assert isinstance(answer, Assignment)
        json.dumps(answer.params, allow_nan=False, ensure_ascii=False).encode()
        for name, entry in space.parameters.items():
            value: Any = answer.params[name]
            assert entry.resolve(value) == value
            assert type(entry.resolve(value)) is type(value)
        metrics = {"loss": float(trial % 3)}
        study.tell(f"n{trial}", Complete(metrics=metrics, seconds=1.0, device=None))


@settings(max_examples=8)
@given(spaces())
def test_our_sampler_works_with_every_accepted_space(space: SearchSpace) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # an overflow, say
        ask_and_tell(space, TrialStorage("sqlite://"), "RegionSampler")


@settings(max_examples=5)
@given(spaces(), st.sampled_from(["TPESampler", "RandomSampler"]))
def test_optunas_samplers_and_a_database_work_with_every_accepted_space(
    space: SearchSpace, sampler: Sampler
) -> None:
    ask_and_tell(space, open_storage("sqlite://"), sampler)
