"""Use of the report's pictures and regions, in a real Chromium."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.report.report_browser import Browser
from tests.unit.report.report_studies import (
    DEFAULTS,
    attributes_of,
    many_regions,
    ran,
    region_facts,
    report_of,
    trial,
    tuned_trials,
)
from trialfleet.workflows.formatting import NOTHING
from trialfleet.workflows.views.report.report_types import Report

pytestmark = pytest.mark.browser

SHOWN = (
    "return [...document.querySelectorAll('{}')].filter(e => e.checkVisibility())"
    ".map(e => e.querySelector('bdi, text')?.textContent ?? e.textContent)"
)


@pytest.fixture(scope="module")
def busy() -> Report:
    """One region with everything that can be drawn: jobs, curves, failures, two outliers."""
    trials = ran(tuned_trials(30))
    for at in (12, 13):
        trials[at] = replace(trials[at], value=-1000.0)
    return report_of(region_facts("JFK", trials))


@pytest.fixture(scope="module")
def fifty() -> Report:
    return many_regions(50, 20)


def complete(browser: Browser, report: Report) -> None:
    """Open a report, see all of its first region drawn, and nothing gone wrong."""
    browser.open(report)
    browser.open_everything("details[open]")
    assert browser.complaints() == []


def test_every_kind_of_picture_is_drawn(browser: Browser, busy: Report) -> None:
    complete(browser, busy)
    drawn = browser.run(
        "return [...document.querySelectorAll('.figure')].filter(e => e.querySelector('svg'))"
        ".map(e => e.dataset.picture)"
    )
    assert sorted(drawn) == sorted(
        ["overview", "timeline", "timeline", "history", "parallel", "contour",
         "curves", "slice", "slice", "slice", "slice"]
    )  # fmt: skip
    named = browser.run("return [...document.querySelectorAll('.figure')].map(e => e.ariaLabel)")
    assert all(named)
    shares = browser.texts("details.region .bars td:last-child")
    assert shares[0].endswith("% · 27 trials")
    assert sum(int(text.split("%")[0]) for text in shares) == pytest.approx(100, abs=2)


def test_the_time_axis_of_a_very_short_run_has_distinct_labels(browser: Browser) -> None:
    job = {"started": 1.7e9, "ended": 1.7e9 + 0.2, "machine": "m"}
    failed = trial(DEFAULTS, None, error="x", job=job)
    complete(browser, report_of(region_facts("A", [failed])))
    words = browser.texts("[data-picture=timeline][data-block=regions-data] svg text")
    times = [word for word in words if ":" in word]
    assert len(times) > 1
    assert len(set(times)) == len(times)


def test_the_costs_of_regions_are_drawn_if_prices_are_known(browser: Browser, busy: Report) -> None:
    complete(browser, busy)
    assert browser.run("return document.querySelector('#costs')") is None
    regions = []
    for name, factor in (("JFK", 1.0), ("<b>LGA</b>", 5.0), ("free", 0.0)):
        trials = ran(tuned_trials(8))
        for at, each in enumerate(trials):
            lost = 0.25 * factor if at == 3 else 0.0
            attributes_of(each)["job"] |= {"usd": 0.5 * factor + lost, "lost_usd": lost}
        usd = 5.25 * factor or None  # a dollar of it for the full training
        regions.append(region_facts(name, trials, usd=usd))
    complete(browser, report_of(*regions))
    assert browser.texts("#costs-title ~ .legend li") == [
        "trials", "full training and gate", "lost",
    ]  # fmt: skip
    assert browser.texts("#costs th") == ["<b>LGA</b>", "JFK"]
    assert browser.texts("#costs td:last-child") == ["26.25 USD", "5.25 USD"]
    titles = browser.run("return [...document.querySelectorAll('#costs tr')].map(e => e.title)")
    assert titles[0] == "trials: 20.00, full training and gate: 5.00, lost: 1.25 USD"
    tuning, full, lost_work = widths_of_costs(browser)[:3]
    assert tuning / full == pytest.approx(4, rel=0.05)
    assert full / lost_work == pytest.approx(4, rel=0.1)


def widths_of_costs(browser: Browser) -> list[float]:
    widths: list[float] = browser.run(
        "return [...document.querySelectorAll('#costs rect')]"
        ".map(bar => bar.getBoundingClientRect().width)"
    )
    return widths


def test_the_cost_of_fleet_nodes_without_a_job_has_its_own_bar(browser: Browser) -> None:
    trials = ran(tuned_trials(4))
    for each in trials:
        attributes_of(each)["job"] |= {"usd": 0.5, "lost_usd": 0.0}
    report = report_of(region_facts("JFK", trials, usd=2.0))
    complete(browser, replace(report, boot_usd=0.00005, idle_usd=1.0))
    assert browser.texts("#costs-title ~ .legend li") == ["trials", "boot", "idle"]
    assert browser.texts("#costs th") == ["JFK", "fleet: boot, idle"]
    assert browser.texts("#costs td:last-child") == ["2.00 USD", "1.00 USD"]
    widths = widths_of_costs(browser)
    assert widths[0] / widths[-1] == pytest.approx(2, rel=0.05)
    assert browser.run("return document.querySelectorAll('#costs a').length") == 1
    note = browser.run("return document.querySelector('#costs ~ p').textContent")
    assert "without a job, until this page was written. For the present cost" in note
    title = browser.run("return [...document.querySelectorAll('#costs tr')].at(-1).title")
    assert title == "boot: <0.0001, idle: 1.00 USD"


@pytest.mark.parametrize(
    "values",
    [[0.5], [0.5] * 9, [1e300, -1e300, 0.0], [3e-308, 1.5e308, 5.0], [1e-12, 2e-12],
     [1.7e308, -1.7e308], [0.0, 0.0, 0.0], [1e-3, 1e-2, 0.1, 1.0, 400.0]],
)  # fmt: skip
def test_any_values_can_be_drawn_in_every_scale(browser: Browser, values: list[float]) -> None:
    trials = ran([trial(DEFAULTS | {"layers": 1 + at % 4, "rate": 1e-3 * (1 + at)}, v, at=at)
                  for at, v in enumerate(values)])  # fmt: skip
    complete(browser, report_of(region_facts("A", trials), report_metric="auc"))
    script = "document.querySelectorAll('.switch button').forEach(e => e.click())"
    browser.run(script)
    assert browser.complaints() == []
    assert browser.run("return document.querySelectorAll('[d*=NaN], [cx*=NaN]').length") == 0


def heights(browser: Browser) -> list[float]:
    """Return the heights of the history's points above the lower edge, in parts of the picture."""
    places: list[float] = browser.run("""
        const picture = document.querySelector('[data-picture=history] svg');
        const box = picture.getBoundingClientRect();
        return [...picture.querySelectorAll('g[aria-label=dot] circle')]
            .map(e => e.getBoundingClientRect())
            .map(e => 1 - (e.top + e.height / 2 - box.top) / box.height);
    """)
    return places


def test_outliers_do_not_flatten_the_history_and_a_switch_shows_them(
    browser: Browser, busy: Report
) -> None:
    complete(browser, busy)
    switch = "[data-switch=range-data-0]"
    pressed = f"return document.querySelector('{switch} [aria-pressed=true]').textContent"
    assert browser.run(pressed) == "Without outliers"
    clipped = heights(browser)
    assert max(clipped) - min(clipped) > 0.5
    note = "[data-picture=history] p"
    assert all(
        text.endswith("trials outside this view, at its edge.") for text in browser.texts(note)
    )
    assert browser.texts(note)
    assert browser.run("return document.querySelectorAll('[data-picture=history] path[transform*="
                       "rotate]').length") >= 2  # fmt: skip
    browser.run(f"document.querySelector('{switch} [value=whole]').focus()")
    browser.press(" ")
    assert browser.run(pressed) == "Whole range"
    linear = sorted(heights(browser))
    assert browser.texts(note) == []
    assert linear[-1] - linear[2] < 0.05  # a line except two outliers: a switch helps
    # not all values are positive: there is no logarithm to choose
    assert browser.run("return document.querySelector('[data-switch=scale-data-0]')") is None
    assert browser.run("return document.querySelectorAll('button:disabled').length") == 0


def test_each_switch_has_one_pressed_option_and_useless_switches_are_left_out(
    browser: Browser, busy: Report, fifty: Report
) -> None:
    complete(browser, busy)
    switches = "[...document.querySelectorAll('[data-switch]')]"
    named = browser.run(f"return {switches}.map(e => [e.dataset.switch, e.ariaLabel])")
    assert ["range-data-0", "Range of auc"] in named
    for _ in range(2):
        pressed = f"return {switches}.map(e => e.querySelectorAll('[aria-pressed=true]').length)"
        assert set(browser.run(pressed)) == {1}
        browser.run("document.querySelectorAll('[data-switch] button').forEach(e => e.click())")
    complete(browser, fifty)  # without outliers
    kinds = browser.run(f"return {switches}.map(e => e.dataset.switch.split('-data-')[0])")
    assert set(kinds) == {"show-overview", "scale-overview", "scale", "curves-scale"}


def test_the_trials_table_has_each_trials_settings_figures_and_job(browser: Browser) -> None:
    trials = ran(tuned_trials(24))
    attributes_of(trials[3])["job"] |= {"usd": 0.25, "memory_mb": 1234.4, "machine": "node-2"}
    browser.open(report_of(region_facts("JFK", trials)))
    browser.open_everything()
    titles = browser.texts(".trials th")
    assert titles == [
        "Trial", "State", "auc", "test", "rate", "layers", "solver", "momentum", "Started (UTC)",
        "Time", "CPU time", "Memory", "USD", "Machine", "Attempts", "DAG node",
    ]  # fmt: skip
    cells = browser.texts(".trials td")
    rows = [cells[at : at + len(titles)] for at in range(0, len(cells), len(titles))]
    row = dict(zip(titles, rows[3], strict=True))
    assert row["Started (UTC)"] == "20 Nov 02:01:00"
    assert (row["Time"], row["CPU time"], row["Memory"]) == ("55 s", "2 min 50 s", "1,234 MB")
    assert (row["USD"], row["Machine"]) == ("0.2500", "slot1_1@node-1")
    assert (row["State"], row["Attempts"], row["DAG node"]) == ("complete", "1", "R.l0.t03")
    assert dict(zip(titles, rows[0], strict=True))["State"] == "complete, default settings"
    failed = dict(zip(titles, rows[5], strict=True))
    assert (failed["State"], failed["auc"], failed["USD"]) == ("failed", NOTHING, NOTHING)
    for title in ("auc", "test", "rate", "momentum"):
        column = [row[titles.index(title)] for row in rows]
        forms = {re.sub(r"\d+", lambda part: "0" * len(part[0]), text) for text in column}
        forms = {form.split(" × ")[0] for form in forms - {"", NOTHING}}
        assert len({len(form.partition(".")[2]) for form in forms}) == 1, (title, column)
    memory = titles.index("Memory")
    browser.run("document.querySelectorAll('.trials th')[arguments[0]].firstChild.click()", memory)
    assert browser.texts(".trials td")[0] == "3"


def test_a_closed_region_is_made_when_it_is_opened(browser: Browser, fifty: Report) -> None:
    browser.open(fifty)
    made = "return [...document.querySelectorAll('.region .body:not(:empty)')].length"
    assert browser.run(made) == 1
    browser.run("document.querySelector('#region-R12 summary').click()")
    browser.run("document.getElementById('region-R12').scrollIntoView()")
    browser.wait("return document.querySelector('#region-R12 [data-picture=history] svg')")
    assert browser.run(made) == 2
    assert browser.complaints() == []


def point_at(browser: Browser, picture: str, place: str) -> None:
    """Point into a picture at what a script returns, which gets the picture's selector."""
    browser.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", picture)
    browser.point(picture, *browser.run(place, picture))


def test_a_pointed_trial_stands_out_and_a_click_shows_its_row(
    browser: Browser, busy: Report
) -> None:
    complete(browser, busy)
    picture = "[data-picture=parallel] svg"
    point_at(
        browser,
        picture,
        "const svg = document.querySelector(arguments[0]).getBoundingClientRect();"
        "const line = document.querySelector('.lines path:last-of-type');"
        "const at = line.getPointAtLength(0).matrixTransform(line.getScreenCTM());"
        "return [at.x - svg.left + 10, at.y - svg.top]",
    )
    browser.wait("return document.querySelectorAll('.lines path.pointed').length == 1")
    trial = browser.texts(f"{picture} [aria-label=tip] tspan")[0].strip("\u200b").split()[1]
    browser.run("document.querySelector(arguments[0]).dispatchEvent("
                "new MouseEvent('click', {bubbles: true}))", picture)  # fmt: skip
    assert browser.run("return document.querySelector('details.trials').open")
    assert browser.run("return document.querySelector('tr.shown').cells[0].innerText") == trial


def test_dragging_along_an_axis_picks_trials(browser: Browser, busy: Report) -> None:
    from selenium.webdriver import ActionChains

    complete(browser, busy)
    overlay = browser.driver.find_element("css selector", ".brush .overlay")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", overlay)
    faded = "return document.querySelectorAll('.lines path.faded').length"
    assert browser.run(faded) == 0
    drag = ActionChains(browser.driver).move_to_element_with_offset(overlay, 0, -40)
    drag.click_and_hold().move_by_offset(0, 30).release().perform()
    browser.wait(f"{faded} > 0")
    assert browser.run(faded) < 27
    ActionChains(browser.driver).move_to_element_with_offset(overlay, 0, 90).click().perform()
    browser.wait(f"{faded} == 0")


def test_a_bar_of_the_timeline_says_which_trial_ran_when_and_where(
    browser: Browser, busy: Report
) -> None:
    complete(browser, busy)
    picture = "[data-picture=timeline][data-block=regions-data]"
    point_at(
        browser,
        picture,
        "const from = document.querySelector(arguments[0]).getBoundingClientRect();"
        "const bar = document.querySelector(arguments[0] + ' rect').getBoundingClientRect();"
        "return [bar.left + bar.width / 2 - from.left, bar.top + bar.height / 2 - from.top]",
    )
    browser.wait(f"return document.querySelector('{picture} [aria-label=tip] text')")
    lines = [line.strip("\u200b") for line in browser.texts(f"{picture} [aria-label=tip] tspan")]
    assert lines == [
        "JFK · trial 0", "complete", "02:00:00 to 02:00:55 UTC, 55 s", "node-1"
    ]  # fmt: skip
    note = browser.texts(f"{picture} + p")[0]
    assert note.startswith("30 jobs on 1 machine: a machine has as many rows")


def type_filter(browser: Browser, text: str) -> None:
    browser.run("document.getElementById('filter').select()")
    browser.press(text)


def test_the_filter_narrows_pictures_table_and_regions(browser: Browser, fifty: Report) -> None:
    complete(browser, fifty)
    rows, names = SHOWN.format("[data-region]:is(tr)"), SHOWN.format("details.region > summary")
    labels = SHOWN.format("[data-picture=overview] a")
    assert len(browser.run(rows)) == len(browser.run(names)) == 50
    assert len(browser.run(labels)) == 44
    type_filter(browser, "r1")
    browser.wait("return document.getElementById('shown').textContent == '10 of 50 regions shown'")
    expected = [f"R1{at}" for at in range(10)]
    assert browser.run(rows) == expected
    assert sorted(browser.run(names)) == expected
    assert sorted(browser.run(labels)) == expected[:-1]
    browser.run("document.querySelector('[data-chip=failed]').click()")
    assert browser.run(names) == ["R19"]
    assert browser.texts(".group:not([hidden]) .group-title") == ["Failed or stopped 5"]
    type_filter(browser, "nothing")
    assert browser.run(names) == []
    assert browser.complaints() == []


def test_every_group_shows_its_number_of_regions(browser: Browser, fifty: Report) -> None:
    complete(browser, fifty)
    chips = browser.texts("[data-chip]")
    assert chips == ["All 50", "Published 44", "Failed or stopped 5", "No result 1"]
    pressed = "return document.querySelector('[data-chip][aria-pressed=true]').dataset.chip"
    assert browser.run(pressed) == ""
    browser.run("document.querySelector('[data-chip=empty]').focus()")
    browser.press("\ue007")
    assert browser.run(pressed) == "empty"
    assert browser.run(SHOWN.format("details.region > summary")) == ["R07"]


def test_a_link_to_a_region_that_the_filter_hides_clears_the_filter(
    browser: Browser, fifty: Report
) -> None:
    complete(browser, fifty)
    type_filter(browser, "R4")
    browser.run("location.hash = '#region-R12'")
    browser.wait("return document.getElementById('region-R12').open")
    assert browser.run("return document.getElementById('filter').value") == ""
    assert len(browser.run(SHOWN.format("details.region > summary"))) == 50


def test_fifty_regions_are_opened_and_closed_at_once(browser: Browser, fifty: Report) -> None:
    complete(browser, fifty)
    opened = "return document.querySelectorAll('.region[open]').length"
    assert browser.run(opened) == 1
    browser.run("document.querySelector('[data-open-all=true]').click()")
    assert browser.run(opened) == 50
    drawn = "return document.querySelectorAll('.figure svg').length"
    assert browser.run(drawn) < 60  # the others wait until they come into view
    browser.run("document.getElementById('region-R41').scrollIntoView()")
    browser.wait("return document.querySelector('#region-R41 [data-picture=history] svg')")
    browser.run("document.querySelector('[data-open-all=false]').click()")
    assert browser.run(opened) == 0


def test_the_overview_shows_gains_by_a_switch(browser: Browser, fifty: Report) -> None:
    complete(browser, fifty)
    texts = "[data-picture=overview] text"
    assert "test (higher is better)" in browser.texts(texts)
    browser.run("document.querySelector('[data-switch=show-overview] [value=gain]').click()")
    browser.wait(f"return [...document.querySelectorAll('{texts}')]"
                 ".some(e => e.textContent == 'test, gain (positive is better)')")  # fmt: skip


def test_a_table_that_is_too_wide_for_a_phone_says_so(browser: Browser, fifty: Report) -> None:
    browser.resize(360, 740)
    complete(browser, fifty)
    table = ".table:has(tr[data-region])"
    browser.run("document.querySelector('[data-more]').click()")
    browser.wait(f"return document.querySelector('{table}.more-right')")
    assert browser.run(f"return document.querySelector('{table} .hint').innerText").endswith(
        "more columns →"
    )
    browser.run(f"document.querySelector('{table} .scroll').scrollLeft = 10000")
    browser.wait(f"return document.querySelector('{table}.more-left:not(.more-right)')")
    assert browser.run(f"return document.querySelector('{table} .hint').innerText") == ""
    browser.resize(2000, 900)
    browser.wait(f"return document.querySelector('{table}:not(.more-left, .more-right)')")


def test_the_page_warns_that_tuned_settings_are_worse_than_default(browser: Browser) -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 0.7}),
        trial(DEFAULTS, 0.6, at=1, metrics={"test": 0.6}),
    ]
    facts: dict[str, Any] = {"published": "/models/A/r", "final": {"test": 0.6}}
    browser.open(report_of(region_facts("A", trials, **facts)))
    alert = browser.run("return document.querySelector('#region-A .alert').innerText")
    assert alert.startswith("Tuned is worse than default. By test, tuned settings reach 0.6000")
    assert "auc, by which the settings were chosen, and test disagree." in alert
    attention = browser.run("return document.querySelector('.attention').innerText")
    assert "A tuned settings are worse than default by test" in attention
    assert "published, worse than default" in browser.texts("#region-A .status")
