"""A real pool for the tests in this folder: one for all of them, and private ones to break."""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import platformdirs
import pytest

from tests.pool import guard
from tests.pool.logs import attach_logs
from tests.pool.machines import Machine, free_port
from tests.pool_settings import configured_pool
from trialfleet.infra.manager import config
from trialfleet.infra.manager.config import ManagerSettings
from trialfleet.infra.pool.connection import use
from trialfleet.infra.pool.embedded import Pool
from trialfleet.infra.pool.processes import wait_until
from trialfleet.infra.pool.user_namespace import identity

HERE = Path(__file__).parent
CPUS = 4  # more than a small machine has: the tests' jobs mostly sleep
MakePool = Callable[..., Pool]
FOLDER = pytest.StashKey[Path]()  # the session folder, where the reports of failures find the logs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.pool)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of all logs where a test, or what it needs, fails."""
    report = yield
    if report.failed and FOLDER in item.config.stash:
        attach_logs(report, item.config.stash[FOLDER])
    return report


def end_as_by_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that a test run that gets SIGTERM takes its pools down


@pytest.fixture(scope="session")
def session_folder(pytestconfig: pytest.Config) -> Iterator[Path]:
    """A folder of this test run, with a short path.

    A guard removes it, and ends its pools, where this process is killed. What guards that were
    killed as well have left is removed first: nobody holds its lock.
    """
    base = platformdirs.user_cache_path("trialfleet") / "tests"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / secrets.token_hex(2)
    pytestconfig.stash[FOLDER] = folder
    previous = signal.signal(signal.SIGTERM, end_as_by_interrupt)
    with ExitStack() as held:
        with base.with_suffix(".lock").open("w") as one_at_a_time:  # others begin just now, too
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            for left_over in base.iterdir():
                remove_if_abandoned(left_over)
            folder.mkdir()
            lock = held.enter_context((folder / guard.LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        watcher = guard.start(folder)
        yield folder
        signal.signal(signal.SIGTERM, previous)
        shutil.rmtree(folder, ignore_errors=True)
    watcher.wait()


def remove_if_abandoned(folder: Path) -> None:
    try:
        with (folder / guard.LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            guard.clear(folder)
    except (BlockingIOError, FileNotFoundError):  # in use, or being removed
        return


@pytest.fixture(scope="session")
def pool(session_folder: Path) -> Iterator[Pool]:
    """The pool of this test run, up and active in this process's environment."""
    before = {name: os.environ.get(name) for name in ("CONDOR_CONFIG", "PATH")}
    shared = configured_pool(session_folder / "pool", cpus=CPUS)
    try:
        shared.up()
        use(shared.environment())
        yield shared
    finally:
        shared.down(grace=5)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@pytest.fixture
def make_pool(session_folder: Path) -> Iterator[MakePool]:
    """Make pools of the test's own, not yet up and never active; they end with the test.

    Takes what `configured_pool` takes but for the folder; `name` may give the folder a name.
    """
    made: list[Pool] = []

    def make(name: str | None = None, **settings: object) -> Pool:
        folder = session_folder / (name or secrets.token_hex(2))
        made.append(configured_pool(folder, **({"cpus": 2} | settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for private in made:
        private.down(grace=0)
        shutil.rmtree(private.folder, ignore_errors=True)


NUMBERS = itertools.count()


@pytest.fixture
def work(session_folder: Path) -> Iterator[Path]:
    """An empty folder of the test's own where DAGMan keeps logs; removed after the test."""
    folder = session_folder / f"w{next(NUMBERS)}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def port() -> int:
    """The manager's shared port."""
    return free_port()


@pytest.fixture(scope="module")
def manager(session_folder: Path, port: int) -> Iterator[Machine]:
    """A central manager and access point, configured as `trialfleet manager install` does it.

    It is handed out when its collector knows its schedd, the last of its daemons to come.
    """
    settings = ManagerSettings(user=identity().account, address="127.0.0.1", port=port)
    machine = Machine(session_folder / f"manager-{port}", config.render(settings))
    machine.make_key()
    try:
        machine.start()
        known = ("condor_status", "-schedd", "-af", "Name")
        assert wait_until(lambda: machine.run(*known).stdout.strip() != "", seconds=60)
        yield machine
    finally:
        machine.remove()
