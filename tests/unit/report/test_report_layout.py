"""Layout of the report at a desktop's and a phone's width, in a real Chromium."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from tests.unit.report.report_browser import Browser
from tests.unit.report.report_studies import (
    DEFAULTS,
    SPACE,
    attributes_of,
    ran,
    region_facts,
    report_of,
    trial,
    tuned_trials,
)
from trialfleet.optimizer.parameters import CategoricalParameter, FloatParameter, IntParameter
from trialfleet.optimizer.space import Tunable
from trialfleet.workflows.facts.journal.journal import Ending, Outcome
from trialfleet.workflows.views.report.report_types import Report
from trialfleet.workflows.views.terminal.days_table import DayView

pytestmark = pytest.mark.browser

OPTIMIZERS = ["stochastic_gradient_descent_with_nesterov", "adam_with_decoupled_weight_decay"]
WORDY: dict[str, Tunable] = {
    "maximum_learning_rate_after_warm_up": FloatParameter(
        type="float", low=1e-7, high=12.5, log=True
    ),
    "rows_per_batch_over_all_devices": IntParameter(type="int", low=1024, high=262_144, log=True),
    "optimizer_with_its_options": CategoricalParameter(
        type="categorical",
        choices=[
            "stochastic_gradient_descent_with_nesterov",
            "adam_with_decoupled_weight_decay",
            "a",
            "b",
        ],
    ),
    "seed": IntParameter(type="int", low=1_000_000, high=9_999_999),
    "layers": IntParameter(type="int", low=1, high=4),
    "dropout": FloatParameter(type="float", low=0.0, high=0.5),
}
OVERLAPS = """
    const found = [];
    for (const svg of document.querySelectorAll(`[data-picture=${arguments[0]}] svg`)) {
        const texts = [...svg.querySelectorAll('text')]
            .filter(e => e.textContent && !e.closest('[aria-label=tip]') && e.checkVisibility())
            .map(e => [e.querySelector('title')
                ? e.lastChild.textContent : e.textContent, e.getBoundingClientRect()]);
        const edge = svg.getBoundingClientRect();
        for (const [at, [text, box]] of texts.entries()) {
            if (box.left < edge.left - 1 || box.right > edge.right + 1) found.push([text, 'edge']);
            for (const [other, its] of texts.slice(at + 1)) {
                const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
                const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
                if (across > 0 && down > 3) found.push([text, other]);
            }
        }
    }
    return found;
"""
PICTURES = [
    "overview", "timeline", "history", "parallel", "contour", "curves", "slice"
]  # fmt: skip


@pytest.fixture(scope="module")
def wordy() -> Report:
    """Long names, long choices, great numbers, and a parameter that some trials don't have."""
    rng = random.Random(2)  # noqa: S311
    trials = []
    for at in range(30):
        params: dict[str, Any] = {
            "maximum_learning_rate_after_warm_up": 10 ** rng.uniform(-7, 1),
            "rows_per_batch_over_all_devices": rng.randint(1024, 262_144),
            "optimizer_with_its_options": rng.choice([*OPTIMIZERS, "a", "b"]),
            "seed": rng.randint(1_000_000, 9_999_999),
            "layers": rng.randint(1, 4),
        }
        params |= {"dropout": rng.uniform(0, 0.5)} if at % 2 else {}
        value = 98_765.4 + 12_345.6 * rng.random()
        metrics = {"test": -value}
        trials.append(trial(params, value, at=at, baseline=at == 0, metrics=metrics))
    ran(trials, slots=3)
    for at, each in enumerate(trials):
        host = f"ip-10-120-130-{at % 2}.eu-central-1.compute.internal"
        attributes_of(each)["job"] |= {"machine": host, "slot": f"slot1_{at}@{host}"}
    metric = "validation_log_likelihood_per_row"
    regions = [
        region_facts(name, trials, slug=f"r{at}")
        for at, name in enumerate(["Saint-Pierre-et-Miquelon and beyond", "B", "C", "D"])
    ]
    return report_of(*regions, metric=metric)


@pytest.fixture(scope="module", autouse=True)
def wordy_space() -> Iterator[None]:
    before = dict(SPACE)
    SPACE.update(WORDY)
    yield
    SPACE.clear()
    SPACE.update(before)


@pytest.mark.parametrize("width", [1280, 390])
def test_texts_of_a_picture_do_not_overlap_and_stay_within_it(
    browser: Browser, wordy: Report, width: int
) -> None:
    browser.resize(width, 900)
    browser.open(wordy)
    browser.open_everything("details[open]")
    ticks = "[data-picture=parallel] text"  # numbers are never cut, but written shorter
    assert not [text for text in browser.texts(ticks) if re.search(r"\d…|…\d", text)]
    wholes = [text for text in browser.texts("[data-picture=slice] text") if text in {"1.0", "4.0"}]
    assert wholes == []
    collisions = {name: browser.run(OVERLAPS, name) for name in PICTURES}
    assert {name: found for name, found in collisions.items() if found} == {}
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_four_columns_and_the_others_on_demand(browser: Browser, width: int) -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 0.7}),
        trial(DEFAULTS, 0.6, at=1, metrics={"test": 0.65}),
    ]
    facts: dict[str, Any] = {"published": "/models/A/r", "final": {"test": 0.6}}
    browser.resize(width, 900)
    browser.open(report_of(region_facts("Åland Øst International", trials, slug="A", **facts)))
    headers = (
        "return [...document.querySelectorAll('#regions-table th[scope=col]')]"
        ".filter(e => e.checkVisibility() && e.getBoundingClientRect().right <= innerWidth)"
        ".map(e => e.innerText)"
    )
    assert browser.run(headers) == ["Region", "Tuned", "Gain", "Status"]
    cells = (
        "return [...document.querySelectorAll('#regions-table td')]"
        ".filter(e => e.checkVisibility())"
        ".map(e => [e.innerText, e.getBoundingClientRect().right])"
    )
    shown = browser.run(cells)
    texts = ["0.6500", "\N{MINUS SIGN}0.0500", "published, worse than default"]
    assert [text for text, _ in shown] == texts
    assert max(right for _, right in shown) <= width
    more = "document.querySelector('[data-more]')"
    assert browser.run(f"return {more}.innerText") == "7 more columns"
    browser.run(f"{more}.click()")
    assert len(browser.run(cells)) == 10
    assert browser.run(f"return [{more}.ariaExpanded, {more}.innerText]") == [
        "true",
        "Fewer columns",
    ]
    assert browser.run("return document.documentElement.scrollWidth") == width
    browser.resize(1280, 900)
    browser.wait(f"return !{more}.checkVisibility()")
    assert len(browser.run(headers)) == 11


def days_of(regions: int, days: int) -> tuple[DayView, ...]:
    """Return days, the newest first; every third region of each has failed for a long reason."""
    last, why = date(2026, 11, 22), "data isn't there: /a/long/path/without/a/space/" * 3
    made = []
    for back in range(days):
        day = last - timedelta(days=back)
        endings = [Ending.FAILED if (at + back) % 3 == 0 else Ending.KEPT for at in range(regions)]
        outcomes = tuple(
            Outcome(date=day, region=f"Saint-Pierre {at}", attempt=1, ending=ending, why=why)
            for at, ending in enumerate(endings)
        )
        counts = {each: endings.count(each) for each in Ending}
        made.append(
            DayView(date=day, counts=counts, open=0, attempts=(), runs=(), outcomes=outcomes)
        )
    return tuple(made)


@pytest.mark.parametrize("width", [1280, 390])
def test_41_regions_of_14_days_are_a_table_that_scrolls_within_a_phone(
    browser: Browser, wordy: Report, width: int
) -> None:
    browser.resize(width, 900)
    browser.open(replace(wordy, days=days_of(41, 14)))
    assert browser.run("return document.documentElement.scrollWidth") <= width
    rows = "return document.querySelectorAll('#days-by-region tbody tr').length"
    cells = "return document.querySelectorAll('#days-by-region tbody td > .failed').length"
    assert (browser.run(rows), browser.run(cells)) == (41, 191)
    box = "document.querySelector('#days-by-region .scroll')"
    is_wider = browser.run(f"return {box}.scrollWidth > {box}.clientWidth")
    hint = browser.run("return document.querySelector('#days-by-region .hint').innerText")
    assert (is_wider, bool(hint)) == (width == 390, width == 390)
    assert browser.run("return document.querySelectorAll('.days .meter').length") == 14
    assert browser.complaints() == []


def test_the_page_explains_a_full_training_if_there_was_one(browser: Browser) -> None:
    means = "Full training: one more training with the best settings, on the full budget"
    trained = region_facts("A", ran(tuned_trials(3)), published="/m/A/r", final={"test": 0.6})
    browser.open(report_of(trained))
    assert means in browser.run("return document.querySelector('main').innerText")
    titles = browser.run("return [...document.querySelectorAll('[title]')].map(e => e.title)")
    assert sum(title.startswith(means) for title in titles) == 2
    browser.open(report_of(region_facts("B", tuned_trials(3))))
    assert "Full training" not in browser.run("return document.body.innerText")
