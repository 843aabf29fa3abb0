"""`trialfleet serve`: the page on a port of this machine, until Ctrl-C."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from socket import AF_INET, AF_INET6, create_server, gaierror, getaddrinfo
from socket import socket as Socket  # noqa: N812 - a class

import uvicorn
from starlette.routing import Route
from starlette.types import ASGIApp

from trialfleet.ctrl_c import handle_signals
from trialfleet.errors import InputError
from trialfleet.infra.pool import connection
from trialfleet.workflows.views.serve.app import Pages, application
from trialfleet.workflows.views.serve.optuna_routes import optuna_routes
from trialfleet.workflows.views.serve.runs import Runs
from trialfleet.workflows.views.serve.security import (
    is_loopback,
    names_of_this_machine,
    read_token,
)

_POOL_SECONDS = 15.0  # until the pool is looked for again; it may have started, or be another one


def serve(
    named: Path | None,
    *,
    host: str,
    port: int,
    token_file: Path | None,
    allowed: Iterable[str],
    dashboard: bool,
    tell: Callable[[str], None],
) -> None:
    """Serve the page of the run `named`, or of all runs in `./runs`, until Ctrl-C.

    Without a `token_file`, a new token is made if other machines can reach `host`. Port 0 means any
    free port. `allowed` are further host names that browsers may use. `dashboard` adds
    optuna-dashboard. `tell` is called with the page's URL once a browser can open the URL.

    Raises:
        InputError: the address or the token can't be used, `named` is not a run, optuna-dashboard
            isn't installed, or the run that optuna-dashboard would show has no trials.
        OptimizerError: optuna-dashboard's trials can't be read.
    """
    token = read_token(token_file) if token_file else None
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(32)
    connection.cache_connection(_POOL_SECONDS)
    runs = Runs(named)
    with ExitStack() as held:
        routes: tuple[Route, ...] = ()
        shown = runs.newest().folder.root if dashboard else None
        if shown:
            routes = held.enter_context(optuna_routes(shown))
        socket = held.enter_context(open_socket(host, port))
        port = socket.getsockname()[1]
        pages = Pages(runs, shown)
        app = application(
            pages,
            hosts=names_of_this_machine([*allowed, host]),
            token=token,
            cookie=f"trialfleet-{port}-{os.getuid()}",
            routes=routes,
        )
        pages.warm_up()
        where = f"[{host}]" if ":" in host else host
        query = f"?token={token}" if token and token_file is None else ""
        answer_requests(app, socket, lambda: tell(f"http://{where}:{port}/{query}"))


def answer_requests(app: ASGIApp, socket: Socket, begin: Callable[[], None]) -> None:
    """Call `begin`, and serve an application on a socket until Ctrl-C or SIGTERM.

    A Ctrl-C or SIGTERM during the call of `begin` ends the server, too.
    """
    config = uvicorn.Config(
        app,
        access_log=False,  # URLs may contain the token
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    with handle_signals(end):  # otherwise a signal would skip the cleanup
        begin()
        server.run(sockets=[socket])


def open_socket(host: str, port: int) -> Socket:
    """Return a socket that listens on an address.

    Port 0 means any free port. Raises InputError if the port or the address can't be used.
    """
    try:
        getaddrinfo(host, None)  # create_server reports an unknown host like a port in use
        return create_server((host, port), family=AF_INET6 if ":" in host else AF_INET)
    except gaierror as error:
        raise InputError(
            f"--host {host!r}: unknown address or host name ({error.strerror}); use an address of "
            "this machine, such as 127.0.0.1 or 0.0.0.0"
        ) from error
    except (OSError, OverflowError) as error:
        raise InputError(
            f"port {port} of {host} can't be used: {error}; --port 0 takes any free port"
        ) from error
