"""The routes of optuna-dashboard, which shows a copy of a run's studies.

The dashboard's URLs are fixed: `/dashboard`, `/api` and `/static`. Within the page, the dashboard
is read-only, because the page's guard allows only GET and HEAD.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
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

from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.serve.study_copy import Application, copy_study, optuna_dashboard

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)  # its libraries add styles; only its own script files run
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]


@contextmanager
def optuna_routes(folder: Path) -> Iterator[tuple[Route, ...]]:
    """Yield the routes of a run's dashboard; the copy of the studies is deleted at the end.

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
