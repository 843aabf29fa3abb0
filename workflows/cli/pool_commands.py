"""`trialfleet pool …`: each calls one function, shows what came back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from trialfleet.errors import InputError
from trialfleet.files import shell_quoted
from trialfleet.workflows.views.output import json_option, print_json, say, show

if TYPE_CHECKING:
    from trialfleet.infra.pool.embedded import Pool


@click.group()
def pool() -> None:
    """HTCondor on this machine, unpacked where it isn't installed."""


pool_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder of the pool (default: that of $TRIALFLEET_POOL, else of $CONDOR_CONFIG, else one"
    " per user).",
)


def _meant(folder: Path | None) -> Pool:
    """Return the pool in a folder; without one, that which this shell's variables name."""
    from trialfleet.infra.pool.embedded import Pool, meant_folder

    return Pool(folder or meant_folder())


def _meant_or_told(folder: Path | None) -> Pool:
    """The same; tell where no folder was given and `plan` and `run` would use another pool."""
    from trialfleet.infra.pool.connection import named_configuration

    chosen, config = _meant(folder), named_configuration()
    if folder is None and config and config != str(chosen.condor_config):
        say(
            f"CONDOR_CONFIG names {config}, whose pool plan and run use; this is about the pool in"
            f" {chosen.folder}",
            err=True,
        )
    return chosen


@pool.command("up")
@pool_option
def pool_up(folder: Path | None) -> None:
    """Bring the pool up; harmless when it is."""
    from trialfleet.infra.pool.connection import what_to_export
    from trialfleet.workflows.cli.printing.pool_view import pool_view

    named = _meant(folder)
    show(pool_view(named.up(say)))
    if line := what_to_export(named):
        say(f"next, so that commands in this shell find it: {line}")


@pool.command("down")
@pool_option
@click.option("--yes", is_flag=True, help="Don't ask, even where a run is in progress.")
def pool_down(folder: Path | None, yes: bool) -> None:
    """End the pool; its job queue is kept for the next time, and runs go on then."""
    named = _meant_or_told(folder)
    if named.is_up():
        _tell_of_runs(named, yes)
    named.down(say)
    say("down")


def _tell_of_runs(named: Pool, yes: bool) -> None:
    """Name the runs in progress on a pool that is to end, and ask whether it may."""
    from trialfleet.workflows.facts.dagman.job_queue import runs_in_progress

    runs = runs_in_progress(named.environment())
    if not runs:
        return
    say("in progress on this pool:")
    for run in runs:
        say(f"  {shell_quoted(run)}")
    say(f"its trials stop now, and go on at the next `{named.command('up')}`")
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            f"a run is in progress: nothing was done; `{named.command('down')} --yes` ends the pool"
            " all the same, and `trialfleet stop RUN` ends a run first"
        )
    if not click.confirm("end the pool?"):
        say("nothing was done")
        sys.exit(1)


@pool.command("status")
@pool_option
@json_option
def pool_status(folder: Path | None, as_json: bool) -> None:
    """Show the pool's daemons, what its machines have in use and free, its runs and trials.

    Exits with 1 where the pool isn't up.
    """
    from trialfleet.workflows.cli.printing.pool_view import pool_view

    current = _meant_or_told(folder).status()
    if as_json:
        print_json(current.to_json())
    else:
        show(pool_view(current))
    if current.state != "up":
        sys.exit(1)


@pool.command("shell")
@pool_option
def pool_shell(folder: Path | None) -> NoReturn:
    """Open a shell with condor_q, condor_status and the others on its PATH."""
    _meant(folder).shell()


@pool.command("env")
@pool_option
def pool_env(folder: Path | None) -> None:
    """Print what a shell needs for condor_q and the others: eval "$(trialfleet pool env)"."""
    click.echo(_meant(folder).shell_exports(), nl=False)
