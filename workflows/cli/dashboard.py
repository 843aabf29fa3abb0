"""A run's studies in optuna-dashboard: always a copy, which may be edited without harm.

A SQLite file is copied as of one moment (SQLite's backup), and again when somebody looks after the
run has gone on. The studies of another database are copied when the dashboard starts.
"""

from __future__ import annotations

import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from trialfleet.errors import InputError
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.storage import storage_url, study_name

if TYPE_CHECKING:
    from trialfleet.workflows.run.run import Run

HOST = "127.0.0.1"
ENDED_BY = {signal.SIGINT, signal.SIGTERM}
REFRESH_SECONDS = 2.0  # the least time between two copies

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def show(run: Run, port: int, tell: Callable[[str], None]) -> None:
    """Serve the dashboard of a run until Ctrl-C.

    Args:
        run: the run.
        port: of 127.0.0.1; 0 for one that is free.
        tell: told where it is, once it answers.

    Raises:
        InputError: optuna-dashboard isn't installed, the port is taken, or the run has no trials.
        OptimizerError: the storage can't be read.
    """
    with (
        _ended_by_signals() as wait_for_end,
        tempfile.TemporaryDirectory(prefix="trialfleet-dashboard-") as folder,
    ):
        copy = _copy_of(run, Path(folder) / "study.db")
        with _served(_application(copy), port) as url:
            tell(url)
            wait_for_end()


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[], object]]:
    """Keep signals until somebody waits for them: nothing is cut off, and nothing is left behind.

    Threads that start meanwhile don't take them either.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDED_BY)
    try:
        yield lambda: signal.sigwait(ENDED_BY)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


class _Copy:
    """A copy of a SQLite file."""

    def __init__(self, path: Path, source: Path | None) -> None:
        self.path = path
        self._source = source
        self._lock = threading.Lock()
        self._seen: object = None
        self._looked = -REFRESH_SECONDS

    def refresh(self) -> None:
        """Copy the source again if it has changed since it was last copied."""
        with self._lock:
            if self._source is None or time.monotonic() - self._looked < REFRESH_SECONDS:
                return
            self._looked = time.monotonic()
            now = _stamp(self._source)
            if not now or now == self._seen:
                return
            read, write = sqlite3.connect(self._source), sqlite3.connect(self.path)
            with closing(read), closing(write):
                read.backup(write)
            self._seen = now


def _stamp(path: Path) -> list[tuple[int, int]]:
    """What changes whenever the file, or the log of its last transactions, does."""
    files = (path, path.with_name(path.name + "-wal"))
    stats = [file.stat() for file in files if file.exists()]
    return [(stat.st_mtime_ns, stat.st_size) for stat in stats]


def _copy_of(run: Run, path: Path) -> _Copy:
    """Make the copy of what a run's studies are stored in."""
    from trialfleet.optimizer.storage_url import parse_storage

    url = parse_storage(storage_url(RunFolder(run.folder), run.study))
    if url.get_backend_name() == "sqlite" and url.database and not url.query:
        source = Path(url.database)
        if not source.exists():
            raise _no_trials(run)
        copy = _Copy(path, source)
        copy.refresh()
        return copy
    _copy_studies(run, path)
    return _Copy(path, None)


def _copy_studies(run: Run, path: Path) -> None:
    """Copy a run's studies from a database that other runs may share, which stays as it is."""
    import optuna

    from trialfleet.optimizer.storage import close_storage, open_storage, storage_to_read
    from trialfleet.optimizer.storage_url import sqlite_url

    names = {study_name(run.study, run.run_id, region) for region in run.study.region_table}
    with storage_to_read(storage_url(RunFolder(run.folder), run.study)) as source:
        there = set() if source is None else {s.study_name for s in source.get_all_studies()}
        if not names & there:
            raise _no_trials(run)
        target = open_storage(sqlite_url(path))
        for name in sorted(names & there):
            assert source is not None, "it has studies"
            optuna.copy_study(from_study_name=name, from_storage=source, to_storage=target)
        close_storage(target)


def _no_trials(run: Run) -> InputError:
    return InputError(f"{str(run.folder)!r} has no trials yet: there is nothing to show")


def _application(copy: _Copy) -> Application:
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise InputError(
            "optuna-dashboard is not installed; get it with: pip install 'trialfleet[dashboard]'"
        ) from None
    from trialfleet.optimizer.storage import open_storage
    from trialfleet.optimizer.storage_url import sqlite_url

    application: Application = wsgi(open_storage(sqlite_url(copy.path)))

    def refreshed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        copy.refresh()
        return application(environ, start_response)

    return refreshed


class _Server(ThreadingMixIn, WSGIServer):
    """A page asks for several things at a time."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Requests are nobody's news."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _served(application: Application, port: int) -> Iterator[str]:
    """Answer requests for as long as the context lasts."""
    try:
        server = make_server(HOST, port, application, _Server, _Quiet)
    except (OSError, OverflowError) as error:
        raise InputError(f"port {port} of {HOST} can't be used: {error}") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/dashboard"
        finally:
            server.shutdown()
            thread.join()
