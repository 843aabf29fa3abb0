"""A run's studies in optuna-dashboard: always a copy, which may be edited without harm."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from trialfleet.errors import InputError
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.serve.study_copy import Application, copy_of, optuna_dashboard

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run

HOST = "127.0.0.1"
ENDED_BY = {signal.SIGINT, signal.SIGTERM}


def show(run: Run, port: int, tell: Callable[[str], None]) -> None:
    """Serve the dashboard of a run at a port of 127.0.0.1, 0 for one that is free, until Ctrl-C.

    `tell` is called with where it is, once it answers.

    Raises:
        InputError: optuna-dashboard isn't installed, the port is taken, or the run has no trials.
        OptimizerError: the storage can't be read.
    """
    with (
        _ended_by_signals() as wait_for_end,
        tempfile.TemporaryDirectory(prefix="trialfleet-dashboard-") as folder,
    ):
        copy = copy_of(RunFolder(run.folder), RunFolder(Path(folder)).database)
        with _served(optuna_dashboard(copy), port) as url:
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
        raise InputError(
            f"port {port} of {HOST} can't be used: {error}; --port 0 takes one that is free"
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/dashboard"
        finally:
            server.shutdown()
            thread.join()
