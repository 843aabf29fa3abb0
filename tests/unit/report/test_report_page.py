"""The report's page: its HTML read by Python's parser, and the page itself in a real Chromium."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.unit.report.report_browser import Browser
from tests.unit.report.report_studies import (
    DEFAULTS,
    SPACE,
    blocks_of,
    ran,
    region_facts,
    report_of,
    text_of,
    trial,
)
from trialfleet.workflows.views.report.page import render_page
from trialfleet.workflows.views.report.report_types import Report

MARKUP = """</script><img src="x" onerror="owned = 1"><b>'&amp;'</b>"""
BOLD = "<b>&lt;</b>"
RIGHT_TO_LEFT = "\N{RIGHT-TO-LEFT OVERRIDE}مطار <i>x</i>"
SLUG = "a b%20'\"<&"


@pytest.fixture(scope="module")
def hostile() -> Report:
    """Every text that comes from outside is markup; one region is healthy, one never started."""
    trials = [
        trial({MARKUP: 0.001 * (at + 1), BOLD: 2}, 0.5 + at / 100, at=at, **hostile_notes(at))
        for at in range(12)
    ]
    ran(trials)
    trials[3].user_attrs["job"]["slot"] = MARKUP
    trials.append(trial(DEFAULTS, None, at=12, error=f"{MARKUP}\n{'long ' * 2000}{RIGHT_TO_LEFT}"))
    facts: dict[str, Any] = {
        "reason": MARKUP,
        "parameters": {**SPACE, MARKUP: SPACE["rate"], BOLD: SPACE["layers"]},
        "published": f"/m/{MARKUP}",
        "slug": SLUG,
        "final": {MARKUP: 1.0},
        "defaults": {MARKUP: MARKUP, BOLD: 1},
    }
    return report_of(
        region_facts(MARKUP, trials, **facts),
        region_facts(RIGHT_TO_LEFT + "x" * 200, tuned_pair(), slug="long"),
        region_facts("not\nstarted", [], slug="never"),
        study=MARKUP,
        run=MARKUP,
        report_metric=MARKUP,
    )


def hostile_notes(at: int) -> dict[str, Any]:
    return {"node": MARKUP, "device": MARKUP, "baseline": at == 0, "metrics": {MARKUP: at / 10}}


def tuned_pair() -> list[Any]:
    return [
        trial(DEFAULTS, value, at=at, baseline=at == 0, metrics={MARKUP: value})
        for at, value in enumerate([0.5, 0.4])
    ]


class Reader(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get(attribute)) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tuned", "hostile"])
def test_texts_of_a_report_add_no_elements_or_attributes_to_the_page(
    request: pytest.FixtureRequest, name: str
) -> None:
    reader = Reader(text_of(request.getfixturevalue(name)))
    tags = {tag for tag, _ in reader.elements}
    assert not tags & {"img", "iframe", "object", "embed", "form", "base"}
    assert not [key for _, attrs in reader.elements for key in attrs if key.startswith("on")]
    links = reader.all("href") + reader.all("src")
    assert [link for link in links if not link.startswith(("#region-", "data:,"))] == []
    identifiers = reader.all("id")
    assert len(identifiers) == len(set(identifiers))


def test_the_same_report_gives_the_same_page(tuned: Report) -> None:
    assert render_page(tuned) == render_page(tuned)


def test_the_compressed_data_cannot_end_its_html_element(hostile: Report) -> None:
    found = re.search(r'id="packed">([^<]*)</script>', render_page(hostile))
    assert found
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", found[1])
    assert blocks_of(render_page(hostile))[0]["names"] == [each.name for each in hostile.regions]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_of_text_can_be_read_on_every_background(tuned: Report, theme: str) -> None:
    blocks = re.findall(r"--surface: [^}]*", render_page(tuned).split("</style>")[0])
    colors = dict(re.findall(r"--(\w+): (#\w{6})", blocks[0 if theme == "light" else 1]))
    for background in ("surface", "raised", "alert"):
        for text in ("ink", "muted", "tuned", "failed", "good"):
            assert contrast(colors[text], colors[background]) >= 4.5, (text, background)


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio of two colours."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.browser
@pytest.mark.parametrize("name", ["tuned", "hostile"])
def test_everything_is_drawn_without_a_request_or_a_complaint(
    browser: Browser, request: pytest.FixtureRequest, name: str
) -> None:
    browser.open(request.getfixturevalue(name))
    browser.open_everything()
    requests = [url for url in browser.requests() if not url.startswith("data:")]
    assert [Path(url).name for url in requests] == ["report.html"]
    assert browser.complaints() == []


@pytest.mark.browser
def test_hostile_texts_are_shown_and_never_run(browser: Browser, hostile: Report) -> None:
    browser.open(hostile)
    browser.open_everything()
    assert browser.run("return typeof owned") == "undefined"
    assert browser.run("return document.querySelectorAll('img, main i:not([class])').length") == 0
    assert browser.run("return document.querySelector('h1').textContent") == MARKUP
    shown = browser.run(
        "return [...document.querySelectorAll('summary .name')].map(e => e.textContent)"
    )
    assert sorted(shown) == sorted(region.name for region in hostile.regions)
    error = browser.run("return document.querySelector('.failures pre').textContent")
    assert error.startswith(f"{MARKUP}\n")
    assert "characters …" in error
    ticks = browser.run(
        "return [...document.querySelectorAll('.figure text')].map(e => e.textContent)"
    )
    assert any(tick.startswith("</script><img") for tick in ticks)
    assert BOLD in ticks


@pytest.mark.browser
def test_a_trials_hover_shows_its_settings_literally(browser: Browser, hostile: Report) -> None:
    browser.open(hostile)
    browser.open_everything()
    picture = "[data-picture=history][data-block=data-0]"
    place = browser.run(
        f"const dot = [...document.querySelectorAll('{picture} circle')].at(-1);"
        f"const from = document.querySelector('{picture}').getBoundingClientRect();"
        "const box = dot.getBoundingClientRect();"
        "return [box.left + box.width / 2 - from.left, box.top + box.height / 2 - from.top]"
    )
    browser.point(picture, *place)
    browser.wait(f"return document.querySelector('{picture} [aria-label=tip] text')")
    tip = browser.texts(f"{picture} [aria-label=tip]")[0]
    assert tip.startswith("\u200btrial 11 · best")
    for text in ("</script><img", "0.012", f"{BOLD}: 2"):
        assert text in tip


@pytest.mark.browser
def test_the_policy_stops_scripts_and_requests_that_are_not_the_pages_own(
    browser: Browser, tuned: Report
) -> None:
    browser.open(tuned)
    browser.run("""
        window.blocked = [];
        addEventListener("securitypolicyviolation", (e) => blocked.push(e.effectiveDirective));
        const add = (tag, set) =>
            document.body.append(Object.assign(document.createElement(tag), set));
        add("script", { textContent: "window.owned = 1" });
        add("img", { src: "http://127.0.0.1:9/x.png" });
        add("div", { innerHTML: "<a id=x onclick='window.owned = 1'>x</a>" });
        document.getElementById("x").click();
        fetch("http://127.0.0.1:9/").catch(() => 0);
    """)
    browser.wait("return blocked.length >= 4")
    assert browser.run("return typeof owned") == "undefined"
    assert set(browser.run("return blocked")) == {
        "script-src-elem", "script-src-attr", "img-src", "connect-src"
    }  # fmt: skip


@pytest.mark.browser
def test_the_first_region_is_open_and_others_are_drawn_when_opened(
    browser: Browser, tuned: Report
) -> None:
    drawn = "return [...document.querySelectorAll('.figure svg')].map(e => e.parentNode.dataset)"
    browser.open(tuned)
    browser.wait("return document.querySelector('[data-picture=overview] svg')")
    assert browser.run("return document.querySelector('.region[open]').id") == "region-JFK"
    assert browser.run("return document.querySelectorAll('.region[open]').length") == 1
    browser.open_everything("details[open]")
    assert {item["block"] for item in browser.run(drawn)} == {"regions-data", "data-0"}
    browser.run("document.querySelector('#region-LGA summary').focus()")
    browser.press("\ue007")  # Enter
    browser.wait("return document.querySelector('[data-picture=history][data-block=data-1] svg')")


@pytest.mark.browser
@pytest.mark.parametrize("how", ["address", "link", "picture"])
def test_a_region_is_opened_by_its_address(browser: Browser, hostile: Report, how: str) -> None:
    browser.open(hostile, "#region-a%20b%2520%27%22%3C%26" if how == "address" else "")
    browser.run("if (!arguments[0]) document.querySelectorAll('.region')"
                ".forEach(e => { e.open = false })", how == "address")  # fmt: skip
    if how == "link":
        browser.run("document.querySelector('tbody a').click()")
    elif how == "picture":
        browser.wait("return document.querySelector('.figure svg a')")
        browser.run("[...document.querySelectorAll('.figure svg a')].find(e => e.href.baseVal"
                    ".startsWith('#region-a')).dispatchEvent(new MouseEvent('click',"
                    "{bubbles: true, cancelable: true}))")  # fmt: skip
    region = "document.getElementById(arguments[0])"
    browser.wait(f"return document.getElementById({json.dumps('region-' + SLUG)}).open")
    assert browser.run(
        f"return document.activeElement == {region}.querySelector('summary')", f"region-{SLUG}"
    )


@pytest.mark.browser
def test_the_table_sorts_by_a_click_or_the_keyboard_and_unknown_stays_last(
    browser: Browser,
) -> None:
    def pair(tuned: float) -> list[Any]:
        return [trial(DEFAULTS, v, at=at, baseline=at == 0, metrics={"test": v})
                for at, v in enumerate([0.5, tuned])]  # fmt: skip

    regions = [region_facts(name, pair(value)) for name, value in
               [("r10", 0.6), ("r9", 0.95), ("r2", 0.55)]]  # fmt: skip
    never = region_facts("r1", [])
    browser.open(report_of(regions[0], never, *regions[1:]))
    rows = "[...document.querySelectorAll('main table tbody tr')]"
    order = f"return {rows}.map(row => row.cells[0].innerText)"
    header = "[...document.querySelectorAll('main table thead th')].find(h => h.innerText == '{}')"
    assert browser.run(order)[:4] == ["r10", "r1", "r9", "r2"]
    browser.run(f"{header.format('Gain')}.querySelector('button').click()")
    assert browser.run(order)[:4] == ["r9", "r10", "r2", "r1"]
    browser.press("\ue007")
    browser.run(f"{header.format('Gain')}.querySelector('button').focus()")
    browser.press("\ue007")
    assert browser.run(order)[:4] == ["r2", "r10", "r9", "r1"]
    script = "return [...document.querySelectorAll('main table thead th')].map(h => h.ariaSort)"
    assert [value for value in browser.run(script) if value] == ["ascending"]
    browser.run(f"{header.format('Region')}.querySelector('button').click()")
    assert browser.run(order)[:4] == ["r1", "r2", "r9", "r10"]


@pytest.mark.browser
def test_page_and_pictures_follow_the_theme(browser: Browser, tuned: Report) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    name = "return getComputedStyle(document.querySelector('.figure svg a')).fill"
    surface = (
        "return document.querySelector('[data-picture=contour] path[fill]').attributes.fill.value"
    )
    browser.open(tuned)
    browser.open_everything("details[open]")
    light = [browser.run(script) for script in (background, name, surface)]
    browser.prefer("dark")
    browser.wait("return document.getElementById('theme').textContent == 'Light'")
    dark = [browser.run(script) for script in (background, name, surface)]
    assert all(one != other for one, other in zip(light, dark, strict=True))
    browser.run("document.getElementById('theme').click()")
    assert [browser.run(script) for script in (background, name, surface)] == light


@pytest.mark.browser
@pytest.mark.parametrize("name", ["tuned", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(
    browser: Browser, request: pytest.FixtureRequest, name: str
) -> None:
    browser.resize(360, 740)
    browser.open(request.getfixturevalue(name))
    browser.open_everything()
    assert browser.run("return document.documentElement.scrollWidth") == 360


@pytest.mark.browser
def test_on_paper_pictures_are_light_and_fit(browser: Browser, tuned: Report) -> None:
    browser.prefer("dark")
    browser.open(tuned)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    pictures = "[...document.querySelectorAll('.figure svg')]"
    widths = browser.run(f"return {pictures}.map(e => e.getBoundingClientRect().right)")
    figures = "document.querySelectorAll('main > section > .figure, details[open] .figure').length"
    assert len(widths) == browser.run(f"return {figures}")
    assert max(widths) <= browser.run("return document.body.getBoundingClientRect().right")
    assert browser.run("return document.body.offsetWidth") <= 46 * 16
    assert browser.run("return document.documentElement.dataset.theme") == "light"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.documentElement.dataset.theme ?? null") is None
    browser.wait(f"return {pictures}[0].getBoundingClientRect().right > 800")
