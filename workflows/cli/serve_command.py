"""`trialfleet serve`: the page."""

from __future__ import annotations

from pathlib import Path

import click

from trialfleet.workflows.cli.arguments import run_argument
from trialfleet.workflows.output import say

PORT = 8642


@click.command()
@run_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Its port; 0 for one that is free.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="Ask readers for the token in this file. Beyond this machine one is made without it.",
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Another name of this machine by which browsers may ask for the page.",
)
@click.option("--dashboard", is_flag=True, help="Show optuna-dashboard, too, at /dashboard.")
def serve(
    run: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    allowed: tuple[str, ...],
    dashboard: bool,
) -> None:
    """Show runs, regions, trials and nodes in a browser, until Ctrl-C; nothing can be changed.

    The first page is of the newest run, whichever that is at the moment; with RUN, of that one
    alone. /metrics is for Prometheus.
    """
    from trialfleet.workflows.run.lookup import find_run
    from trialfleet.workflows.serve.server import serve as serve_page

    serve_page(
        find_run(run) if run else None,
        host=host,
        port=port,
        token_file=token_file,
        allowed=allowed,
        dashboard=dashboard,
        tell=lambda url: say(f"{url}   (Ctrl-C ends it)"),
    )
