"""Two managers of one study on this machine: each has a pool and a folder, they share the rest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.moto_server import moto_server, s3_with_bucket
from tests.pool.conftest import MakePool
from tests.pool.test_daily import write_study
from tests.postgresql import Server
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Journal

PROGRAM = Path(__file__).with_name("daily_program.py")
BUCKET = "our-models"


@dataclass
class Manager:
    """A manager: a pool of its own and a folder of its own."""

    pool: Pool
    folder: Path
    file: Path

    @property
    def runs(self) -> DailyFolder:
        return DailyFolder(self.folder / "runs" / "demo")

    @property
    def journal(self) -> Journal:
        return Journal(self.runs.journal)

    def run(self, day: date) -> Path:
        return self.runs.run(str(day))

    def has_begun(self, day: date) -> bool:
        return self.runs.root.exists() and bool(self.journal.attempts(day))

    def start(self, day: date, time: str = "02:31") -> subprocess.Popen[bytes]:
        """Start `daily run` at a time of a day; what it says is in `log`."""
        with (self.folder / "daily.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.file), f"{day}T{time}+00:00"],
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
            time.sleep(0.2)  # psutil's own wait would take a child's exit code away from us

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            places = (process.environ().get("CONDOR_CONFIG", ""), process.cwd())
            ours = (self.pool.folder, self.folder)
            return any(Path(each).is_relative_to(own) for each in places if each for own in ours)
        return False


@contextmanager
def two_managers(
    work: Path, make_pool: MakePool, server: Server, **study: Any
) -> Iterator[tuple[Manager, Manager]]:
    """Give two managers of a study, whose data lies in `work`; its alerts come to `work/heard`."""
    with _connected(server) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    first, second = (_manager(work / name, make_pool(cpus=2), server, study) for name in "12")
    try:
        yield first, second
    finally:
        first.kill()
        second.kill()


def _manager(folder: Path, pool: Pool, server: Server, study: dict[str, Any]) -> Manager:
    folder.mkdir()
    heard = folder.parent / "heard"
    daily = {"at": "02:30", "zone": "UTC", "takeover_after": "1m"}
    file = write_study(
        folder,
        **{
            "data": f"{folder.parent}/data/{{region}}/{{date}}.txt",
            "storage": server.url(),
            "publish": f"s3://{BUCKET}",
            "notify": [{"command": ["sh", "-c", f"cat >> '{heard}'; echo >> '{heard}'"]}],
            **study,
            "daily": {**daily, **study.get("daily", {})},
        },
    )
    pool.up()
    return Manager(pool, folder, file)


@contextmanager
def bucket(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a client of an S3 whose keys jobs find, too."""
    keys = work / "credentials"
    keys.write_text("[default]\naws_access_key_id = id\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    with moto_server() as address:
        yield s3_with_bucket(address, BUCKET, monkeypatch)


def let_lapse(server: Server) -> None:
    """Have the lease be as old as if a minute had passed."""
    with _connected(server) as connection:
        connection.execute("UPDATE trialfleet_leases SET renewed = renewed - interval '1 minute'")


def trials_of(server: Server) -> list[tuple[str, str]]:
    """Return each trial's study and state; none where the database has no tables yet."""
    query = "SELECT study_name, state FROM studies JOIN trials USING (study_id) ORDER BY 1, number"
    try:
        with _connected(server) as connection:
            return list(connection.execute(query).fetchall())
    except psycopg.errors.UndefinedTable:
        return []


def _connected(server: Server) -> psycopg.Connection[Any]:
    return psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True)
