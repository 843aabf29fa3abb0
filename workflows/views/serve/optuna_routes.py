"""The routes of optuna-dashboard, which shows a copy of a run's studies.

The dashboard's URLs are fixed: `/dashboard`, `/api` and `/static`. Within the page, the dashboard
is read-only, because the page's guard allows only GET and HEAD.

If the trials are in an SQLite file, SQLite's backup makes a consistent copy. A request copies the
file again if it has changed, at most every `REFRESH_SECONDS` seconds. Trials in PostgreSQL are
copied only once.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from wsgiref.util import setup_testing_defaults

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import storage_url, study_name
from trialfleet.workflows.study.frozen import load_frozen

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)  # its libraries add styles; only its own script files run
REFRESH_SECONDS = 2.0  # the least time between two copies
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@contextmanager
def optuna_routes(folder: Path) -> Iterator[tuple[Route, ...]]:
    """Yield the routes of a run's dashboard, which shows a copy of the run's trials.

    The copy is deleted when the `with` block ends.

    Raises:
        InputError: optuna-dashboard isn't installed, or the run has no trials.
        OptimizerError: the trial database can't be read.
    """
    with TemporaryDirectory(prefix="trialfleet-dashboard-") as place:
        copy = copy_study(RunFolder(folder), RunFolder(Path(place)).database)
        answer = _wrap_wsgi(optuna_dashboard(copy))
        paths = "/dashboard{rest:path}", "/api/{rest:path}", "/static/{rest:path}"
        yield tuple(Route(path, answer, methods=_METHODS) for path in paths)


def _wrap_wsgi(application: Application) -> Callable[[Request], Awaitable[Response]]:
    def answer(environ: dict[str, Any]) -> Response:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            started.append((status, headers))

        body = application(environ, start)
        try:
            content = b"".join(body)
        finally:
            getattr(body, "close", lambda: None)()
        status, headers = started[-1]
        response = Response(content, int(status.split(maxsplit=1)[0]))
        for name, value in headers:
            if name.lower() in {"content-type", "content-encoding", "location"}:
                response.headers[name] = value
        response.headers["Content-Security-Policy"] = _POLICY
        return response

    async def answered(request: Request) -> Response:
        return await run_in_threadpool(answer, _wsgi_environ(request, await request.body()))

    return answered


def _wsgi_environ(request: Request, body: bytes) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": request.url.path.encode().decode("latin-1"),
        "QUERY_STRING": request.url.query,
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", "identity"),
        "wsgi.input": BytesIO(body),
    }
    setup_testing_defaults(environ)  # the other keys that WSGI requires
    return environ


# -- the copy --------------------------------------------------------------------------------------


class StudyCopy:
    """The SQLite file `path` with a copy of a run's trials.

    `source` is the SQLite file that is copied. If the trials are in PostgreSQL, `source` is None,
    and the copy is never renewed.
    """

    def __init__(self, path: Path, source: Path | None) -> None:
        self.path = path
        self._source = source
        self._lock = threading.Lock()
        self._seen: object = None
        self._looked = -REFRESH_SECONDS

    def refresh(self) -> None:
        """Copy `source` again if it has changed, but at most every `REFRESH_SECONDS`."""
        from trialfleet.optimizer.storage import copy_sqlite

        with self._lock:
            if self._source is None or time.monotonic() - self._looked < REFRESH_SECONDS:
                return
            self._looked = time.monotonic()
            source = self._source.resolve()
            wal = source.with_name(f"{source.name}-wal")
            now = [*map(untrusted_files.file_stamp, (source, wal))]
            if not source.exists() or now == self._seen:
                return
            copy_sqlite(self._source, self.path)
            self._seen = now


def copy_study(run: RunFolder, path: Path) -> StudyCopy:
    """Copy a run's trials to the new SQLite file `path`.

    Raises InputError if the run has no trials yet. Raises OptimizerError if the trial database
    can't be read.
    """
    from trialfleet.optimizer.storage import copy_studies
    from trialfleet.optimizer.storage_url import sqlite_file

    frozen = load_frozen(run.study)
    url = storage_url(run, frozen.study)
    source = sqlite_file(url)
    names = [study_name(frozen.study, frozen.run, name) for name in frozen.study.region_table]
    # other runs may share a database server: only this run's studies are copied
    has_trials = source.exists() if source else copy_studies(url, names, path)
    if not has_trials:
        raise InputError(
            f"the run in {str(run.root)!r} has no trials yet; try again once it has a trial"
        )
    copy = StudyCopy(path, source)
    copy.refresh()
    return copy


def optuna_dashboard(copy: StudyCopy) -> Application:
    """Return optuna-dashboard as a WSGI application that shows `copy`.

    Each request first calls `copy.refresh`. The application also accepts requests that edit the
    copy. Raises InputError if optuna-dashboard isn't installed.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise InputError(
            "optuna-dashboard is not installed; get it with: "
            f"{shlex.quote(sys.executable)} -m pip install optuna-dashboard"
        ) from None
    from trialfleet.optimizer.storage import open_storage
    from trialfleet.optimizer.storage_url import sqlite_url

    application: Application = wsgi(open_storage(sqlite_url(copy.path)))

    def refreshed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        copy.refresh()
        return application(environ, start_response)

    return refreshed
