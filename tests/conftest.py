"""Fixtures for tests of several folders."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import settings
from optuna.storages._rdb.storage import _VersionManager

from trialfleet import Run, Study, plan

# As the service does: several workers of the tests, each with a thread for every core, would wait
# for one another most of the time. Libraries read it when they are loaded, so it is set here.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

MOODY = Path(__file__).parent / "pool" / "trainers" / "moody.py"


# Optuna runs its ten migration scripts, with all their tables, whenever a database is opened. That
# is a third of the processor time of the tests of runs.
_read_migrations = _VersionManager._create_alembic_script
_migrations: list[Any] = []


def _read_migrations_once(manager: _VersionManager) -> Any:
    if not _migrations:
        _migrations.append(_read_migrations(manager))
    return _migrations[0]


_VersionManager._create_alembic_script = _read_migrations_once  # type: ignore[assignment,method-assign]

# The same examples everywhere, or new ones (`make fuzz`); no deadline, as machines are shared.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("new", deadline=None, derandomize=False, print_blob=True, database=None)
settings.load_profile(os.environ.get("TRIALFLEET_EXAMPLES", "same"))


class FailuresAtOnce:
    """Prints a test's name and cause as soon as it fails, in case pytest is killed later."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.getplugin("terminalreporter")
        if report.failed and terminal:
            causes = [line[2:] for line in report.longreprtext.splitlines() if line[:2] == "E "]
            cause = causes[0].strip() if causes else ""
            terminal.write_line(f"\n{report.nodeid} ({report.when}): {cause}")


def pytest_configure(config: pytest.Config) -> None:
    # a shell's background command ignores it, and so would all programs that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # one of xdist's workers has no terminal
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect garbage rarely, and never look at the modules and tests again.

    With Python's thresholds, a fifth of a worker's processor time goes to collections, as each of
    them reads the 700,000 objects of moto, torch and the tests.
    """
    gc.disable()  # each test that is found stays, so there is nothing to free
    collected = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()
    return collected


class MakeRun(Protocol):
    """Plans a run of a small study; `changes` replace keys of the study file."""

    def __call__(
        self,
        params: dict[str, Any] | None = None,
        *,
        run: str = "r1",
        out: Path | None = None,
        **changes: Any,
    ) -> Run: ...


@pytest.fixture
def trials_per_job() -> int | str:
    """The number of trials per job in runs of tests that don't set it."""
    return "all"


@pytest.fixture
def make_run(work: Path, trials_per_job: int | str) -> MakeRun:
    return make_runs_in(work, trials_per_job)


def make_runs_in(work: Path, trials_per_job: int | str = "all") -> MakeRun:
    """Return a function that plans runs in a folder, for fixtures of more than one test."""

    def make(
        params: dict[str, Any] | None = None,
        *,
        run: str = "r1",
        out: Path | None = None,
        **changes: Any,
    ) -> Run:
        space = {"x": {"type": "float", "low": 0.0, "high": 1.0}, **(params or {})}
        study: dict[str, Any] = {
            "name": "demo",
            "regions": ["A"],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": space,
            "budget": {"trials": 3, "lanes": 2},
            "trainer": {"command": ["python3", MOODY.name], "files": [str(MOODY)]},
            "resources": {"memory": "100MB", "disk": "20MB"},
            "accelerator": "cpu",
            "retries": 1,
        }
        study |= changes
        # without a model the service starts in a third of the time
        defaults = {
            "startup_trials": study["budget"].get("trials"),
            "trials_per_job": trials_per_job,
        }
        study["budget"] = defaults | study["budget"]
        resolved = Study.model_validate(study).resolve(work)
        return plan(resolved, run=run, out=out or work / "runs" / run)

    return make


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The address of a mock AWS (moto), a separate one for each test module."""
    from tests.moto_server import moto_server

    with moto_server() as address:
        yield address


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """A function that waits until `holds()` is true, and fails the test after `seconds`."""

    def wait(holds: Callable[[], object], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not so within {seconds} s"
            time.sleep(0.1)

    return wait
