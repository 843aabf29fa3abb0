"""The command line. Each command reads its arguments, calls one function, shows what came back."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.files import typed
from trialfleet.workflows.fleet_commands import fleet, manager
from trialfleet.workflows.output import console, print_json

if TYPE_CHECKING:
    from trialfleet.workflows.run import Run, TrialRecord
    from trialfleet.workflows.status import RunStatus

RUNS = Path("runs")
Command = TypeVar("Command", bound=Callable[..., Any])

run_argument = click.argument("run", type=click.Path(path_type=Path), required=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Group(click.Group):
    """Prints trialfleet's own errors as one message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TrialfleetError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
            sys.stderr.close()
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trialfleet")
def main() -> None:
    r"""Tune and train one model per region on a fleet of machines that HTCondor manages.

    \b
    trialfleet init demo                 a first study, ready to run
    trialfleet pool up                   HTCondor on this machine
    trialfleet run demo/study.yaml       plan, submit, watch
    """


# -- studies -------------------------------------------------------------------------------------


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--example", type=click.Choice(["first", "flights"]), default="first")
def init(folder: Path, example: str) -> None:
    """Write a commented study, with its trainer, into FOLDER; it runs as it is."""
    from trialfleet.workflows.examples import write_example

    study = write_example(example, folder)
    click.echo(f"wrote {study}\nnext: trialfleet run {study}")


@main.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.")
@click.option("--run-id", help="Name of the run (default: the time).")
@json_option
def plan(study: Path, out: Path | None, run_id: str | None, as_json: bool) -> None:
    """Write the folder of a run of STUDY and print what will run."""
    from trialfleet.workflows.plan_summary import plan_summary, plan_text
    from trialfleet.workflows.run import plan as plan_run

    planned = plan_run(study, run=run_id, out=out)
    if as_json:
        print_json(plan_summary(planned))
        return
    here = _typed(planned)
    click.echo(plan_text(planned))
    click.echo(f"next: trialfleet submit {here}   (or condor_submit_dag {here}/study.dag)")


@main.command()
def schema() -> None:
    """Print the JSON Schema of a study file, for editors."""
    from trialfleet.workflows.study import Study

    print_json(Study.model_json_schema())


# -- runs ----------------------------------------------------------------------------------------


@main.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.")
@click.option("--run-id", help="Name of the run (default: the time).")
def run(study: Path, out: Path | None, run_id: str | None) -> None:
    """Plan a run of STUDY, submit it and watch it to its end."""
    from trialfleet.infra.pool import connect
    from trialfleet.workflows.plan_summary import plan_text
    from trialfleet.workflows.run import plan as plan_run

    connect()  # without HTCondor there is nothing to plan for
    planned = plan_run(study, run=run_id, out=out)
    click.echo(plan_text(planned))
    click.echo(f"submitted as job {planned.submit()}")
    _watch_to_the_end(planned)


@main.command()
@run_argument
def submit(run: Path | None) -> None:
    """Hand a planned RUN to HTCondor."""
    planned = _open(run)
    click.echo(
        f"submitted as job {planned.submit()}\nnext: trialfleet status {_typed(planned)} --watch"
    )


@main.command()
@run_argument
@click.option("--watch", "keep_watching", is_flag=True, help="Go on until the run has ended.")
@json_option
def status(run: Path | None, keep_watching: bool, as_json: bool) -> None:
    """Show where RUN stands (default: the newest in ./runs)."""
    from trialfleet.workflows.console import run_view

    opened = _open(run)
    if keep_watching and not as_json:
        _watch_to_the_end(opened)
    for current in opened.watch() if keep_watching else [opened.status()]:
        if as_json:
            print_json(current.to_json(), indent=None if keep_watching else 1)
        else:
            console().print(run_view(current))


@main.command()
@run_argument
def stop(run: Path | None) -> None:
    """Stop RUN; what is finished stays, and resume goes on from there."""
    opened = _open(run)
    stopped = opened.stop()
    click.echo(f"{stopped.state}\nnext: trialfleet resume {_typed(opened)}")


@main.command()
@run_argument
@click.option("--watch/--no-watch", "keep_watching", default=True, help="Watch it to its end.")
def resume(run: Path | None, keep_watching: bool) -> None:
    """Go on with a RUN that was stopped or has failed."""
    opened = _open(run)
    click.echo(f"resumed as job {opened.resume()}")
    if keep_watching:
        _watch_to_the_end(opened)


@main.command()
@run_argument
@json_option
def best(run: Path | None, as_json: bool) -> None:
    """Show the best settings of each region of RUN."""
    from trialfleet.workflows.console import best_table

    opened = _open(run)
    found = opened.best()
    if as_json:
        print_json([asdict(entry) for entry in found])
    elif found:
        console().print(best_table(found, opened.study.objective.metric))
    else:
        click.echo("no trial has completed yet")


@main.command()
@run_argument
@click.option("--region", help="Only this region.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def trials(run: Path | None, region: str | None, as_csv: bool, as_json: bool) -> None:
    """List the trials of RUN."""
    from trialfleet.workflows.console import trials_table

    records = _open(run).trials(region)
    if as_json:
        print_json([asdict(record) for record in records])
    elif as_csv:
        _print_csv(records)
    else:
        console().print(trials_table(records))


@main.command()
@run_argument
def report(run: Path | None) -> None:
    """Write the report of RUN as it stands now, and show its table."""
    from trialfleet.workflows.report import summary_table
    from trialfleet.workflows.run_report import last_finished, write_report
    from trialfleet.workflows.status import open_run

    opened = _open(run)
    folder = open_run(opened.folder)
    finished = last_finished(folder) if opened.status().ended else None
    console().print(summary_table(write_report(folder, finished)))
    click.echo(f"report  {opened.report}")


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("rows", type=click.Path(path_type=Path))
def predict(model: Path, rows: Path) -> None:
    """Predict the rows of a CSV file with a published MODEL of the reference trainer.

    MODEL is a folder such as models/JFK/latest; models/JFK stands for its latest.
    """
    from trialfleet.nodes.predict import predict_csv
    from trialfleet.workflows.publish import LATEST

    try:
        predict_csv(model / LATEST if (model / LATEST).is_dir() else model, rows, sys.stdout)
    except OSError as error:
        raise InputError(f"{error.filename or model}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(str(error)) from error


# -- the pool ------------------------------------------------------------------------------------


@main.group()
def pool() -> None:
    """HTCondor on this machine, unpacked where it isn't installed."""


pool_option = click.option(
    "--folder", type=click.Path(path_type=Path), help="Folder of the pool (default: one per user)."
)


@pool.command("up")
@pool_option
def pool_up(folder: Path | None) -> None:
    """Bring the pool up; harmless when it is."""
    from trialfleet.infra.pool import Pool
    from trialfleet.workflows.console import pool_view

    console().print(pool_view(Pool(folder).up(click.echo)))


@pool.command("down")
@pool_option
def pool_down(folder: Path | None) -> None:
    """End the pool; its job queue is kept for the next time."""
    from trialfleet.infra.pool import Pool

    Pool(folder).down(click.echo)
    click.echo("down")


@pool.command("status")
@pool_option
@json_option
def pool_status(folder: Path | None, as_json: bool) -> None:
    """Show the pool's daemons, slots and jobs."""
    from trialfleet.infra.pool import Pool
    from trialfleet.workflows.console import pool_view

    current = Pool(folder).status()
    if as_json:
        print_json(asdict(current))
    else:
        console().print(pool_view(current))


@pool.command("shell")
@pool_option
def pool_shell(folder: Path | None) -> NoReturn:
    """Open a shell with condor_q, condor_status and the others on its PATH."""
    from trialfleet.infra.pool import Pool

    Pool(folder).shell()


@pool.command("env")
@pool_option
def pool_env(folder: Path | None) -> None:
    """Print what a shell needs for condor_q and the others: eval "$(trialfleet pool env)"."""
    from trialfleet.infra.pool import Pool

    click.echo(Pool(folder).shell_exports(), nl=False)


main.add_command(fleet)
main.add_command(manager)


# -- what the commands share -----------------------------------------------------------------------


def _open(folder: Path | None) -> Run:
    from trialfleet.workflows.run import Run

    return Run(folder if folder is not None else _newest_run())


def _newest_run() -> Path:
    studies = list(RUNS.glob("*/[!.]*/study.yaml"))
    if not studies:
        raise InputError(
            f"no run named, and none in {str(RUNS.absolute())!r}; "
            "name a run's folder, or make one with: trialfleet plan STUDY"
        )
    return max(studies, key=lambda study: study.stat().st_mtime).parent


def _watch_to_the_end(run: Run) -> NoReturn:
    from trialfleet.workflows.console import watch

    try:
        ended = watch(run, console())
    except KeyboardInterrupt:
        name = _typed(run)
        click.echo(
            f"\nthe run goes on\n  watch it: trialfleet status {name} --watch\n"
            f"  stop it:  trialfleet stop {name}"
        )
        sys.exit(130)
    _show_end(run, ended)


def _show_end(run: Run, ended: RunStatus) -> NoReturn:
    from trialfleet.workflows.console import run_view
    from trialfleet.workflows.folder import RunFolder
    from trialfleet.workflows.report import summary_table
    from trialfleet.workflows.run_report import read_report
    from trialfleet.workflows.status import RunState

    terminal = console()
    if run.report.exists():
        terminal.print(summary_table(read_report(RunFolder(run.folder))))
    if ended.state is not RunState.DONE:
        terminal.print(run_view(ended))
    if any(region.published for region in ended.regions):
        click.echo(f"models  {run.study.publish}")
    if run.report.exists():
        click.echo(f"report  {run.report}")
    sys.exit(0 if ended.state is RunState.DONE else 1)


def _typed(run: Run) -> str:
    return typed(run.folder)


def _print_csv(records: list[TrialRecord]) -> None:
    rows = [_csv_row(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _csv_row(record: TrialRecord) -> dict[str, Any]:
    row = asdict(record)
    params, metrics = row.pop("params"), row.pop("metrics")
    return {
        **row,
        **{f"params.{name}": value for name, value in params.items()},
        **{f"metrics.{name}": value for name, value in metrics.items()},
    }
