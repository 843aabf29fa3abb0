"""`trialfleet dashboard`: optuna-dashboard on a copy of a run's trials; edits stay in the copy."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from trialfleet.ctrl_c import handle_signals
from trialfleet.workflows.views.serve.optuna_routes import optuna_routes
from trialfleet.workflows.views.serve.server import answer_requests, open_socket

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run

HOST = "127.0.0.1"


def show(run: Run, port: int, tell: Callable[[str], None]) -> None:
    """Serve the dashboard of a run on 127.0.0.1 until Ctrl-C; `port` 0 means any free port.

    `tell` is called with the dashboard's URL once the server answers.

    Raises:
        InputError: optuna-dashboard isn't installed, the port is taken, or the run has no trials.
        OptimizerError: the trial database can't be read.
    """
    pressed = Event()  # Ctrl-C during the copy, which is not interrupted
    with (
        handle_signals(lambda *_: pressed.set()),
        optuna_routes(run.folder) as routes,
        open_socket(HOST, port) as socket,
    ):
        if not pressed.is_set():
            url = f"http://{HOST}:{socket.getsockname()[1]}/dashboard"
            answer_requests(Starlette(routes=list(routes)), socket, lambda: tell(url))
