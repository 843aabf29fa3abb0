"""The page in a real Chromium: its updates, the keyboard, a phone's width, hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from optuna.trial import TrialState

from tests.conftest import MakeRun, make_runs_in
from tests.stored_runs import StoredRun, stored, stored_trial, turns
from tests.unit.conftest import ask_no_pool
from tests.unit.report.report_browser import Browser
from tests.unit.serve.page_server import Server, serving
from trialfleet.files import write_json

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>"
BEGAN = datetime.now() - timedelta(minutes=10)


@contextmanager
def trials_of_regions(make_run: MakeRun) -> Iterator[StoredRun]:
    names = ["north", "south", "east", HOSTILE, "a-region-with-a-name-that-is-far-too-long-for-it"]
    made = make_run(regions=names, budget={"trials": 12, "lanes": 2})
    with stored(made) as opened:
        for name in names[:4]:
            opened.fill(name, 6, BEGAN)
        yield opened


@pytest.fixture
def run(make_run: MakeRun) -> Iterator[StoredRun]:
    with trials_of_regions(make_run) as opened:
        yield opened


@pytest.fixture
def opened(run: StoredRun, work: Path, browser: Browser) -> Iterator[str]:
    """The address of a page that the browser shows."""
    with serving(work) as server, shown(browser, server):
        yield server.url


@contextmanager
def shown(browser: Browser, server: Server) -> Iterator[None]:
    browser.driver.get("about:blank")
    browser.requests()
    browser.complaints()
    browser.driver.get(server.url)
    browser.wait("return document.querySelector('.region-tile')")
    yield
    browser.driver.get("about:blank")


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of such a run, for tests that only read its pages."""
    work = tmp_path_factory.mktemp("lasting")
    with pytest.MonkeyPatch.context() as environment:
        ask_no_pool(environment, work)
        with trials_of_regions(make_runs_in(work)), serving(work) as started:
            yield started


@pytest.fixture
def page(lasting_server: Server, browser: Browser) -> Iterator[str]:
    """The address of a page that the browser shows, of a run that nothing changes."""
    with shown(browser, lasting_server):
        yield lasting_server.url


def test_the_page_follows_the_run_and_asks_nobody_else(
    run: StoredRun, browser: Browser, opened: str
) -> None:
    assert "24 of 60" in " ".join(browser.texts(".figures dd"))
    browser.run("document.getElementById('region-north').focus()")
    node, start = turns(run.graph["north"], 7, BEGAN)[6]
    trial = run.add("north", stored_trial(node, start, None, state=TrialState.RUNNING))
    run.tell(trial, 0.01)
    browser.wait("return document.querySelector('.figures').textContent.includes('25 of 60')")
    assert browser.run("return document.activeElement.id") == "region-north"
    assert browser.complaints() == []
    asked = {urlsplit(url).netloc for url in browser.requests() if url.startswith("http")}
    assert asked == {urlsplit(opened).netloc}


def test_a_hostile_name_does_nothing(browser: Browser, page: str) -> None:
    assert HOSTILE in browser.texts(".region-tile .name")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    browser.run("[...document.querySelectorAll('.region-tile')].at(-2).click()")
    browser.wait("return location.pathname.includes('/regions/')")
    assert browser.texts("h1") == [HOSTILE]
    assert browser.complaints() == []


def test_everything_is_reached_by_the_keyboard(browser: Browser, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.press("/")
    for key in "sout":
        browser.press(key)
    shown = "return [...document.querySelectorAll('.regions > li')].filter(e => !e.hidden).length"
    assert browser.run(shown) == 1
    browser.press(Keys.ESCAPE)
    assert browser.run(shown) == 5
    browser.run("document.getElementById('region-north').focus()")
    browser.press(Keys.ARROW_RIGHT)
    assert browser.run("return document.activeElement.id") == "region-south"
    browser.press(Keys.ENTER)
    browser.wait("return location.pathname.endsWith('/regions/south')")
    browser.wait("return document.querySelector('#trial-5')")
    browser.run("document.getElementById('trial-5').focus()")
    browser.press(Keys.ENTER)
    browser.wait("return location.pathname.includes('/trials/south.l')")
    assert "Settings" in browser.texts("h2")


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, page: str) -> None:
    browser.resize(400, 800)
    root = page.rstrip("/")
    for path in (
        "/",
        "/runs",
        "/runs/r1/regions/north",
        "/runs/r1/regions/north/trials/north.l1.t01",
    ):
        browser.driver.get(f"{root}{path}")
        browser.wait("return document.readyState == 'complete'")
        assert browser.run("return document.documentElement.scrollWidth") <= 400
    assert browser.complaints() == []


def test_the_reader_chooses_between_light_and_dark(browser: Browser, page: str) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    browser.run("document.getElementById('theme').click()")
    dark = browser.run(colour)
    assert dark != light
    browser.driver.get(page)
    assert browser.run(colour) == dark
    browser.run("localStorage.clear()")


def test_a_page_whose_server_is_gone_says_so(run: StoredRun, work: Path, browser: Browser) -> None:
    with serving(work) as server:
        browser.driver.get(server.url)
        browser.wait("return document.querySelector('.region-tile')")
        assert browser.run("return document.getElementById('lost').hidden")
    browser.wait("return !document.getElementById('lost').hidden")


def test_a_renewed_page_keeps_opened_details_and_typed_text(
    run: StoredRun, browser: Browser, opened: str
) -> None:
    study = run.run.study
    model = Path(study.publish) / study.name / "north" / "r0"
    model.mkdir(parents=True)
    provenance = {"study": study.name, "run": "r0", "created": "2026-11-20T02:00:00+00:00"}
    write_json(model / "provenance.json", provenance)
    browser.driver.get(f"{opened}runs/r1/regions/north")
    browser.wait("return document.querySelector('#model-r0 summary')")
    browser.run("document.querySelector('#model-r0 summary').click()")
    (model.parent / "latest").symlink_to("r0")
    browser.wait("return document.querySelector('#model-r0').textContent.includes('current')")
    assert browser.run("return document.getElementById('model-r0').open")
    browser.driver.get(opened)
    browser.wait("return document.getElementById('filter')?.hidden === false")
    browser.press("/")
    browser.press("n")
    node, start = turns(run.graph["north"], 7, BEGAN)[6]
    run.add("north", stored_trial(node, start, 0.3))
    browser.wait("return document.querySelector('.figures').textContent.includes('25 of 60')")
    browser.press("o")
    assert browser.run("return document.getElementById('filter').value") == "no"
    shown = "return [...document.querySelectorAll('.regions > li')].filter(e => !e.hidden).length"
    assert browser.run(shown) == 1


def test_pictures_follow_the_run_and_keep_what_the_reader_chose(
    run: StoredRun, browser: Browser, opened: str
) -> None:
    browser.driver.get(f"{opened}runs/r1/regions/north")
    browser.wait("return document.querySelector('[data-picture=history] svg')")
    browser.open_everything("details.none")
    assert browser.texts(".trials tbody td:first-child") == list("543210")  # the newest first
    for picture in ("history", "curves", "timeline", "slice"):
        assert browser.run(f"return document.querySelector('[data-picture={picture}] svg')")
    log = "document.querySelector('[data-switch=scale-data-0] [value=log]')"
    browser.run(f"{log}.click()")
    browser.run("document.querySelector('.sortable thead button').click()")
    # a picture that is renewed without new data is not redrawn
    browser.run("for (const each of document.querySelectorAll('.figure svg')) each.before = true")
    study = run.run.study
    model = Path(study.publish) / study.name / "north" / "r0"
    model.mkdir(parents=True)
    provenance = {"study": study.name, "run": "r0", "created": "2026-11-20T02:00:00+00:00"}
    write_json(model / "provenance.json", provenance)
    browser.wait("return document.querySelector('#model-r0')")
    kept = "return [...document.querySelectorAll('.figure svg')].every(e => e.before)"
    assert browser.run(kept)
    node, start = turns(run.graph["north"], 7, BEGAN)[6]
    run.add("north", stored_trial(node, start, 0.01))
    browser.wait("return document.querySelector('#trial-6')")
    assert not browser.run("return document.querySelector('[data-picture=history] svg').before")
    assert browser.run(f"return {log}.getAttribute('aria-pressed')") == "true"
    assert browser.texts(".trials tbody td:first-child") == list("6543210")
    browser.run("document.querySelector('.sortable thead button').click()")
    assert browser.texts(".trials tbody td:first-child") == list("0123456")
    browser.run("document.querySelector('[data-picture=history] svg').value = {number: 3}")
    browser.run("document.querySelector('[data-picture=history] svg')"
                ".dispatchEvent(new Event('click', {bubbles: true}))")  # fmt: skip
    browser.wait("return location.pathname.includes('/trials/north.l')")
    assert browser.complaints() == []
