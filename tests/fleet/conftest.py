"""The lab for tests in this folder: one for each file that asks for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lab.lab import Lab, LabError
from tests.fleet.lab.namespaces import why_none
from tests.fleet.lab.project import Project
from tests.fleet.mock_aws.moto_account import Account, account

TAIL = 6_000  # characters of a console that a failed test shows


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "lab" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.fleet)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(900))  # its start counts, on a busy machine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache and state, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def cloud(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An empty AWS account; this machine is none of its instances."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with account() as empty:
        yield empty


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab; `LAB = {…}` in the test's file gives its options."""
    if why_none():
        # Where every change is checked the lab must run, or nobody would notice that it never does.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no lab: {why_none()}")
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    with Lab.start(folder, **getattr(request.module, "LAB", {})) as started:
        yield started


@pytest.fixture(scope="module")
def project(lab: Lab) -> Project:
    """A manager; a file that wants more of it has a fixture of this name that adds it."""
    made = Project(lab)
    made.install()
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show what the machines' consoles have printed, where a test fails."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if lab is not None and report.failed:  # type: ignore[attr-defined]
        for machine in [lab.manager, *(lab.machine(found["id"]) for found in lab.instances())]:
            try:
                report.sections.append((f"console of {machine.id}", machine.log()[-TAIL:]))  # type: ignore[attr-defined]
            except LabError as error:
                report.sections.append((f"console of {machine.id}", str(error)))  # type: ignore[attr-defined]
    return report
