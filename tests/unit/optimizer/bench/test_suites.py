"""Tests of the suites: measures, functions, rivals."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import optuna
import pytest
from optuna._gp.acqf import LogEI
from optuna.samplers import GPSampler

from tests.bench.optimizer.families import Task, random_point
from tests.bench.optimizer.runs import followed, known_lines
from tests.bench.optimizer.suites import __main__ as bench
from tests.bench.optimizer.suites import measures, problems
from tests.bench.optimizer.suites.one_run import Run
from tests.bench.optimizer.suites.problems import SUITES, problem
from tests.bench.optimizer.suites.rivals import ENTRANTS, Believer
from tests.bench.optimizer.suites.tuned import learner
from trialfleet.optimizer.space import SearchSpace

SPACE = {
    "rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "count": {"type": "int", "low": 0, "high": 7},
    "width": {"type": "int", "low": 4, "high": 64, "log": True},
    "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
}


def run(rival: str, instance: int, regrets: list[float], suite: str = "s") -> Run:
    return Run(
        rival=rival,
        suite=suite,
        function="1",
        instance=instance,
        noisy=False,
        parallel=8,
        regrets=regrets,
        seconds=[0.0] * (len(regrets) // 2) + [0.5] * (len(regrets) - len(regrets) // 2),
    )


def bowl(name: str = "bowl") -> Task:
    def loss(x: Any) -> float:
        kinds = {"a": 0.3, "b": 0.0, "c": 1.0}
        away = (math.log10(x["rate"]) + 2.5) ** 2 + 0.1 * (x["count"] - 6) ** 2
        return float(away + 0.1 * (math.log2(x["width"]) - 4) ** 2 + kinds[x["kind"]])

    return Task(name, SPACE, loss, 0.0, 1.0, 0.0)


def test_a_tie_is_half_a_win_and_a_tiny_regret_counts_as_zero() -> None:
    mine, others = np.array([0.1, 0.3, 0.2, 1e-9]), np.array([0.2, 0.1, 0.2, 0.0])
    assert measures.won(mine, others).tolist() == [1.0, 0.0, 0.5, 0.5]
    assert measures.share(np.ones(7)) == "**100%** (100% to 100%)"
    assert measures.share(np.array([1.0, 0.0] * 50)) == "**50%** (40% to 60%)"


def test_a_lower_regret_reaches_more_of_the_targets() -> None:
    shares = measures.reached(np.array([[2.0, 1.0, 0.1, 1e-5], [2.0, 2.0, 2.0, 2.0]]))
    assert shares.shape == (2, 4)
    assert shares[0] == pytest.approx([0, 1 / 41, 11 / 41, 1])
    assert shares[1].tolist() == [0, 0, 0, 0]


def test_rivals_are_compared_only_on_problems_that_all_of_them_have_run() -> None:
    runs = [run("RegionSampler", 1, [0.5, 0.1]), run("RegionSampler", 2, [0.5, 0.1])]
    runs += [run("other", 2, [0.5, 0.4]), run("other", 3, [0.5, 0.4]), run("far", 2, [1, 1], "t")]
    found = measures.by_rival(runs, "s", ["RegionSampler", "far", "other"])
    assert {name: list(each) for name, each in found.items()} == {
        "RegionSampler": [("1", 2)],
        "other": [("1", 2)],
    }
    rows = measures.table(found, "RegionSampler").splitlines()
    assert rows[2] == "| RegionSampler |  | 1 | 1.0e-01 | 27% | 0.50 |"
    assert rows[3].startswith("| other | **100%** (100% to 100%) | **0.25** (0.25 to 0.25) | 4.0e-")


def test_the_chart_shows_shares_of_targets() -> None:
    runs = [run("RegionSampler", i, [1.0, 0.1 / i, 0.01]) for i in (1, 2, 3)]
    drawn = measures.drawn(measures.by_rival(runs, "s", ["RegionSampler"]))
    svg = ET.fromstring(drawn)  # noqa: S314
    line = svg.find("{*}polyline")
    assert line is not None
    heights = [float(point.split(",")[1]) for point in line.get("points", "").split()]
    assert heights[0] > heights[1] > heights[2]
    marks = [text.text for text in svg.findall("{*}text")]
    assert {"0", "0.1", "0.5", "RegionSampler", "share of targets reached"} <= {*marks}


def test_an_incomplete_last_line_is_removed_from_the_results(tmp_path: Path) -> None:
    file = tmp_path / "results"
    assert known_lines(file) == []
    file.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert known_lines(file) == [{"a": 1}, {"a": 2}]
    assert file.read_text() == '{"a": 1}\n{"a": 2}\n'


def test_development_and_held_out_functions_differ_and_cover_coco() -> None:
    numbers = {str(number) for number in range(1, 25)}
    for name, suite in SUITES.items():
        assert not {*suite.development} & {*suite.held_out}
        assert name == "tuned" or {*suite.development, *suite.held_out} == numbers
    assert [len(SUITES["bbob-3"].development), len(SUITES["bbob-3"].held_out)] == [12, 12]


def test_the_best_learning_rate_depends_on_the_kind_of_the_learner() -> None:
    space, loss = learner(np.random.default_rng(1))
    middle = SearchSpace.model_validate(space).defaults()
    rates = np.logspace(-5, 0, 101)
    best = {
        kind: rates[np.argmin([loss({**middle, "kind": kind, "rate": rate}) for rate in rates])]
        for kind in space["kind"]["choices"]
    }
    assert best["sgd"] > 3 * best["adam"]


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["bbob-mixint-5", "bbob-mixint-10", "bbob-3"])
def test_no_random_point_is_better_than_cocos_optimum(suite: str) -> None:
    pytest.importorskip("cocoex", reason=problems.INSTALL)
    for function in ("1", "5", "15", "23"):
        given = problem(suite, function, 2, noisy=True)
        space = SearchSpace.model_validate(given.space)
        assert len(space.parameters) == int(suite.rpartition("-")[2])
        assert given.noise == pytest.approx(0.1 * given.typical)
        random = np.random.default_rng(5)
        points = [random_point(given.space, random) for _ in range(300)]
        assert min(map(given.loss, points)) > given.optimum
    whole = [entry.type for entry in space.parameters.values()].count("int")
    assert whole == {"bbob-mixint-5": 4, "bbob-mixint-10": 8, "bbob-3": 0}[suite]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore"
)  # from the libraries: experimental arguments, fits that end early
@pytest.mark.parametrize("name", sorted({*ENTRANTS} - {"HEBO"}))
def test_every_rival_stays_in_the_space_improves_and_is_reproducible(name: str) -> None:
    if why := ENTRANTS[name].missing():
        pytest.skip(why)
    space = SearchSpace.model_validate(SPACE)
    result = followed(bowl(), ENTRANTS[name].made(space, 3, 16), 16, 3, 3)
    assert all(space.canonical(point) == point for point in result.points)
    assert all(isinstance(point["count"], int) for point in result.points)
    assert len({str(point) for point in result.points}) > 12
    assert result.regrets[-1] < result.regrets[2]
    again = followed(bowl(), ENTRANTS[name].made(space, 3, 16), 16, 3, 3)
    assert again.losses == result.losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_believer_fantasizes_pending_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    whole = GPSampler._optimize_acqf

    def kept(sampler: GPSampler, acqf: Any, best: Any) -> Any:
        seen.append(acqf)
        return whole(sampler, acqf, best)

    monkeypatch.setattr(GPSampler, "_optimize_acqf", kept)
    study = optuna.create_study(sampler=Believer(seed=1, n_startup_trials=4))
    space = SearchSpace.model_validate(SPACE).distributions()
    asked = [study.ask(space) for _ in range(4)]
    for trial in asked:
        study.tell(trial, bowl().loss(trial.params))
    for _ in range(3):
        study.ask(space)
    assert [type(acqf) for acqf in seen] == [LogEI] * 3
    model = seen[-1]._gpr
    predicted, _ = model.posterior(model._X_all[4:])
    assert model._y_all[4:, 0].tolist() == pytest.approx(predicted.tolist(), abs=1e-4)
    assert seen[-1]._threshold == pytest.approx(float(model._y_all.max()))


@pytest.mark.slow
def test_a_restarted_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    results = tmp_path / "results"
    size = "--suites tuned --functions learner --instances 2 --trials 5 --parallel 2 --processes 1"
    both = [*size.split(), "--rivals", "RegionSampler", "RandomSampler", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["suites", *both])
    assert bench.main() == 0
    text = results.read_text()
    assert text.count("\n") == 4
    table = capsys.readouterr().out
    assert "*tuned*: 1 functions for development, 2 problems, without noise" in table
    assert "| RandomSampler | **" in table
    results.write_text(text[:-30])
    assert bench.main() == 0
    assert results.read_text().count("\n") == 4
    assert results.read_text().splitlines()[:3] == text.splitlines()[:3]
