"""Tests of suggestions: start-up design, model, pending and failed trials, reproducibility."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from trialfleet.optimizer.sampling.gp import proposal
from trialfleet.optimizer.sampling.gp.domain import Array, Domain
from trialfleet.optimizer.sampling.next_parameters import Point, in_startup, suggest
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.space import SearchSpace

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is imported later: as in the service

SQUARE = {
    "x": {"type": "float", "low": 0, "high": 1},
    "y": {"type": "float", "low": 0, "high": 1},
}
MIXED = {
    "rate": {"type": "float", "low": 1e-5, "high": 1, "log": True},
    "drop": {"type": "float", "low": 0, "high": 0.5, "step": 0.1},
    "units": {"type": "int", "low": 8, "high": 64, "step": 8},
    "rows": {"type": "int", "low": 1, "high": 5_000_000, "log": True},
    "flag": {"type": "categorical", "choices": [True, False]},
    "kind": {"type": "categorical", "choices": ["sgd", "adam", "lion"]},
    "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"kind": ["sgd", "lion"]}},
    "epochs": 10,
}
TINY = {
    "a": {"type": "categorical", "choices": ["x", "y"]},
    "n": {"type": "int", "low": 1, "high": 3, "when": {"a": ["x"]}},
}  # four points: x1, x2, x3, y


def make(entries: dict[str, Any]) -> SearchSpace:
    return SearchSpace.model_validate(entries)


def trial(
    space: SearchSpace, point: Point, state: TrialState, value: float | None = None
) -> FrozenTrial:
    active = space.active(point)
    distributions = {name: space.distributions()[name] for name in active}
    return create_trial(state=state, params=active, distributions=distributions, value=value)


def ask(space: SearchSpace, history: Sequence[FrozenTrial], **more: Any) -> Point:
    options: dict[str, Any] = {"direction": "minimize", "seed": 7, "startup_trials": 6} | more
    return suggest(space, history, **options).point


def explored(
    space: SearchSpace, objective: Callable[[Point], float], count: int, **more: Any
) -> list[FrozenTrial]:
    history: list[FrozenTrial] = []
    for _ in range(count):
        point = ask(space, history, **more)
        history.append(trial(space, point, TrialState.COMPLETE, objective(point)))
    return history


def bowl(point: Point) -> float:
    return sum((float(value) - 0.3) ** 2 for value in point.values())


def distance(left: Point, right: Point) -> float:
    return max(abs(float(left[name]) - float(right[name])) for name in left)


# ---------------------------------------------------------------- start-up


def test_the_first_point_has_the_defaults() -> None:
    space = make(MIXED)
    assert ask(space, []) == space.defaults()


def test_the_design_puts_one_point_into_every_eighth_of_every_parameter() -> None:
    space = make(SQUARE)
    history = explored(space, bowl, 9, startup_trials=9)
    for name in space.parameters:
        assert {int(8 * float(t.params[name])) for t in history[1:]} == set(range(8))


def test_the_design_does_not_depend_on_results_and_pending_trials() -> None:
    space = make(SQUARE)
    history = explored(space, bowl, 5)
    other = explored(space, lambda p: -bowl(p), 5)
    pending = [trial(space, t.params, TrialState.RUNNING) for t in history]
    assert ask(space, history) == ask(space, other) == ask(space, pending)


def test_another_seed_gives_another_design() -> None:
    history = explored(make(SQUARE), bowl, 1)
    assert ask(make(SQUARE), history, seed=1) != ask(make(SQUARE), history, seed=2)


@pytest.mark.parametrize(
    ("complete", "failed", "running", "expected"),
    [
        (5, 0, 0, True),  # not all asked
        (2, 0, 3, True),
        (3, 0, 3, False),  # all asked, half of them with results
        (2, 0, 8, True),  # many lanes, few results
        (2, 4, 0, True),  # failures are not results
        (3, 3, 0, False),
        (6, 0, 0, False),
    ],
)
def test_the_model_starts_when_all_startup_trials_are_asked_and_half_have_results(
    complete: int, failed: int, running: int, expected: bool
) -> None:
    space = make(SQUARE)
    point = space.defaults()
    history = (
        [trial(space, point, TrialState.COMPLETE, 1.0)] * complete
        + [trial(space, point, TrialState.FAIL)] * failed
        + [trial(space, point, TrialState.RUNNING)] * running
    )
    assert in_startup(history, 6) is expected


def test_without_any_result_the_design_continues() -> None:
    space = make(SQUARE)
    history: list[FrozenTrial] = []
    for _ in range(12):
        history.append(trial(space, ask(space, history, startup_trials=1), TrialState.FAIL))
    assert len({tuple(t.params.values()) for t in history}) == 12


# ---------------------------------------------------------------- the model


@pytest.mark.slow
def test_the_model_gets_closer_to_the_optimum_than_the_design() -> None:
    space = make(SQUARE)
    history = explored(space, bowl, 14)
    design = explored(space, bowl, 14, startup_trials=14)
    best, by_design = (min(t.value or 0.0 for t in x) for x in (history, design))
    assert best < 1e-3 < by_design


def test_maximizing_is_minimizing_the_negative() -> None:
    space = make(SQUARE)
    history = explored(space, bowl, 8)
    opposite = [
        trial(space, t.params, TrialState.COMPLETE, -t.value)
        for t in history
        if t.value is not None
    ]
    lowest = ask(space, history)
    highest = ask(space, opposite, direction="maximize")
    assert distance(lowest, highest) < 1e-6


@pytest.mark.slow
def test_points_asked_while_others_are_pending_differ_from_one_another() -> None:
    space = make(SQUARE)
    history = explored(space, bowl, 8)
    for _ in range(6):
        history.append(trial(space, ask(space, history), TrialState.RUNNING))
    pending = [t.params for t in history if t.state == TrialState.RUNNING]
    assert min(distance(a, b) for a, b in itertools.combinations(pending, 2)) > 0.01


@pytest.mark.slow
def test_a_point_that_failed_is_not_proposed_again() -> None:
    space = make(SQUARE)
    history = explored(space, bowl, 10)
    proposed = ask(space, history)
    failed, pruned = (
        [*history, trial(space, proposed, state)] for state in (TrialState.FAIL, TrialState.PRUNED)
    )
    away, near = (
        [distance(ask(space, trials, seed=seed), proposed) for seed in range(5)]
        for trials in (failed, pruned)
    )
    assert min(away) > 0.02
    assert min(near) < 0.02, "the failure makes the difference"


@pytest.mark.slow
def test_an_area_of_failed_trials_is_avoided_although_losses_fall_towards_it() -> None:
    space = make(SQUARE)
    history: list[FrozenTrial] = []
    for _ in range(16):
        point = ask(space, history)
        x = float(point["x"])
        outcome = (TrialState.FAIL, None) if x < 0.4 else (TrialState.COMPLETE, x)
        history.append(trial(space, point, *outcome))
    assert sum(t.state == TrialState.FAIL for t in history[-6:]) <= 2


@pytest.mark.parametrize("values", [[0.0] * 8, [1e300, -1e300] * 4, [1e-300 * i for i in range(8)]])
def test_flat_and_extreme_results_are_allowed(values: list[float]) -> None:
    space = make(SQUARE)
    design = explored(space, bowl, 8, startup_trials=8)
    pairs = zip(design, values, strict=True)
    history = [trial(space, t.params, TrialState.COMPLETE, value) for t, value in pairs]
    point = ask(space, history)
    assert all(0 <= float(value) <= 1 for value in point.values())


def test_abandoned_trials_are_not_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that was stopped early is in the model with its predicted result."""
    space = make({"x": {"type": "float", "low": 0, "high": 1}})
    history = [
        trial(space, {"x": 0.1}, TrialState.COMPLETE, 1.0),
        trial(space, {"x": 0.2}, TrialState.PRUNED),
        trial(space, {"x": 0.3}, TrialState.FAIL),
        trial(space, {"x": 0.4}, TrialState.RUNNING),
        trial(space, {"x": 0.5}, TrialState.PRUNED, 0.7),
    ]
    seen: list[Any] = []

    def proposals(
        domain: Domain, rows: Array, values: Array, pending: Array, seed: int, *more: Any
    ) -> tuple[Array, list[float]]:
        seen.extend([rows.tolist(), values.tolist(), pending.tolist()])
        return real(domain, rows, values, pending, seed, *more)

    real = proposal.proposals
    monkeypatch.setattr(proposal, "proposals", proposals)
    ask(space, history, startup_trials=1)
    assert seen == [[[0.1], [0.3], [0.5]], [1.0, 1.0, 0.7], [[0.4]]]


@pytest.mark.slow
def test_suggestions_stay_inside_the_space_and_keep_their_types() -> None:
    space = make(MIXED)
    history = explored(space, lambda p: math.log(float(p["rate"])) ** 2, 14, startup_trials=8)
    for earlier in history:
        point = space.canonical(earlier.params)
        assert {name: type(value) for name, value in point.items()} == {
            "rate": float,
            "drop": float,
            "units": int,
            "rows": int,
            "flag": bool,
            "kind": str,
            "momentum": float,
        }
        for name, entry in space.parameters.items():
            assert entry.resolve(point[name]) == point[name]
    assert len({repr(t.params) for t in history}) == len(history)


def test_every_point_of_a_small_space_is_tried_once_before_any_is_repeated() -> None:
    space = make(TINY)
    history = explored(space, lambda p: len(repr(p)), 5, startup_trials=2)
    first = [repr(t.params) for t in history[:4]]
    assert len(set(first)) == 4
    assert repr(history[4].params) in first


def test_the_only_untried_point_of_a_large_space_is_found() -> None:
    space = make({"n": {"type": "int", "low": 1, "high": 1500}})
    history = [trial(space, {"n": n}, TrialState.RUNNING) for n in range(1, 1501) if n != 777]
    assert ask(space, history) == {"n": 777}


# ---------------------------------------------------------------- purity

FRESH = """
import json, sys
from optuna.trial import TrialState, create_trial
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.sampling.next_parameters import suggest
entries, trials, seed = json.load(sys.stdin)
space = SearchSpace.model_validate(entries)
distributions = space.distributions()
history = [
    create_trial(
        state=TrialState[state], params=params, value=value,
        distributions={name: distributions[name] for name in params},
    )
    for state, params, value in trials
]
point = suggest(space, history, direction="minimize", seed=seed, startup_trials=6).point
print(json.dumps(point))
"""


@pytest.mark.slow
def test_a_new_process_suggests_the_same_as_a_process_with_earlier_suggestions() -> None:
    space = make(MIXED)
    history = explored(space, lambda p: float(p["drop"]), 9)
    history[3] = trial(space, history[3].params, TrialState.FAIL)
    history += [trial(space, ask(space, history), TrialState.RUNNING)]
    before = repr(history)
    here = ask(space, history)
    assert repr(history) == before, "a suggestion changes nothing"
    rows = [(t.state.name, t.params, t.value) for t in history]
    fresh = subprocess.run(
        [sys.executable, "-c", FRESH],
        input=json.dumps([MIXED, rows, 7]),
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(fresh.stdout) == here
    assert not fresh.stderr, "nothing is logged or warned of"


def test_a_stable_seed_is_31_bits_and_never_changes_between_releases() -> None:
    assert stable_seed(42, "flights/2026-11-20T10-00-00/JFK", 17) == 71762835
    assert len({stable_seed(1, "a", i) for i in range(1000)}) == 1000
    assert all(0 <= stable_seed(i) < 2**31 for i in range(1000))


def test_parts_of_a_seed_are_not_concatenated() -> None:
    assert stable_seed("a", "b") != stable_seed("ab")
    assert stable_seed(1, 23) != stable_seed(12, 3)
