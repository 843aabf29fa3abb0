"""Two managers of one study: the second goes on with a day whose manager was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.moto_server import moto_server, s3_with_bucket
from tests.pool.conftest import MakePool
from tests.pool.test_daily import put_data, write_study
from tests.pool.watching import active
from tests.postgresql import Server, private_server
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Ending, Journal

pytestmark = [pytest.mark.postgres, pytest.mark.thorough, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).with_name("daily_program.py")
DAY = date(2026, 11, 20)
TRIALS = 3
NODES = [f"{region}.{node}" for region in "AB" for node in ("l1.t01", "l1.t02", "l1.t03", "best")]
BEFORE_FULL_TRAINING = [node for node in NODES if "best" not in node]
BEGUN = "the day is begun"
UP_TO = {  # what runs to its end before the first manager is killed
    BEGUN: [],
    "tuning": ["A.l1.t01", "B.l1.t01"],
    "full training": BEFORE_FULL_TRAINING,
    "one region is published": [*BEFORE_FULL_TRAINING, "A.best"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from private_server()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, work: Path) -> Iterator[Any]:
    keys = work / "credentials"
    keys.write_text("[default]\naws_access_key_id = id\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))  # jobs find them there
    with moto_server() as address:
        yield s3_with_bucket(address, "our-models", monkeypatch)


@dataclass
class Manager:
    """A manager: a pool of its own and a folder of its own."""

    pool: Pool
    folder: Path
    file: Path

    @property
    def journal(self) -> Journal:
        return Journal(DailyFolder(self.folder / "runs" / "demo").journal)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "demo" / str(DAY)

    def begun(self) -> bool:
        return self.run.parent.exists() and bool(self.journal.attempts())

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "daily.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.file), f"{DAY}T02:31+00:00"],
                cwd=self.folder,
                env=os.environ | self.pool.environment(),
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return (self.folder / "daily.log").read_text()

    def kill(self) -> None:
        """Kill all of its processes at once, as a machine that dies does."""
        while found := [one for one in psutil.process_iter() if self._is_ours(one)]:
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, 5)

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            places = (process.environ().get("CONDOR_CONFIG", ""), process.cwd())
            ours = (self.pool.folder, self.folder)
            return any(Path(each).is_relative_to(own) for each in places if each for own in ours)
        return False


@pytest.fixture
def managers(
    work: Path, make_pool: MakePool, server: Server, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Manager]]:
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    put_data(work, DAY, A="1", B="2")
    gate = work / "gate"
    gate.mkdir()
    made = []
    with ExitStack() as stack:
        for name in ("one", "two"):
            folder = work / name
            folder.mkdir()
            file = write_study(
                folder,
                data=f"{work}/data/{{region}}/{{date}}.txt",
                storage=server.url(),
                publish="s3://our-models",
                budget={"trials": TRIALS, "lanes": 1},
                daily={"at": "02:30", "zone": "UTC", "takeover_after": "1m"},
                search_space={"x": {"type": "float", "low": 0.0, "high": 1.0}, "gate": str(gate)},
                notify=[
                    {"command": ["sh", "-c", f"cat >> '{work}/heard'; echo >> '{work}/heard'"]}
                ],
            )
            with active(make_pool(cpus=2)) as pool:
                pass
            made.append(Manager(pool, folder, file))
            stack.callback(made[-1].kill)
        yield made


def let_lapse(server: Server) -> None:
    """Have the lease be as old as if a minute had passed."""
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("UPDATE trialfleet_leases SET renewed = renewed - interval '1 minute'")


def trials_of(server: Server) -> list[tuple[str, str]]:
    query = "SELECT study_name, state FROM studies JOIN trials USING (study_id) ORDER BY 1, number"
    with psycopg.connect(server.url().replace("+psycopg", "")) as connection:
        return list(connection.execute(query).fetchall())


def finished(server: Server) -> int:
    try:
        return sum(state == "COMPLETE" for _, state in trials_of(server))
    except psycopg.Error:  # it has no tables yet
        return 0


@pytest.mark.parametrize("moment", UP_TO)
def test_the_second_manager_goes_on_with_a_day_whose_manager_was_killed(
    managers: list[Manager],
    server: Server,
    s3: Any,
    work: Path,
    moment: str,
    wait_for: Callable[..., None],
) -> None:
    first, second = managers
    for node in UP_TO[moment]:
        (work / "gate" / node).touch()
    begun = first.start()
    wait_for(first.begun if moment == BEGUN else first.run.exists, 60)
    stands_by = second.start()
    done = sum("best" not in node for node in UP_TO[moment])
    wait_for(lambda: finished(server) >= done, 200)
    if moment == "one region is published":
        wait_for(lambda: len(first.journal.outcomes()) == 1, 120)
    assert stands_by.poll() is None
    assert not second.run.exists(), "it has no lease"

    first.kill()
    begun.wait()
    for node in NODES:
        (work / "gate" / node).touch()
    let_lapse(server)
    assert stands_by.wait(400) == 0, second.log

    outcomes = second.journal.outcomes()
    assert sorted((o.region, o.ending, o.run) for o in outcomes) == [
        ("A", Ending.PUBLISHED, str(DAY)),
        ("B", Ending.PUBLISHED, str(DAY)),
    ]
    assert trials_of(server) == [
        (f"demo/{DAY}/{region}", "COMPLETE") for region in "AB" for _ in range(TRIALS)
    ]
    for region in "AB":
        pointer = s3.get_object(Bucket="our-models", Key=f"demo/{region}/latest.json")
        assert json.load(pointer["Body"])["run"] == str(DAY)
        latest = second.folder / "models" / "demo" / region / "latest"
        assert latest.resolve().name == str(DAY)
        assert (latest / "provenance.json").exists()
    assert_told_once(work)


def assert_told_once(work: Path) -> None:
    heard = [json.loads(line) for line in (work / "heard").read_text().splitlines() if line]
    told = [one["title"] for one in heard if "took over" in one["title"]]
    assert (len(told), [one["event"] for one in heard].count("day-done")) == (1, 1), heard


def test_a_manager_that_stood_still_writes_nothing_when_it_goes_on(
    managers: list[Manager], server: Server, s3: Any, work: Path, wait_for: Callable[..., None]
) -> None:
    """Its pool and its run's DAGMan went on meanwhile; the database closed the studies to them."""
    first, second = managers
    begun = first.start()
    (work / "gate" / "A.l1.t01").touch()
    wait_for(lambda: finished(server) >= 1, 200)
    os.kill(begun.pid, signal.SIGSTOP)
    stands_by = second.start()
    wait_for((second.folder / "runs").exists, 60)
    let_lapse(server)
    wait_for(second.run.exists, 200)
    os.kill(begun.pid, signal.SIGCONT)
    for node in NODES:
        (work / "gate" / node).touch()
    assert stands_by.wait(400) == 0, second.log
    assert begun.wait(200) == 0, first.log
    assert "this one stands by" in first.log
    assert trials_of(server) == [
        (f"demo/{DAY}/{region}", "COMPLETE") for region in "AB" for _ in range(TRIALS)
    ]
    for manager in managers:
        outcomes = manager.journal.outcomes()
        assert sorted((o.region, o.ending) for o in outcomes) == [
            ("A", Ending.PUBLISHED),
            ("B", Ending.PUBLISHED),
        ]
    assert_told_once(work)
