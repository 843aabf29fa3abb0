"""optuna-dashboard beside the page, to be read alone: it sees a copy, and no route of it writes.

Its page asks for `/dashboard`, `/api` and `/static`, wherever it lies, so those are its addresses
here too. The guard lets GET and HEAD pass alone, which shuts every route of its that writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from wsgiref.util import setup_testing_defaults

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.serve.study_copy import Application, copy_of, optuna_dashboard

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)  # its libraries write styles of their own; no script but its files runs


@contextmanager
def optuna_routes(folder: Path) -> Iterator[tuple[Route, ...]]:
    """Give the routes of the dashboard of a run, whose copy lasts as long as the context.

    Raises:
        InputError: optuna-dashboard isn't installed, or the run has no trials.
        OptimizerError: the storage can't be read.
    """
    with TemporaryDirectory(prefix="trialfleet-dashboard-") as place:
        copy = copy_of(RunFolder(folder), RunFolder(Path(place)).database)
        answer = _answering(optuna_dashboard(copy))
        yield (
            Route("/dashboard{rest:path}", answer),
            Route("/api/{rest:path}", answer),
            Route("/static/{rest:path}", answer),
        )


def _answering(application: Application) -> Callable[[Request], Response]:
    """What answers a request by a WSGI application; there is no body to read."""

    def answer(request: Request) -> Response:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            started.append((status, headers))

        body = application(_environ(request), start)
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

    return answer


def _environ(request: Request) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "PATH_INFO": request.url.path.encode().decode("latin-1"),
        "QUERY_STRING": request.url.query,
        "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", "identity"),
    }
    setup_testing_defaults(environ)  # a GET without a body, from this machine
    return environ
