"""Fixtures for all unit tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trialfleet.infra.pool import connection

if TYPE_CHECKING:
    from tests.unit.report.report_browser import Browser
    from trialfleet.workflows.views.report.report_types import Report

# Plain torch, not a library that a compiler must make first; test_kernels_build.py makes one.
os.environ.setdefault("TRIALFLEET_PLAIN", "1")


@pytest.fixture(autouse=True)
def no_pool_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without memory of the pools of other tests."""
    monkeypatch.setattr(connection, "_kept_seconds", 0.0)
    monkeypatch.setattr(connection, "_found", None)
    monkeypatch.setattr(connection, "_put", set())


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium for all tests of a module."""
    pytest.importorskip("selenium", reason="the Python package selenium is not installed")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: chromium, chromium-driver)")
    from tests.unit.report.report_browser import Browser

    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The module's Chromium as a desktop in daylight."""
    chromium.resize(1280, 900)
    chromium.prefer("light")
    return chromium


@pytest.fixture(scope="module")
def tuned() -> Report:
    """The report of two regions that were tuned."""
    from tests.unit.report.report_studies import two_regions

    return two_regions()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch with one thread: more cost more than they bring on tables of a test's size."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is submitted here, so /tmp will do; and no HTCondor is asked."""
    ask_no_pool(monkeypatch, tmp_path)
    return tmp_path


def ask_no_pool(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", str(folder / "no-such-config"))
    monkeypatch.setenv("TRIALFLEET_POOL", str(folder / "no-such-pool"))


@pytest.fixture
def empty_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock of HTCondor's queue, in which nothing is."""
    from trialfleet.workflows.facts.dagman import job_queue
    from trialfleet.workflows.status import status_reader as status

    nothing: Any = dict.fromkeys(("running", "idle", "regions"), frozenset())
    empty = job_queue.QueuedRun(root=None, root_held=None, held=(), ads=(), **nothing)
    for module in (job_queue, status):
        monkeypatch.setattr(module, "look_up", lambda _: empty)


@pytest.fixture
def trials_per_job() -> int | str:
    """A job for each trial: most of these tests are about one trial's files and words."""
    return 1
