"""The gate: its rule, and what a region ends with whatever becomes of its job. No pool needed."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from tests.conftest import MakeRun
from trialfleet import InputError, Run, Study
from trialfleet.nodes import trial
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_text, shares_rows_with_champion
from trialfleet.workflows.cli.watching import show_end
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.control.models.retention import indispensable
from trialfleet.workflows.control.scripts.gate import measured as measured_of
from trialfleet.workflows.control.scripts.node_scripts import NodeScripts
from trialfleet.workflows.control.scripts.publish_node import publish_region
from trialfleet.workflows.facts.journal.journal import Ending, ending_with_model
from trialfleet.workflows.facts.models.approval import awaiting
from trialfleet.workflows.facts.models.history import changes
from trialfleet.workflows.facts.models.listing import Standing, models_on
from trialfleet.workflows.facts.models.verdict import (
    BASELINE,
    CHALLENGER,
    CHAMPION,
    ComparedModel,
    Verdict,
)
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder, TrialFolder
from trialfleet.workflows.facts.run_folder.graph import EXITS, graph_of
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.lookup import FoundRun
from trialfleet.workflows.rules.gate_decision import (
    Measured,
    Rule,
    bootstrap,
    decide,
    passed_of,
    rule_of,
)
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.reader import StatusReader
from trialfleet.workflows.views.report.groups import groups_of
from trialfleet.workflows.views.report.reading import read_report
from trialfleet.workflows.views.report.summary import summary_table
from trialfleet.workflows.views.report.views import attention, header
from trialfleet.workflows.views.terminal.run_list import list_runs, runs_table
from trialfleet.workflows.views.terminal.status_view import run_view
from trialfleet.workflows.views.why.answer import Answer
from trialfleet.workflows.views.why.region_rules import explain_region
from trialfleet.workflows.views.why.witnesses import RunFactsReader

pytestmark = pytest.mark.slow


# The rule


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


def measured(value: float, losses: Any = None) -> Measured:
    return Measured(
        metrics={"auc": value}, losses=None if losses is None else np.array(losses, dtype=float)
    )


def verdict(of: Rule, champion: Measured, challenger: Measured, **more: Measured) -> Verdict:
    models = {CHAMPION: champion, CHALLENGER: challenger, **more}
    return decide(of, models, champion="r1", challenger="r2")


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
def test_one_row_that_makes_the_metric_four_times_worse_is_no_chance(rows: int) -> None:
    """A third of all samples don't draw that row: the interval begins below zero."""
    asked = rule(metric="rmse", direction="minimize", tolerance=0.01)
    old = losses(0, 0.5, rows)
    new = old + np.random.default_rng(1).normal(0, 0.02, rows)
    new[7] += 15 * old.sum()
    pair = {
        name: Measured(metrics={"rmse": float(np.sqrt(each.mean()))}, losses=each)
        for name, each in ((CHAMPION, old), (CHALLENGER, new))
    }
    assert pair[CHALLENGER].metrics["rmse"] > 3.9 * pair[CHAMPION].metrics["rmse"]
    found = decide(asked, pair, champion="r1", challenger="r2")
    assert found.interval
    assert found.interval[0] < 0
    assert not found.promoted
    assert "a few rows may cause that, but chance alone does not" in found.why


@pytest.mark.parametrize(
    ("challenger", "is_worse", "words"),
    [
        (0.79, True, "the gate let a model pass that measured worse: auc 0.79, champion 0.8; that"),
        (0.81, False, "the gate let it pass: auc 0.81, champion 0.8"),
    ],
)
def test_what_is_told_of_a_model_that_passed(challenger: float, is_worse: bool, words: str) -> None:
    pair = measured(0.80, losses(0, 0.5)), measured(challenger, losses(1, 0.5))
    found = passed_of(rule(), verdict(rule(), *pair))
    assert found
    assert found.is_worse is is_worse
    assert str(found).startswith(words)
    assert passed_of(rule(), verdict(rule(), measured(0.8), measured(0.7))) is None


def test_a_metric_that_is_worse_by_more_than_chance_does_not() -> None:
    found = verdict(rule(), measured(0.80, losses(0, 0.5)), measured(0.70, losses(1, 0.7)))
    assert not found.promoted
    assert "with 95% confidence" in found.why
    assert found.interval
    assert 0.1 < found.interval[0] < 0.2 < found.interval[1]


def test_a_model_that_is_worse_by_a_hair_is_told_which_tolerance_it_needs() -> None:
    one = losses(0, 0.5)
    asked = rule(metric="rmse", direction="minimize")
    pair = {"rmse": 165.2}, {"rmse": 165.2 + 4.196e-05}
    old, new = Measured(metrics=pair[0], losses=one), Measured(metrics=pair[1], losses=one + 0.006)
    found = decide(asked, {CHAMPION: old, CHALLENGER: new}, champion="r1", challenger="r2")
    assert not found.promoted
    assert "rmse 165.20004, champion 165.2: worse by 4.196e-05" in found.why
    assert "its losses per row are higher by at least 0.006 on average with 95%" in found.why
    assert found.why.endswith(
        "if such a small loss is acceptable, set gate.tolerance, to 5e-05 for example"
    )
    given = rule(metric="rmse", direction="minimize", tolerance=5e-05)
    assert decide(given, {CHAMPION: old, CHALLENGER: new}, champion="", challenger="").promoted
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
    assert ", champion " in worse.why  # and how good the model in force is on these rows
    assert verdict(rule(baseline=False), champion, guessing, **{BASELINE: constant}).promoted
    learnt = measured(0.7, losses(1, 0.3))
    assert verdict(rule(), champion, learnt, **{BASELINE: constant}).promoted


@pytest.mark.parametrize("name", [CHAMPION, CHALLENGER])
def test_a_model_without_the_metric_is_named(name: str) -> None:
    models = {CHAMPION: measured(0.8), CHALLENGER: measured(0.9)}
    models[name] = Measured(metrics={"loss": 1.0})
    found = decide(rule(), models, champion="r1", challenger="r2")
    assert (found.promoted, found.why) == (
        False,
        f"the {name} has no number 'auc'; it has: loss",
    )


def unseen(champion: tuple[float, float], challenger: tuple[float, float], share: float) -> Verdict:
    """The verdict on models of a loss where the champion knows the values, and where it doesn't."""
    rows = 1000
    is_new = np.arange(rows) < share * rows
    noise = 0.1 * np.random.default_rng(0).normal(size=rows)
    each = {
        name: np.where(is_new, losses[1], losses[0]) + noise
        for name, losses in (("champion", champion), ("challenger", challenger))
    }
    found = {
        name: Measured(metrics={"loss": each[name].mean()}, losses=each[name]) for name in each
    }
    found["champion"] = replace(found["champion"], note=NEW)
    for name, losses in each.items():
        known = losses[~is_new]
        metrics = {"loss": known.mean()} if len(known) else {}
        found[f"{name}_seen"] = Measured(metrics=metrics, losses=known)
    of = rule(metric="loss", direction="minimize")
    return decide(of, found, champion="r1", challenger="r2")


NEW = "many rows hold values that the champion never saw"


@pytest.mark.parametrize(
    ("champion", "challenger", "share", "promoted", "words"),
    [
        ((1, 9), (1, 1), 0.1, True, NEW),  # a new shop, and the new model knows it
        ((1, 9), (2, 1), 0.4, False, "on the rows that the champion can know: loss 1.99"),
        ((1, 9), (1, 1), 0.6, False, "which is no fair comparison"),
        ((1, 9), (2, 2), 1.0, False, "which is no fair comparison"),
        ((1, 1), (2, 2), 0.1, False, "worse by 1"),
    ],
)
def test_a_challenger_has_to_pass_on_what_the_champion_can_know(
    champion: Any, challenger: Any, share: float, promoted: bool, words: str
) -> None:
    found = unseen(champion, challenger, share)
    assert found.promoted is promoted
    assert words in found.why
    assert found.why.endswith(NEW)


def test_an_equal_challenger_is_seldom_kept_and_one_that_is_worse_mostly() -> None:
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


def test_a_verdict_is_read_as_it_was_written() -> None:
    found = verdict(rule(), measured(0.8, [0.1, 0.2]), measured(0.7, [0.3, 0.4]))
    assert Verdict.from_json(json.loads(json.dumps(found.to_json()))) == found
    alone = replace(found, champion=None, interval=None)
    assert Verdict.from_json(alone.to_json()) == alone


# The study


def study(gate: Any, **changes: Any) -> Study:
    return Study.model_validate(
        {
            "name": "demo",
            "regions": ["A"],
            "data": "A.npz",
            "objective": {"metric": "val_auc", "direction": "maximize"},
            "search_space": {"epochs": {"type": "int", "low": 1, "high": 3}},
            "trainer": "tabular",
            "gate": gate,
            **changes,
        }
    )


def test_the_rule_follows_the_comparison_of_the_study() -> None:
    plain = rule_of(study({}, seed=7))
    assert (plain.metric, plain.direction, plain.seed) == ("test_auc", "maximize", 7)
    own = rule_of(study({"metric": "test_loss", "direction": "minimize", "tolerance": 0.01}))
    assert (own.metric, own.direction, own.tolerance) == ("test_loss", "minimize", 0.01)
    reported = rule_of(study({}, report_metric="test_loss", report_direction="minimize"))
    assert (reported.metric, reported.direction) == ("test_loss", "minimize")


@pytest.mark.parametrize(
    ("gate", "more", "words"),
    [
        ({"direction": "minimize"}, {}, "requires gate.metric"),
        ({}, {"publish": "none"}, "publish is none"),
        ({"tolerance": -1}, {}, "greater than or equal to 0"),
        ({"confidence": 1.0}, {}, "less than 1"),
        ({"margin": 1}, {}, "valid keys: metric, direction, tolerance"),
    ],
)
def test_a_gate_that_can_not_be_is_refused(gate: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        study(gate, **more)


def test_files_of_the_gates_names_are_refused_with_a_gate_alone(
    make_run: MakeRun, work: Path
) -> None:
    (work / "losses").write_text("")
    trainer = {"command": ["sh", "losses"], "files": ["losses"]}
    make_run(trainer=trainer)
    with pytest.raises(InputError, match="'losses' is a name that trialfleet itself uses"):
        make_run(run="r2", trainer=trainer, gate={})


# A region, the jobs played by the test


class Day:
    """A run of one region, brought to its gate."""

    def __init__(self, run: Run) -> None:
        self.run, self.folder = run, RunFolder(run.folder)
        self.handler = NodeScripts(self.folder)

    @property
    def files(self) -> RegionFolder:
        return self.folder.region("A")

    def call(self, *words: str) -> Reply:
        return self.handler.handle(list(words))

    def train(self) -> None:
        for node in ("A.l1.t01", "A.l1.t02"):
            self.call("ask", "A", node)
            leave(self.files.trial(node).result, metrics={"loss": 0.5})
            self.call("tell", "A", node, "0", "0", "1", "0")
        assert self.call("ask-best", "A", "A.best").exit_code == EXITS["done"]
        leave(self.files.best.result, metrics={"loss": 0.4})
        (self.files.best.model / "weights").write_text(self.run.run_id)
        assert self.call("tell-best", "A", "A.best", "0", "0", "1", "0").exit_code == EXITS["done"]

    def ask(self) -> Reply:
        return self.call("ask-gate", "A", "A.gate")

    def tell(self, code: int = 0, retry: int = 1) -> Reply:
        return self.call("tell-gate", "A", "A.gate", str(code), str(retry), "1", "0")

    def measure(self, champion: float, challenger: float) -> None:
        values = {"champion": champion, "challenger": challenger}
        models = {name: {"metrics": {"loss": value}} for name, value in values.items()}
        leave(self.files.gate.result, models=models)

    def decide(self, champion: float, challenger: float) -> Any:
        """Have both measured, and return the verdict that was published."""
        self.ask()
        self.measure(champion, challenger)
        assert self.tell().exit_code == EXITS["done"]
        return self.publish()

    def publish(self) -> Any:
        assert publish_region(self.folder, "A") == EXITS["done"]
        return json.loads(self.files.verdict.read_text())


def leave(result: Path, **content: Any) -> None:
    result.write_text(json.dumps({"status": "complete", **content}))


MakeDay = Callable[..., Day]


@pytest.fixture
def make_day(make_run: MakeRun) -> MakeDay:
    def make(run: str, **changes: Any) -> Day:
        budget = {"trials": 2, "lanes": 1, "startup_trials": 2}
        day = Day(make_run(run=run, budget=budget, **({"gate": {}} | changes)))
        day.train()
        return day

    return make


@pytest.fixture
def champion(make_day: MakeDay) -> Day:
    day = make_day("r1")
    assert day.ask().exit_code == EXITS["skip"]
    assert day.call("tell-gate", "A", "A.gate", "-1004", "0", "1", "3").exit_code == EXITS["done"]
    assert day.publish()["verdict"] == "promoted"
    return day


def latest(day: Day) -> str:
    return (Path(day.run.study.publish) / "demo" / "A" / "latest").readlink().name


def words(day: Day) -> str:
    return StatusReader(day.folder).read().regions[0].not_latest or ""


def test_the_first_model_has_nobody_to_beat(champion: Day) -> None:
    verdict = json.loads(champion.files.verdict.read_text())
    assert (verdict["champion"], verdict["challenger"]["run"]) == (None, "r1")
    assert (latest(champion), words(champion)) == ("r1", "")


def test_the_job_gets_both_models_and_the_order_to_measure_them(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2")
    assert day.ask().exit_code == EXITS["done"]
    place = day.files.gate
    order = json.loads(place.trial_json.read_text())
    assert (order["mode"], order["models"]) == (
        "evaluate",
        {"champion": "champion", "challenger": "challenger"},
    )
    assert [(place.root / name / "weights").read_text() for name in order["models"]] == ["r1", "r2"]
    submit = place.submit.read_text()
    assert ", champion, challenger" in submit
    assert json.loads(place.order.read_text())["left"] == ["losses"]
    assert day.ask().exit_code == EXITS["done"]  # a DAGMan that was lost asks again


@pytest.mark.parametrize(
    ("challenger", "words"),
    [
        (0.3, "A: the gate let it pass: loss 0.3, champion 0.4"),
        (0.9, "A: the gate let a model pass that measured worse: loss 0.9, champion 0.4"),
    ],
)
def test_the_end_of_a_run_says_what_the_gate_found_of_a_model_that_passed(
    champion: Day,
    make_day: MakeDay,
    capsys: pytest.CaptureFixture[str],
    challenger: float,
    words: str,
) -> None:
    day = make_day("r2", gate={"tolerance": 1.0})
    day.ask()
    day.measure(0.4, challenger)
    day.tell()
    day.publish()
    status = StatusReader(day.folder).read()
    with pytest.raises(SystemExit):
        show_end(day.run, replace(status, state=RunState.DONE))
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(("challenger", "verdict"), [(0.3, "promoted"), (0.5, "kept")])
def test_the_better_one_is_in_force(
    champion: Day, make_day: MakeDay, challenger: float, verdict: str
) -> None:
    day = make_day("r2")
    found = day.decide(0.4, challenger)
    assert (found["verdict"], found["metric"]) == (verdict, "loss")
    assert found["champion"] == {"run": "r1", "metrics": {"loss": 0.4}}
    assert found["challenger"] == {"run": "r2", "metrics": {"loss": challenger}}
    assert latest(day) == ("r2" if verdict == "promoted" else "r1")
    models_folder = Path(day.run.study.publish) / "demo" / "A"
    assert json.loads((models_folder / "r2" / "card.json").read_text())["gate"] == found
    assert (models_folder / "r2" / "weights").read_text() == "r2"  # the loser is kept, too
    if verdict == "kept":
        assert words(day).startswith(f"{KEPT_R1}: loss 0.5, champion 0.4: worse by 0.1; to change")
        assert KEPT_R1 in read_report(day.folder).to_json()
        promote(models_folder / "r2")
        assert words(day) == ""


def test_a_worse_model_that_passed_is_told_wherever_its_region_is(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2", gate={"tolerance": 1.0})
    day.ask()
    day.measure(0.4, 0.9)
    assert day.tell().exit_code == EXITS["done"]
    assert day.publish()["verdict"] == "promoted"
    told = "the gate let a model pass that measured worse: loss 0.9, champion 0.4, within the"
    snapshot = StatusReader(day.folder).snapshot()
    region = snapshot.status.regions[0]
    assert region.gate
    assert region.gate.is_worse
    assert snapshot.status.to_json()["regions"][0]["gate"]["is_worse"] is True
    assert f"A: {told}" in " ".join(output_of(run_view(snapshot.status)).split())
    graph = graph_of(day.run.study).regions[0]
    witnesses = RunFactsReader(day.folder.root)
    why = explain_region(witnesses.run(), witnesses.region(graph)).why
    assert told in why
    report = read_report(day.folder)
    assert attention(report)[0][0].startswith(told)
    assert told in str(report.to_json())


KEPT_R1 = "kept the current model (run r1) instead of this one"
FAILURES = [
    (1, 1, "", "exit code 1"),
    (64, 0, "", "can't be trained"),
    (0, 1, "", "without writing result.json"),
    (0, 0, '{"status": "complete", "metrics": {"loss": 1}}', "doesn't know the mode evaluate"),
    (0, 0, '{"status": "complete", "models": {"champion": {}}}', "no metrics of the champion"),
    (0, 0, '{"status": "failed", "error": "no column x", "models": {}}', "no column x"),
    (
        *(0, 0),
        '{"status": "complete", "models": {"champion": {"metrics": {"loss": "0.4"}}}}',
        "the champion's metric 'loss' is text: '0.4'",
    ),
]


@pytest.mark.parametrize(("code", "retry", "result", "why"), FAILURES)
def test_a_gate_that_fails_for_good_keeps_the_champion_and_fails_no_region(
    champion: Day, make_day: MakeDay, code: int, retry: int, result: str, why: str
) -> None:
    day = make_day("r2")
    day.ask()
    day.files.gate.result.write_text(result)
    assert day.tell(code, retry).exit_code == EXITS["done"]
    found = day.publish()
    assert found["verdict"] == "kept"
    assert why in found["why"]
    assert found["champion"]["run"] == latest(day) == "r1"
    assert words(day).startswith(f"{KEPT_R1}: the gate's job failed")
    assert "trialfleet promote" in words(day)
    assert StatusReader(day.folder).read().regions[0].stage == "kept"


def test_a_gate_that_crashes_is_tried_again(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    day.ask()
    assert day.tell(1, retry=0).exit_code == EXITS["retry"]
    assert not day.files.verdict.exists()


@pytest.mark.parametrize("losses", ["1\nx\n", "1\nnan\n"])
def test_losses_that_are_no_numbers_keep_the_champion(
    champion: Day, make_day: MakeDay, losses: str
) -> None:
    day = make_day("r2")
    day.ask()
    day.measure(0.4, 0.3)
    (day.files.gate.losses / "challenger.txt").write_text(losses)
    day.tell()
    found = day.publish()
    assert found["verdict"] == "kept"
    assert "losses/challenger.txt" in found["why"]


def test_a_gate_that_nothing_pays_for_keeps_the_champion(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    spending.note(day.folder, "final", "the cap is reached")
    assert day.ask().exit_code == EXITS["skip"]
    assert "not measured: the cap is reached" in day.publish()["why"]
    assert latest(day) == "r1"


def test_a_model_of_another_study_is_no_champion(champion: Day, make_day: MakeDay) -> None:
    models_folder = Path(champion.run.study.publish) / "demo" / "A"
    provenance = json.loads((models_folder / "r1" / "provenance.json").read_text())
    (models_folder / "r1" / "provenance.json").write_text(
        json.dumps(provenance | {"study": "other"})
    )
    day = make_day("r2")
    assert day.ask().exit_code == EXITS["skip"]
    day.publish()
    assert latest(day) == "r2"


def test_a_champion_that_came_into_force_since_is_not_replaced(
    champion: Day, make_day: MakeDay
) -> None:
    second, third = make_day("r2"), make_day("r3")
    for day in (second, third):
        day.ask()
        day.measure(0.4, 0.3)
        day.tell()
    second.publish()
    assert third.publish()["verdict"] == "promoted"
    assert latest(third) == "r2"
    why = "it became the current model after the gate measured r1"
    assert words(third).startswith(f"kept the current model (run r2) instead of this one: {why}")


def arrive(day: Day, **content: Any) -> None:
    """Put the package of a gate's job where its agent puts it, which nobody tells of."""
    place = day.files.gate
    for name, text in (("ended.json", {"code": 0}), ("result.json", content)):
        (day.folder.root / name).write_text(json.dumps(text))
    with tarfile.open(place.left, "w", format=tarfile.GNU_FORMAT) as package:
        for name in ("ended.json", "result.json"):
            package.add(day.folder.root / name, name)
    log = (
        "000 (009.000.000) 2026-11-20 10:00:01 Job submitted from host: <127.0.0.1:1>\n...\n"
        "001 (009.000.000) 2026-11-20 10:00:01 Job executing on host: <127.0.0.1:1>\n...\n"
    )
    place.log.write_text(log)


MODELS = {name: {"metrics": {"loss": 0.4}} for name in ("champion", "challenger")}


def test_models_that_were_measured_are_not_measured_again_though_the_script_was_killed(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2")
    day.ask()
    arrive(day, status="complete", models=MODELS)
    for _ in range(2):
        assert day.ask().exit_code == EXITS["skip"]
    assert json.loads(day.files.gate.job.read_text())["stays"]
    assert day.publish()["champion"] == {"run": "r1", "metrics": {"loss": 0.4}}


def test_a_gates_job_that_measured_nothing_is_followed_by_another(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2")
    day.ask()
    arrive(day, status="complete", metrics={"loss": 0.4})
    assert day.ask().exit_code == EXITS["done"]


def test_other_models_than_those_that_were_measured_are_measured(
    champion: Day, make_day: MakeDay
) -> None:
    second, third = make_day("r2"), make_day("r3")
    third.ask()
    arrive(third, status="complete", models=MODELS)
    assert third.ask().exit_code == EXITS["skip"]
    third.train()  # anew
    assert third.ask().exit_code == EXITS["done"]
    arrive(third, status="complete", models=MODELS)
    assert third.ask().exit_code == EXITS["skip"]
    assert second.decide(0.4, 0.3)["verdict"] == "promoted"  # r2 is in force from now on
    assert third.ask().exit_code == EXITS["done"]


def test_asking_and_publishing_again_changes_nothing(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2")
    first = day.decide(0.4, 0.5)
    day.files.published.unlink()
    assert day.ask().exit_code == EXITS["skip"]
    assert day.publish() == first
    assert latest(day) == "r1"


@pytest.mark.parametrize(("challenger", "in_force"), [(0.3, "r2"), (0.5, "r1")])
def test_a_queue_that_is_lost_behind_the_publication_ends_the_same(
    champion: Day, make_day: MakeDay, challenger: float, in_force: str
) -> None:
    """The note of the publication is lost; a new DAGMan trains again and asks the gate."""
    day = make_day("r2")
    first = day.decide(0.4, challenger)
    day.files.published.unlink()
    day.train()
    day.measure(
        0.4, 0.8 - challenger
    )  # whatever is measured now: the model is in the models folder
    assert not day.files.verdict.exists()
    assert day.ask().exit_code == EXITS["skip"]
    assert day.publish() == first
    assert latest(day) == in_force


def test_a_study_without_a_gate_has_no_node_of_it(make_run: MakeRun) -> None:
    plain = make_run(run="plain")
    files = RunFolder(plain.folder).region("A")
    assert ".gate" not in files.dag.read_text()
    assert not files.gate.root.exists()
    gated = RunFolder(make_run(run="gated", gate={}).folder).region("A")
    assert "PARENT A.gate CHILD A.publish" in gated.dag.read_text()
    assert "PARENT A.best CHILD A.gate" in gated.dag.read_text()


def test_models_shows_who_is_in_force_and_why_the_others_are_not(
    champion: Day, make_day: MakeDay, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = make_day("r2")
    day.decide(0.4, 0.5)
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*words: str) -> str:
        done = CliRunner().invoke(main, ["models", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "rejected (kept r1): loss 0.5, champion 0.4: worse by 0.1" in shown()
    table = shown("A").splitlines()
    assert table[1].split()[2:] == ["metric", "by", "the", "last", "gate", "state"]
    assert re.search(r"loss 0.4 +loss 0.4 \(r2's rows\) +current *$", table[2])
    assert re.search(r"loss 0.4 +loss 0.5 \(r2's rows\) +rejected \(kept r1\)", table[3])
    card = shown("A", "--card")
    assert "promoted: this study had no current model" in card
    assert "r1 " in card  # measured again by r2's gate
    assert f"{KEPT_R1}: loss 0.5" in shown("A", "--card", "r2")
    (region,) = json.loads(shown("--json"))
    assert [model["in_force"] for model in region["models"]] == [True, False]
    assert region["models"][0]["evaluations"] == [{"run": "r2", "value": 0.4}]
    wrong = CliRunner().invoke(main, ["models", "A", "--card", "r9"])
    assert wrong.exit_code == 2
    assert "its models: r1, r2" in wrong.output
    assert CliRunner().invoke(main, ["rollback", "B"]).exit_code == 2


def test_a_model_that_the_gate_kept_out_is_nowhere_called_published(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2")
    day.decide(0.4, 0.5)
    assert (standing(champion), standing(day)) == ("published", "kept")
    assert Stage.KEPT.is_good  # it has ended well
    found = list_runs([FoundRun(day.run.folder, "demo", "r2", 0.0)])
    assert (found[0].published, found[0].kept) == (0, 1)
    assert "0 of 1, 1 rejected" in output_of(runs_table(found))
    report = read_report(day.folder)
    assert [group.title for group in groups_of(report)] == ["Rejected"]
    assert header(report)[0] == ("Models published", "0", "of 1 region · 1 rejected")
    ((reason, _),) = attention(report)
    assert reason.startswith(
        f"its new model is not the current one: {KEPT_R1}: loss 0.5, champion 0.4"
    )
    assert "promote" not in reason
    assert "kept" in output_of(summary_table(report))
    promote(Path(day.run.study.publish) / "demo" / "A" / "r2")
    assert standing(day) == "published"  # a person decided otherwise


def standing(day: Day) -> str:
    return StatusReader(day.folder).read().regions[0].stage


def output_of(view: RenderableType) -> str:
    screen = Console(width=200, file=io.StringIO())
    screen.print(view)
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def measured_day(models_folder: Path, number: int, champion: float) -> None:
    """A model in the models folder that was kept out, and what its gate measured of r1."""
    model = models_folder / f"d{number}"
    model.mkdir()
    verdict = Verdict(
        verdict="kept",
        why="",
        metric="loss",
        champion=ComparedModel(run="r1", metrics={"loss": champion}),
        challenger=ComparedModel(run=model.name, metrics={"loss": 1.0}),
        baseline=None,
        interval=None,
    )
    origin = {"study": "demo", "run": model.name, "created": f"2026-01-0{number}T00:00:00+00:00"}
    (model / "provenance.json").write_text(json.dumps(origin))
    (model / "card.json").write_text(json.dumps({**origin, "gate": verdict.to_json()}))


@pytest.mark.parametrize(("today", "drifted"), [(0.41, False), (0.9, True)])
def test_a_champion_that_left_its_own_past_is_marked_everywhere(
    champion: Day,
    make_day: MakeDay,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    today: float,
    drifted: bool,
) -> None:
    models_folder = Path(champion.run.study.publish) / "demo" / "A"
    for number, value in enumerate([0.40, 0.41, 0.39, 0.42, 0.40], start=1):
        measured_day(models_folder, number, value)
    day = make_day("r2")
    day.decide(today, today + 0.1)
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")
    words = f"r1 has drifted: loss {today:.4g}, outside its past range, 0.3555 to 0.4445"
    status = StatusReader(day.folder).read()
    shown = [
        status.regions[0].drift or "",
        read_report(day.folder).to_json(),
        CliRunner().invoke(main, ["models"]).output,
        CliRunner().invoke(main, ["models", "A"]).output,
        CliRunner().invoke(main, ["models", "A", "--card"]).output,
        "".join(as_text(run_view(status))),
    ]
    assert [words in " ".join(each.split()) for each in shown] == [drifted] * len(shown)


def as_text(view: RenderableType) -> str:
    terminal = Console(width=200, file=io.StringIO(), record=True)
    terminal.print(view)
    return terminal.export_text()


KILLED = """
import os, shutil, sys
from pathlib import Path
from tests.killed_child import status_of
from trialfleet.files import read_json
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.control.scripts.publish_node import publish_region

folder, models_folder, every = RunFolder(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
files = folder.region("A")
ends, kill = set(), 1
while True:
    died = os.WIFSIGNALED(status_of(lambda: publish_region(folder, "A"), kill))
    assert (models_folder / "latest" / "weights").exists(), kill
    assert status_of(lambda: publish_region(folder, "A"), 0) == 0, kill
    verdict, told = read_json(files.verdict), read_json(files.published)
    in_force = (models_folder / "latest").readlink().name
    ends.add((verdict["verdict"], in_force, bool(told["not_latest"])))
    assert not [name for name in os.listdir(models_folder) if name.startswith(".publish-")], kill
    if not died:
        break
    shutil.rmtree(models_folder / "r2")
    os.system(f"ln -sfn r1 '{models_folder}/latest'")
    files.published.unlink()
    files.verdict.unlink()
    kill += every
print(kill, *ends)
"""


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("challenger", "end"),
    [(0.3, ("promoted", "r2", False)), (0.5, ("kept", "r1", True))],
)
def test_kill_9_while_a_verdict_is_published_ends_the_same(
    champion: Day, make_day: MakeDay, challenger: float, end: tuple[object, ...], every: int
) -> None:
    day = make_day("r2")
    day.ask()
    day.measure(0.4, challenger)
    day.tell()
    models_folder = Path(day.run.study.publish) / "demo" / "A"
    command = [sys.executable, "-c", KILLED, str(day.folder.root), str(models_folder), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    kills, ends = done.stdout.splitlines()[-1].split(" ", 1)
    assert ends == str(end)
    assert int(kills) > 60


def test_the_plan_says_by_what_the_gate_decides_and_what_the_trainer_does_not_know(
    make_run: MakeRun, work: Path
) -> None:
    text = plan_text(make_run(gate={"tolerance": 0.01}))
    gate = "compares each new model with the current one by loss, at most 0.01 worse"
    assert f"gate     {gate}" in text
    assert "evaluate" not in text
    (work / "go.sh").write_text("echo 1 > model/x")
    trainer = {"command": ["sh", "go.sh"], "files": ["go.sh"]}
    assert "mentions mode evaluate" in plan_text(make_run(run="r2", trainer=trainer, gate={}))
    assert "evaluate" not in plan_text(make_run(run="r3", trainer=trainer))


@pytest.mark.parametrize(
    ("table", "data", "is_noted"),
    [
        ({}, "t.csv", True),
        ({"split": {"random": [0.6, 0.2, 0.2]}}, "t.csv", True),
        ({"split": {"time": "day"}}, "t.csv", False),
        ({"split": {"column": "part"}}, "t.csv", False),
        ({}, "t.npz", False),
    ],
)
def test_the_plan_notes_that_a_split_by_chance_favours_the_champion(
    table: Any, data: str, is_noted: bool
) -> None:
    more: dict[str, Any] = {"regions": {"A": {"data": [data]}}}
    more |= {"target": "y"} if data.endswith("csv") else {}
    more |= {"table": table} if table else {}
    assert shares_rows_with_champion(study({}, **more)) is is_noted
    assert not shares_rows_with_champion(study(None, **more))


def test_the_pages_trainer_measures_both_models(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "gate.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    blocks = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (order,) = (block for block in blocks if '"mode"' in block)
    (tmp_path / "trial.json").write_text(order)
    (tmp_path / "north.csv").write_text("1\n2\n")
    for name, value in (("champion", 1.5), ("challenger", 1.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(str(value))
    (tmp_path / "train.py").write_text(program)
    shutil.copy(Path(trial.__file__), tmp_path)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    found = measured_of(TrialFolder(tmp_path))
    assert found[CHAMPION].metrics == {"loss": 0.25}
    losses = found[CHALLENGER].losses
    assert losses is not None
    assert losses.tolist() == [0.0, 1.0]


# A person's approval

ASKS = {"gate": {"approve": True}}


@pytest.fixture
def waiting(champion: Day, make_day: MakeDay) -> Day:
    """The run r2, whose model the gate let pass and nobody has approved."""
    day = make_day("r2", **ASKS)
    day.decide(0.4, 0.3)
    return day


def test_a_model_that_passed_waits_until_a_person_promotes_it(
    waiting: Day, monkeypatch: pytest.MonkeyPatch, work: Path
) -> None:
    assert json.loads(waiting.files.verdict.read_text())["verdict"] == "promoted"
    assert (latest(waiting), standing(waiting)) == ("r1", "kept")
    path = Path(waiting.run.study.publish) / "demo" / "A" / "r2"
    assert re.fullmatch(
        rf"waits for approval since \d{{4}}-\d\d-\d\d \d\d:\d\d: loss 0\.3, champion 0\.4"
        rf"; to change that: trialfleet promote {path}",
        words(waiting),
    )
    ending, why = ending_with_model(waiting.files)
    assert ending is Ending.KEPT
    assert why == (
        "it passed the gate: loss 0.3, champion 0.4; with gate.approve a person promotes it: "
        f"trialfleet promote {path}"
    )
    monkeypatch.chdir(work)
    done = CliRunner().invoke(main, ["promote", "r2/A", "--why", "looked at it"])
    assert done.output == "demo/A: latest is r2 (was r1)\n"
    assert (latest(waiting), words(waiting), standing(waiting)) == ("r2", "", "published")
    assert changes(path.with_name("latest"))[-1].why == "looked at it"
    assert awaiting(path.parent) is None


def test_each_view_says_that_it_waits(
    waiting: Day, monkeypatch: pytest.MonkeyPatch, work: Path
) -> None:
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")

    def models(*more: str) -> str:
        return CliRunner().invoke(main, ["models", *more]).output

    waits = words(waiting).partition("; to change that")[0]
    assert f"r2: {waits.removesuffix(': loss 0.3, champion 0.4')}" in models()
    assert re.search(r"r2 .* waits for approval since", models("A"))
    assert "gate      passed: loss 0.3, champion 0.4" in models("A", "--card", "r2")
    (region,) = json.loads(models("--json"))
    assert [model["standing"] for model in region["models"]] == ["in force", "waits for approval"]
    status = StatusReader(waiting.folder).read()
    assert f"A: {waits}; to change that: trialfleet promote r2/A" in " ".join(
        as_text(run_view(status)).split()
    )
    assert status.to_json()["regions"][0]["awaits_approval"]
    ((reason, _),) = attention(read_report(waiting.folder))
    assert reason == f"its new model is not the current one: {waits}"
    answer = why_of(waiting)
    assert (answer.kind.value, answer.why) == ("awaits-approval", waits)
    assert answer.command == "trialfleet promote r2/A"


def test_the_first_model_of_a_region_waits_too(
    make_day: MakeDay, monkeypatch: pytest.MonkeyPatch, work: Path
) -> None:
    day = make_day("r1", **ASKS)
    day.ask()
    day.publish()
    models_folder = Path(day.run.study.publish) / "demo" / "A"
    assert not (models_folder / "latest").is_symlink()
    assert "this study had no current model" in words(day)
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")
    for named in ([], ["A"], ["demo"]):
        assert "waits for approval since" in CliRunner().invoke(main, ["models", *named]).output
    promote(models_folder / "r1")
    assert words(day) == ""


def test_the_next_model_is_held_against_the_one_in_force_and_waits_in_its_place(
    waiting: Day, make_day: MakeDay
) -> None:
    third = make_day("r3", **ASKS)
    assert third.decide(0.4, 0.2)["champion"]["run"] == "r1"
    assert words(third).startswith("waits for approval since")
    assert words(waiting).startswith("it passed the gate and was not approved: loss 0.3")
    assert [model.standing for model in models_on(models_of_a(third))] == [
        Standing.IN_FORCE,
        Standing.NEVER,
        Standing.AWAITS,
    ]
    promote(models_of_a(third) / "r2")  # the older one, by name
    assert (latest(third), words(waiting)) == ("r2", "")
    assert words(third).startswith("waits for approval since")
    promote(models_of_a(third) / "r3")
    rollback(models_of_a(third))
    assert words(third).startswith(
        "it passed the gate and was the current model; another one is now: "
    )
    assert awaiting(models_of_a(third)) is None


def test_none_waits_behind_a_newer_one_that_went_live_without_approval(
    waiting: Day, make_day: MakeDay
) -> None:
    third = make_day("r3")
    third.decide(0.4, 0.2)
    assert latest(third) == "r3"
    assert awaiting(models_of_a(third)) is None
    assert "was not approved" in words(waiting)


def test_a_model_that_waits_is_not_removed_by_keep(waiting: Day) -> None:
    assert indispensable(models_of_a(waiting)) == {"r1", "r2"}


def test_what_the_gate_keeps_out_asks_for_no_approval(champion: Day, make_day: MakeDay) -> None:
    day = make_day("r2", **ASKS)
    day.decide(0.4, 0.5)
    assert KEPT_R1 in words(day)
    assert awaiting(models_of_a(day)) is None


def why_of(day: Day) -> Answer:
    witnesses = RunFactsReader(day.run.folder)
    (graph,) = graph_of(day.run.study).regions
    return explain_region(witnesses.run(), witnesses.region(graph))


def models_of_a(day: Day) -> Path:
    return Path(day.run.study.publish) / "demo" / "A"


def test_kill_9_while_a_model_that_waits_is_published_ends_the_same(
    champion: Day, make_day: MakeDay
) -> None:
    day = make_day("r2", **ASKS)
    day.ask()
    day.measure(0.4, 0.3)
    day.tell()
    words = [str(day.folder.root), str(models_of_a(day)), "23"]
    command = [sys.executable, "-c", KILLED, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    kills, ends = done.stdout.splitlines()[-1].split(" ", 1)
    assert ends == str(("promoted", "r1", True))
    assert int(kills) > 60
    assert awaiting(models_of_a(day)) is not None
