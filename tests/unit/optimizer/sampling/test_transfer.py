"""Tests of transfer: weights, the prior mean, portfolios, points of other search spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.optimize import approx_fprime

from trialfleet.errors import TrialfleetError
from trialfleet.optimizer.sampling.gp import fitting
from trialfleet.optimizer.sampling.gp.domain import Array
from trialfleet.optimizer.sampling.gp.fitting import fit_teacher, posteriors
from trialfleet.optimizer.sampling.gp.posterior import Posterior
from trialfleet.optimizer.sampling.gp.standardized_results import standardize
from trialfleet.optimizer.sampling.gp.transfer import MOST_TEACHERS, Teachers
from trialfleet.optimizer.sampling.next_parameters import Suggestion, suggest
from trialfleet.optimizer.sampling.warm_start import (
    OWN_BEST,
    PreviousTask,
    PreviousTasks,
    previous_as_text,
    read_previous,
    usable_point,
)
from trialfleet.optimizer.space import SearchSpace

pytestmark = pytest.mark.slow


NUMBERS = np.array([False, False])
SPACE = SearchSpace.model_validate(
    {
        "rate": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
        "size": {"type": "int", "low": 1, "high": 64},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
    }
)


def rows_of(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(size=(count, 2))


def valley(rows: Array, x: float = 0.3, y: float = 0.7) -> Array:
    """Return a function of two numbers with its optimum at (x, y)."""
    return np.asarray((rows[:, 0] - x) ** 2 + 2 * (rows[:, 1] - y) ** 2)


def teacher(values: Array, rows: Array) -> Posterior:
    return Posterior(
        rows, standardize(values), NUMBERS, fit_teacher(rows, standardize(values), NUMBERS)
    )


def loss(point: dict[str, Any], rate: float = 1e-2, size: int = 20) -> float:
    away = np.log10(point["rate"] / rate) ** 2 + ((point["size"] - size) / 20) ** 2
    return float(away + 0.3 * (point["kind"] == "b"))


def task(region: str, count: int = 25, **optimum: Any) -> PreviousTask:
    """Return a previous task whose points are spread over the space."""
    random = np.random.default_rng(count)
    points = [
        {"rate": 10.0 ** random.uniform(-5, 0), "size": int(s), "kind": k}
        for s, k in zip(
            random.integers(1, 65, count), random.choice(["a", "b"], count), strict=True
        )
    ]
    losses = tuple(loss(point, **optimum) for point in points)
    return PreviousTask(f"demo/r0/{region}", region, tuple(points), losses)


def asked(
    history: list[FrozenTrial], previous: PreviousTasks | None, startup: int = 6
) -> Suggestion:
    return suggest(
        SPACE, history, direction="minimize", seed=1, startup_trials=startup, previous=previous
    )


def explored(count: int, previous: PreviousTasks | None, **optimum: Any) -> list[Suggestion]:
    """Return suggestions for successive trials, each with its result before the next."""
    history: list[FrozenTrial] = []
    found = []
    for _ in range(count):
        found.append(asked(history, previous))
        point = SPACE.active(found[-1].point)
        trial = create_trial(
            state=TrialState.COMPLETE,
            params=point,
            distributions=SPACE.distributions(),
            value=loss(point, **optimum),
        )
        history.append(trial)
    return found


# -- the model -------------------------------------------------------------------------------------


def test_a_task_with_a_similar_order_of_results_gets_more_weight_than_a_random_one() -> None:
    known, rows = rows_of(40, seed=1), rows_of(8, seed=2)
    shuffled = np.random.default_rng(3).permutation(valley(known))
    teachers = Teachers([teacher(shuffled, known), teacher(5 + 3 * valley(known, 0.35), known)])
    values = standardize(valley(rows))
    assert teachers.nearest_tasks(rows, values)[0] == 1
    found = posteriors(rows, values, NUMBERS, np.random.default_rng(0), teachers)
    nothing, much = found.mean_weights()
    assert much > 0.3
    assert nothing < much / 3
    others = rows_of(200, seed=4)
    alone = posteriors(rows, values, NUMBERS, np.random.default_rng(0))
    truth = (valley(others) - valley(rows).mean()) / valley(rows).std()
    means = [each.means_and_deviations(others)[0] for each in (found, alone)]
    errors = [np.abs(each.mean(axis=0) - truth).mean() for each in means]
    assert errors[0] < errors[1] * 2 / 3


def test_few_tasks_are_used_and_none_with_the_reverse_order_of_results() -> None:
    known, rows = rows_of(30, seed=1), rows_of(9, seed=2)
    alike = [teacher(valley(known, 0.3 + i / 100), known) for i in range(MOST_TEACHERS + 2)]
    opposite = teacher(-valley(known), known)
    found = Teachers([opposite, *alike]).nearest_tasks(rows, valley(rows))
    assert len(found) == MOST_TEACHERS
    assert 0 not in found


def test_the_gradients_of_a_mean_with_previous_tasks_are_its_derivatives() -> None:
    known, rows = rows_of(30, seed=1), rows_of(8, seed=2)
    teachers = Teachers([teacher(valley(known), known), teacher(valley(known, 0.5), known)])
    random = np.random.default_rng(0)
    found = posteriors(rows, standardize(valley(rows)), NUMBERS, random, teachers)
    at = np.array([0.4, 0.6])
    stacked = found.with_gradient(np.array([at, at + 0.1]))
    means, deviations, by_means, by_deviations = (values[:, 0] for values in stacked)
    assert np.allclose(means, found.means_and_deviations(at[None])[0][:, 0])
    assert np.allclose(deviations, found.means_and_deviations(at[None])[1][:, 0])
    for sample in range(len(means)):
        for which, gradients in enumerate((by_means, by_deviations)):
            expected = approx_fprime(
                at,
                lambda x, s=sample, i=which: float(found.means_and_deviations(x[None])[i][s, 0]),
                1e-7,
            )
            assert np.allclose(gradients[sample], expected, atol=1e-4)


def test_pending_points_do_not_change_a_mean_with_previous_tasks() -> None:
    known, rows, pending = rows_of(30, seed=1), rows_of(8, seed=2), rows_of(3, seed=5)
    teachers = Teachers([teacher(valley(known), known)])
    random = np.random.default_rng(0)
    found = posteriors(rows, standardize(valley(rows)), NUMBERS, random, teachers)
    others = rows_of(20, seed=6)
    means, _ = found.means_and_deviations(others)
    assert np.allclose(found.fantasize(pending).means_and_deviations(others)[0], means, atol=1e-5)


def test_a_portfolio_has_a_good_point_for_every_task() -> None:
    known = rows_of(60, seed=1)
    optima = [(0.1, 0.1), (0.12, 0.1), (0.9, 0.2), (0.5, 0.9)]
    teachers = Teachers([teacher(valley(known, *optimum), known) for optimum in optima])
    found = teachers.portfolio(3)
    assert len(found) == 3
    for x, y in optima:
        best = np.argsort(valley(found, x, y))[0]
        assert valley(known, x, y).argsort().argsort()[(known == found[best]).all(axis=1)] < 6
    assert len(teachers.portfolio(100)) <= 3 * len(optima)


# -- suggestions -----------------------------------------------------------------------------------


def test_defaults_come_first_then_the_best_of_the_region_then_of_other_regions() -> None:
    own, other = task("A"), task("B", rate=1e-4, size=50)
    found = [each.point for each in explored(1 + OWN_BEST, PreviousTasks((other, own), "A"))]
    assert found[0] == SPACE.defaults()
    order = np.argsort(own.losses)
    assert found[1] == own.points[order[0]]
    of_others = explored(2, PreviousTasks((other,), "A"))[1].point
    ranks = [loss(point, rate=1e-4, size=50) for point in (*other.points, of_others)]
    assert sorted(ranks).index(ranks[-1]) <= 3


def test_previous_tasks_save_trials_and_have_weights() -> None:
    tasks = (task("B", rate=2e-2, size=24), task("C", rate=5e-3, size=16, count=26))
    taught, alone = explored(8, PreviousTasks(tasks, "A")), explored(8, None)
    best = [min(loss(each.point) for each in found) for found in (taught, alone)]
    assert best[0] < best[1] / 3
    assert set(taught[-1].taught) <= {"demo/r0/B", "demo/r0/C"}
    assert sum(taught[-1].taught.values()) > 0.2
    assert all(each.taught == {} for each in alone)


def test_the_same_history_and_tasks_give_the_same_suggestion_from_new_objects() -> None:
    once, again = (explored(7, PreviousTasks((task("B"), task("C", count=26)), "A")) for _ in "12")
    assert once == again


def test_each_task_is_fitted_once_in_each_region_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 33 regions has its own search space. A fit takes 20 to 100 ms, so one serves all."""
    fits: list[Any] = []

    def counted(rows: Array, *others: Any) -> Any:
        fits.append(fits[0] if fits else fit_teacher(rows, *others))
        return fits[-1]

    monkeypatch.setattr(fitting, "fit_teacher", counted)
    previous = PreviousTasks(tuple(task(f"R{number}", count=2) for number in range(33)), "R0")
    spaces = [
        SearchSpace.model_validate({"rate": {"type": "float", "low": 1e-5, "high": high}})
        for high in np.linspace(1, 2, 33).tolist()
    ]
    first, *_ = [previous.find_teachers(space) for space in spaces]
    assert len(fits) == 33 * 33
    again = previous.find_teachers(spaces[0])
    assert len(fits) == 33 * 33
    assert first is not None
    assert again is not None
    rows = rows_of(5, seed=1)[:, :1]
    assert (first[1].means(rows) == again[1].means(rows)).all()


def test_only_parameters_of_both_spaces_count() -> None:
    assert usable_point(SPACE, {"rate": 0.1, "size": 3, "kind": "b", "gone": 7}) == {
        "rate": 0.1,
        "size": 3,
        "kind": "b",
    }
    assert usable_point(SPACE, {"rate": 0.1}) == {**SPACE.defaults(), "rate": 0.1}
    outsides: list[dict[str, Any]] = [{"rate": 2.0}, {"size": 65}, {"kind": "c"}, {"gone": 1}, {}]
    for outside in outsides:
        assert usable_point(SPACE, outside) is None
    foreign = PreviousTask("x/r/B", "B", ({"gone": 1}, {"rate": 9.0}), (1.0, 2.0))
    assert PreviousTasks((foreign,), "A").find_teachers(SPACE) is None
    assert explored(7, PreviousTasks((foreign,), "A"))[-1].taught == {}


def test_tasks_are_read_as_written_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "previous.json"
    assert read_previous(file) == ()
    written = task('Ærø / "b"\n')
    file.write_text(previous_as_text([written]))
    (found,) = read_previous(file)
    assert (found.name, found.region) == (written.name, written.region)
    assert (found.points, found.losses) == (written.points, written.losses)
    for text in ("", "{}", '{"tasks": [{"name": 1}]}', '{"tasks": 3}', "[1]"):
        file.write_text(text)
        with pytest.raises(TrialfleetError, match=r"previous\.json"):
            read_previous(file)
