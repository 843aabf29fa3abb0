"""A region's gain on the page: models against models, trials against trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from tests.stored_runs import StoredRun, stored, stored_trial, turns
from trialfleet.files import write_json
from trialfleet.workflows.control.models.latest import promote, rollback
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.failed_attempts import Cause
from trialfleet.workflows.facts.runs.spending import Spending
from trialfleet.workflows.formatting import NOTHING
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.serve.current_models import Champion
from trialfleet.workflows.views.serve.gains import Gain, read_gain
from trialfleet.workflows.views.serve.live_runs import LiveRun, NodeReader
from trialfleet.workflows.views.serve.region_and_trial_pages import region_page
from trialfleet.workflows.views.serve.run_page import age_text, build_tile, header, list_concerns

pytestmark = pytest.mark.slow


BEGAN = datetime.now() - timedelta(minutes=20)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def run(make_run: MakeRun) -> Iterator[StoredRun]:
    """A run that tunes, in whose region another run's model is current."""
    with stored(make_run(regions=["A"], budget={"trials": 8, "lanes": 2})) as opened:
        for at, (node, start) in enumerate(turns(opened.graph["A"], 2, BEGAN)):
            opened.add("A", stored_trial(node, start, (0.75, 0.5)[at], baseline=at == 0))
        study = opened.run.study
        models = Path(study.publish) / study.name / "A"
        card = {"study": study.name, "run": "r0", "region": "A", "metrics": {"loss": 0.25}}
        (models / "r0").mkdir(parents=True)
        for name in ("provenance.json", "card.json"):
            write_json(models / "r0" / name, {**card, "created": NOW.isoformat()})
        (models / "latest").symlink_to("r0")
        yield opened


def gain(run: StoredRun) -> Gain:
    snapshot = LiveRun(RunFolder(run.run.folder), NodeReader()).read()
    return read_gain(snapshot, snapshot.run.status.regions[0])


def test_a_trial_of_a_running_tuning_is_compared_with_default_settings(
    run: StoredRun,
) -> None:
    found = gain(run)
    assert (found.text, found.over, found.tone) == ("0.2500 better", "default settings", "good")


@pytest.fixture
def run_with_report_metric(make_run: MakeRun) -> Iterator[StoredRun]:
    """A run whose trials are chosen by their loss and compared by another metric: up is better."""
    changes: dict[str, Any] = {"report_metric": "test", "report_direction": "maximize"}
    with stored(make_run(regions=["A"], budget={"trials": 8, "lanes": 2}, **changes)) as opened:
        for at, (node, start) in enumerate(turns(opened.graph["A"], 3, BEGAN)):
            loss, test = ((0.75, 0.5), (0.25, 0.625), (0.5, 0.875))[at]
            metrics = {"loss": loss, "test": test}
            opened.add("A", stored_trial(node, start, loss, baseline=at == 0, metrics=metrics))
        yield opened


def test_the_page_shows_the_same_gain_as_the_report(run_with_report_metric: StoredRun) -> None:
    files = RunFolder(run_with_report_metric.run.folder)
    report = read_report(files).regions[0].report
    found = gain(run_with_report_metric)
    assert (found.value, found.compared.metric) == (report.gain, report.metric) == (0.125, "test")
    assert (found.text, found.over) == ("0.1250 better", "default settings")
    snapshot = LiveRun(files, NodeReader()).read()
    page = region_page(snapshot, "A")
    assert page.facts == (("Compared with default settings", "0.1250 better by test", "good"),)
    assert page.report.regions[0].report == report


def test_models_are_compared_by_the_report_s_metric_too(run_with_report_metric: StoredRun) -> None:
    study = run_with_report_metric.run.study
    model = Path(study.publish) / study.name / "A" / "r0"
    model.mkdir(parents=True)
    card = {"study": study.name, "run": "r0", "metrics": {"loss": 0.1, "test": 0.75}}
    for name in ("provenance.json", "card.json"):
        write_json(model / name, card)
    (model.parent / "latest").symlink_to("r0")
    result = RunFolder(run_with_report_metric.run.folder).region("A").best.result
    result.parent.mkdir(parents=True, exist_ok=True)
    write_json(result, {"status": "complete", "metrics": {"loss": 0.2, "test": 1.0}})
    found = gain(run_with_report_metric)
    assert (found.text, found.over, found.compared.metric) == (
        "0.250 better", "the current model", "test",
    )  # fmt: skip
    snapshot = LiveRun(RunFolder(run_with_report_metric.run.folder), NodeReader()).read()
    facts = {label: text for label, text, _ in region_page(snapshot, "A").facts}
    assert facts["Compared with the current model"] == "0.250 better by test"


def test_a_full_training_is_compared_with_the_current_model(run: StoredRun) -> None:
    result = RunFolder(run.run.folder).region("A").best.result
    result.parent.mkdir(parents=True, exist_ok=True)
    write_json(result, {"status": "complete", "metrics": {"loss": 0.375}})
    found = gain(run)
    assert (found.text, found.over, found.tone) == ("0.1250 worse", "the current model", "bad")
    write_json(result, {"status": "complete", "metrics": {"loss": 0.25}})
    assert gain(run).text == "no better"


def test_a_model_that_the_gate_kept_out_is_no_gain(run: StoredRun) -> None:
    """Today's rows may be garbage, on which a new model does better."""
    sides = {"champion": {"run": "r0", "metrics": {"loss": 6.0}}}
    sides["challenger"] = {"run": run.run.run_id, "metrics": {"loss": 0.25}}
    rest = {"why": "no better than a constant", "metric": "loss", "baseline": None}
    for verdict, tone in (("promoted", "good"), ("kept", "")):
        noted = {"verdict": verdict, **sides, **rest, "interval": None}
        write_json(RunFolder(run.run.folder).region("A").verdict, noted)
        assert gain(run).tone == tone


def test_a_tile_says_that_its_model_was_rolled_back(run: StoredRun) -> None:
    files = RunFolder(run.run.folder)
    models = Path(run.run.study.publish) / "demo" / "A"
    mine = models / run.run.run_id
    mine.mkdir()
    write_json(mine / "provenance.json", {"study": "demo", "run": mine.name})
    write_json(files.region("A").published, {"path": str(mine)})
    promote(mine)
    snapshot = LiveRun(files, NodeReader()).read()
    assert build_tile(snapshot, snapshot.run.status.regions[0]).stage == "published"
    rollback(models)
    snapshot = LiveRun(files, NodeReader()).read()
    tile = build_tile(snapshot, snapshot.run.status.regions[0])
    assert (tile.stage, tile.tone) == ("kept", "idle")
    assert tile.why.startswith("the model of r0 was made current: rollback")


def test_the_page_shows_the_cost_of_a_run_on_machines_with_a_price(run: StoredRun) -> None:
    snapshot = LiveRun(RunFolder(run.run.folder), NodeReader()).read()
    assert header(snapshot)[3] == ("Money", NOTHING, "prices are unknown")
    region = replace(snapshot.run.status.regions[0], usd=0.0043)
    status = replace(snapshot.run.status, regions=(region,))
    priced = replace(snapshot, run=replace(snapshot.run, status=status))
    assert header(priced)[3] == ("Money", "0.0043 USD", "of its jobs, by usd_per_hour")


@pytest.mark.parametrize(
    ("as_of", "text"),
    [
        (NOW, "planned 10 min ago"),
        (NOW - timedelta(days=3), "of 3 days ago"),
        (None, "of unknown age"),
    ],
)
def test_a_model_is_as_new_as_its_data(as_of: datetime | None, text: str) -> None:
    champion = Champion(run="r0", as_of=as_of, created=NOW, metrics={})
    assert age_text(champion, NOW + timedelta(minutes=10)) == text


def test_a_tile_says_that_attempts_fail_rather_than_a_warning_about_its_data(
    run: StoredRun,
) -> None:
    snapshot = LiveRun(RunFolder(run.run.folder), NodeReader()).read()
    cause = Cause(error="KeyError: 'x'", attempts=2, of=3, log="/log")
    region = replace(snapshot.run.status.regions[0], done=0, cause=cause, checks="few rows")
    assert build_tile(snapshot, region).why == "2 of 3 failed attempts: KeyError: 'x'"
    assert build_tile(snapshot, replace(region, done=1)).why == "few rows"


def test_the_page_says_whose_trouble_ends_the_money_or_the_nodes(run: StoredRun) -> None:
    snapshot = LiveRun(RunFolder(run.run.folder), NodeReader()).read()
    silent = "the fleet's autoscaler: has not reported since 04:50 UTC"
    money = Spending(spent=1.0, cap=1.0, left=0.0, reserve=0.0, ended="spent", trouble=silent)
    status = replace(snapshot.run.status, money=money, notice=None)
    concerns = list_concerns(replace(snapshot, run=replace(snapshot.run, status=status)))
    assert [one.why for one in concerns][:2] == ["spent", silent]
