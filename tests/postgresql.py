"""A private PostgreSQL server for tests; those without one are skipped."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

psycopg = pytest.importorskip("psycopg")

PASSWORD = "s{ecr}et%/@:"


def programs() -> Path | None:
    """Return the newest folder of PostgreSQL's programs."""
    initdb = shutil.which("initdb")
    if initdb:
        return Path(initdb).resolve().parent
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(found, key=lambda path: float(path.parts[-3]), default=None)
    return newest.parent if newest else None


class Server:
    """A private server on a free port, for one user with a password."""

    def __init__(self, folder: Path, binaries: Path, user: dict[str, Any]) -> None:
        self.folder, self._binaries, self._user = folder, binaries, user
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    def create(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._call("initdb", "-U", "fleet", "-A", "scram-sha-256", f"--pwfile={password}",
                   "-E", "UTF8", "--locale=C", "--no-sync", "-D", "data")  # fmt: skip

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off -k ''"
        self._call("pg_ctl", "-D", "data", "-w", "-l", "server.log", "-o", options, "start")

    def stop(self, mode: str) -> None:
        self._call("pg_ctl", "-D", "data", "-w", "-m", mode, "stop")

    def crash(self) -> None:
        """Kill a session's process: the server then ends all others and recovers."""
        postmaster = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        sessions = [p for p in psutil.Process(postmaster).children() if "fleet" in p.cmdline()[0]]
        sessions[0].kill()
        psutil.wait_procs(sessions, timeout=20)
        deadline = time.monotonic() + 20
        while not self._is_ready():
            assert time.monotonic() < deadline, "the server doesn't recover"
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url().replace("+psycopg", "")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, password: str = PASSWORD) -> str:
        quoted = re.sub("[%/@:]", lambda m: f"%{ord(m[0]):02X}", password)
        return f"postgresql+psycopg://fleet:{quoted}@127.0.0.1:{self.port}/postgres"

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._binaries / program, *arguments],
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._user,
        )


def private_server() -> Iterator[Server]:
    """For a fixture of its own: a server that lives as long."""
    binaries = programs()
    if binaries is None:
        pytest.skip("PostgreSQL's initdb is neither on PATH nor in /usr/lib/postgresql/*/bin")
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # the server refuses root
        try:
            account = pwd.getpwnam("postgres")
        except KeyError:
            account = pwd.getpwnam("nobody")
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    # not pytest's own folder: other users can't enter it
    with tempfile.TemporaryDirectory(prefix="trialfleet-postgresql-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "data").mkdir()
        if user:
            os.chown(folder, user["user"], user["group"])
            os.chown(folder / "data", user["user"], user["group"])
        started = Server(folder, binaries, user)
        started.create()
        started.start()
        yield started
        started.stop("immediate")
