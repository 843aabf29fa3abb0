"""The commands `best`, `trials`, `cost`, `report`, `dashboard`, `serve` and `predict`."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event
from typing import TextIO

import click

from trialfleet.ctrl_c import handle_signals
from trialfleet.errors import InputError
from trialfleet.files import exists, replace_file
from trialfleet.workflows.cli.arguments import (
    Integer,
    completed_by_runs,
    find_named_run,
    model_argument,
    region_option,
    run_argument,
)
from trialfleet.workflows.views.output import console, json_option, print_json, say, show

_PORT, _HOST = 8642, "127.0.0.1"  # of the page


@click.command()
@run_argument
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def best(run: str | None, as_csv: bool, as_json: bool) -> None:
    """Show the best settings of each region of RUN."""
    from trialfleet.workflows.cli.printing.results_csv import write_best_csv
    from trialfleet.workflows.rules.states import Stage
    from trialfleet.workflows.views.terminal.result_tables import best_table

    opened = find_named_run(run, quiet=as_json or as_csv)
    found = opened.best()
    if as_json:
        print_json([asdict(entry) for entry in found])
    elif as_csv:
        write_best_csv(found, sys.stdout)
    elif found:
        show(best_table(found, opened.study.objective.metric))
        for entry in found:  # a table would fold the paths, which people copy
            if entry.published:
                kept = "  (not the current model)" if entry.stage == Stage.KEPT else ""
                say(f"model  {entry.region}  {entry.published}{kept}")
    else:
        say("no trial has completed yet")


@click.command()
@run_argument
@region_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def trials(run: str | None, region: str | None, as_csv: bool, as_json: bool) -> None:
    """List the trials of RUN."""
    from trialfleet.workflows.cli.printing.results_csv import write_csv
    from trialfleet.workflows.views.terminal.result_tables import trials_table

    opened = find_named_run(run, quiet=as_json or as_csv)
    records = opened.trials(region)
    if as_json:
        print_json([asdict(record) for record in records])
    elif as_csv:
        write_csv(records, opened.study, sys.stdout)
    else:
        terminal = console()
        table = trials_table(records, opened.study.objective.metric, terminal.width)
        terminal.print(table)


@click.command()
@click.argument("names", metavar="[RUN|STUDY]...", nargs=-1, shell_complete=completed_by_runs)
@click.option(
    "--by",
    metavar="KEYS",
    help="Comma-separated keys to group by: study, run, day, team, region, kind (default: region "
    "for one run, otherwise run).",
)
@json_option
def cost(names: tuple[str, ...], by: str | None, as_json: bool) -> None:
    """Show the costs of runs: work, lost work, and nodes' time without a job.

    A study's name means all of its runs. By default, the command shows all runs in ./runs, and the
    total cost of their fleets.
    """
    from trialfleet.workflows.status.costs.run_costs import cost as cost_of
    from trialfleet.workflows.views.terminal.result_tables import costs_table

    keys = [key.strip() for key in by.split(",")] if by is not None else []
    found = cost_of(*names, by=keys)
    if as_json:
        print_json(found.to_json())
        return
    if found.rows:
        show(costs_table(found.rows, found.total, found.by))
    else:
        say("no job has run yet")
    for notice in found.notices:
        say(f"note: {notice}")


@click.command()
@run_argument
def report(run: str | None) -> None:
    """Write a report of the present state of RUN, and show a table of its regions."""
    from trialfleet.workflows.control.scripts.report_program import write_report
    from trialfleet.workflows.status.status_reader import StatusReader, last_finished, open_run
    from trialfleet.workflows.status.status_types import UNDER_WAY
    from trialfleet.workflows.views.report.terminal_table import fitted_summary

    opened = find_named_run(run, quiet=False)
    folder = open_run(opened.folder)
    is_under_way = StatusReader(folder).state() in UNDER_WAY
    finished = None if is_under_way else last_finished(folder)
    console().print(fitted_summary(write_report(folder, finished)))
    say(f"report  {shlex.quote(str(opened.report))}")


@click.command()
@run_argument
@click.option("--port", type=Integer(0, 65_535), default=0, help="Port (default: any free port).")
def dashboard(run: str | None, port: int) -> None:
    """Serve a copy of RUN's Optuna studies in optuna-dashboard on this machine until Ctrl-C.

    The copy is updated while the run works. Changes to the copy do not change the run. If
    optuna-dashboard is missing, install it with trialfleet's Python: `python3 -m pip install
    optuna-dashboard`.
    """
    from starlette.applications import Starlette

    from trialfleet.workflows.views.serve.optuna_routes import optuna_routes
    from trialfleet.workflows.views.serve.server import answer_requests, open_socket

    pressed = Event()  # Ctrl-C during the copy, which is not interrupted
    with (
        handle_signals(lambda *_: pressed.set()),
        optuna_routes(find_named_run(run).folder) as routes,
        open_socket(_HOST, port) as socket,
    ):
        if not pressed.is_set():
            url = f"http://{_HOST}:{socket.getsockname()[1]}/dashboard"
            tell = partial(say, f"{url}   (Ctrl-C ends it)")
            answer_requests(Starlette(routes=list(routes)), socket, tell)


@click.command()
@run_argument
@click.option("--host", default=_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=Integer(0, 65_535),
    default=_PORT,
    show_default=True,
    help="Port; 0: any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="Require the token in this file (default: a new token, if other machines can connect).",
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Another host name of this machine that browsers may use.",
)
@click.option("--dashboard", is_flag=True, help="Also serve optuna-dashboard at /dashboard.")
def serve(
    run: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    allowed: tuple[str, ...],
    dashboard: bool,
) -> None:
    """Serve a read-only page of runs, regions, trials and nodes until Ctrl-C.

    Without RUN, the first page always shows the newest run. With RUN, all pages show only that run.
    /metrics is for Prometheus.
    """
    from trialfleet.workflows.facts.runs.lookup import find_run
    from trialfleet.workflows.views.serve.server import serve as serve_page

    serve_page(
        None if run is None else find_run(run),
        host=host,
        port=port,
        token_file=token_file,
        allowed=allowed,
        dashboard=dashboard,
        tell=lambda url: say(f"{url}   (Ctrl-C ends it)"),
    )


@contextmanager
def _whole_to_stdout() -> Iterator[TextIO]:
    """Yield a file. If the `with` block ends without an error, print the file's content."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as kept:
        yield kept
        kept.seek(0)
        shutil.copyfileobj(kept, sys.stdout)
        sys.stdout.flush()  # raises BrokenPipeError here if the reader has closed the pipe


@click.command()
@model_argument("model")
@click.argument("rows", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="CSV file to write.")
@click.option("--study", help="Study of the region that MODEL names.")
def predict(model: str, rows: Path, output: Path | None, study: str | None) -> None:
    """Predict ROWS, a CSV or Parquet file, with a published model of `trainer: tabular`.

    MODEL is a region's name or STUDY/REGION for the region's current model, RUN/REGION for the
    model of that run, or a model's folder. The output is CSV: the rows with one more column, the
    prediction. If a row can't be predicted, the command prints only an error. If ROWS is -, CSV is
    read from standard input.
    """
    from trialfleet.workflows.control.models.prediction_file import UnknownCategories, predict_file
    from trialfleet.workflows.facts.models.folders import display_name, read_provenance
    from trialfleet.workflows.facts.runs.lookup import find_model

    if rows == Path("-"):
        rows = Path("/dev/stdin")
    if rows.exists() and not (rows.is_file() or rows.is_fifo()):
        raise InputError(f"{rows} is a folder or a device; name a CSV or Parquet file")
    folder = find_model(model, study)
    if not exists(Path(model)) and read_provenance(folder):  # show which study's model was found
        say(f"{display_name(folder.parent)}: the model of run {folder.resolve().name}", err=True)
    unknown = UnknownCategories()
    try:
        with replace_file(output) if output else _whole_to_stdout() as out:
            predict_file(folder, rows, out, unknown)
        for line in unknown.lines():
            say(line, err=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(str(error).replace("/dev/stdin: ", "standard input: ")) from error
