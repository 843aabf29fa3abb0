"""The commands `trialfleet pool up`, `down`, `status`, `shell` and `env`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from trialfleet.files import shell_quoted
from trialfleet.workflows.cli.arguments import confirm
from trialfleet.workflows.views.output import json_option, print_json, say, show

if TYPE_CHECKING:
    from trialfleet.infra.pool.embedded import Pool


@click.group()
def pool() -> None:
    """Run HTCondor on this machine, even if HTCondor is not installed."""


pool_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder of the pool (default: $TRIALFLEET_POOL; if unset, the folder of the pool that"
    " $CONDOR_CONFIG names; otherwise the user's own).",
)


def _chosen_pool(folder: Path | None) -> Pool:
    from trialfleet.infra.pool.embedded import Pool, meant_folder

    return Pool(folder or meant_folder())


def _chosen_with_notice(folder: Path | None) -> Pool:
    """Return the pool in `folder`. Print a notice if `trialfleet run` would use another pool."""
    from trialfleet.infra.pool.connection import named_configuration

    chosen, config = _chosen_pool(folder), named_configuration()
    if folder is None and config and config != str(chosen.condor_config):
        say(
            f"CONDOR_CONFIG names {config}: `trialfleet plan` and `run` use that pool, but this"
            f" command uses the pool in {chosen.folder}",
            err=True,
        )
    return chosen


@pool.command("up")
@pool_option
def pool_up(folder: Path | None) -> None:
    """Start the pool. You can repeat this command."""
    from trialfleet.infra.pool.connection import export_command
    from trialfleet.workflows.cli.printing.pool_view import pool_view

    named = _chosen_pool(folder)
    show(pool_view(named.up(say)))
    if line := export_command(named):
        say(f"next, for commands in this shell: {line}")


@pool.command("down")
@pool_option
@click.option("--yes", is_flag=True, help="Don't ask, even if a run is in progress.")
def pool_down(folder: Path | None, yes: bool) -> None:
    """Stop the pool. Its job queue is kept, and runs continue at the next start."""
    named = _chosen_with_notice(folder)
    if named.is_up():
        _confirm_with_runs(named, yes)
    named.down(say)
    say("down")


def _confirm_with_runs(named: Pool, yes: bool) -> None:
    from trialfleet.workflows.facts.dagman.job_queue import runs_in_progress

    runs = runs_in_progress(named.environment())
    if not runs:
        return
    say("in progress on this pool:")
    for run in runs:
        say(f"  {shell_quoted(run)}")
    say(f"their trials stop now and continue after the next `{named.command('up')}`")
    if not yes:
        confirm(
            "stop the pool?",
            "a run is in progress, so the pool was not stopped; stop the run with `trialfleet stop"
            f" RUN`, or stop the pool anyway with `{named.command('down')} --yes`",
        )


@pool.command("status")
@pool_option
@json_option
def pool_status(folder: Path | None, as_json: bool) -> None:
    """Show the pool's daemons, its machines with used and free resources, runs and trials.

    The exit code is 1 if the pool isn't up.
    """
    from trialfleet.workflows.cli.printing.pool_view import pool_view

    current = _chosen_with_notice(folder).status()
    if as_json:
        print_json(current.to_json())
    else:
        show(pool_view(current))
    if current.state != "up":
        sys.exit(1)


@pool.command("shell")
@pool_option
def pool_shell(folder: Path | None) -> NoReturn:
    """Open a shell with condor_q, condor_status and HTCondor's other tools on its PATH."""
    _chosen_pool(folder).shell()


@pool.command("env")
@pool_option
def pool_env(folder: Path | None) -> None:
    """Print commands that set the environment variables that HTCondor's tools need.

    To set the variables in your shell, type: eval "$(trialfleet pool env)".
    """
    click.echo(_chosen_pool(folder).shell_exports(), nl=False)
