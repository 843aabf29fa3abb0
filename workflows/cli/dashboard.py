"""A run's studies in optuna-dashboard: always a copy, which may be edited without harm.

A SQLite file is copied as of one moment (SQLite's backup), and again when somebody looks after the
run has gone on. The studies of another database are copied when the dashboard starts.
"""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
        copy = _copy_of(run, RunFolder(Path(folder)).database)
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
        from trialfleet.optimizer.storage import copy_sqlite

        with self._lock:
            if self._source is None or time.monotonic() - self._looked < REFRESH_SECONDS:
                return
            self._looked = time.monotonic()
            now = _stamp(self._source)
            if not now or now == self._seen:
                return
            copy_sqlite(self._source, self.path)
            self._seen = now


def _stamp(path: Path) -> list[tuple[int, int]]:
    """What changes whenever the file, or the log of its last transactions, does."""
    files = (path, path.with_name(path.name + "-wal"))
    stats = [file.stat() for file in files if file.exists()]
    return [(stat.st_mtime_ns, stat.st_size) for stat in stats]


def _copy_of(run: Run, path: Path) -> _Copy:
    """Make the copy of what a run's studies are stored in."""
    from trialfleet.optimizer.storage import copy_studies
    from trialfleet.optimizer.storage_url import sqlite_file

    url = storage_url(RunFolder(run.folder), run.study)
    source = sqlite_file(url)
    names = [study_name(run.study, run.run_id, region) for region in run.study.region_table]
    # other runs may share a database that is no file: of it, this run's studies alone are shown
    has_trials = source.exists() if source else copy_studies(url, names, path)
    if not has_trials:
        raise InputError(f"{str(run.folder)!r} has no trials yet: there is nothing to show")
    copy = _Copy(path, source)
    copy.refresh()
    return copy


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
