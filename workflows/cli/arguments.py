"""Arguments that name a run, a model or a region: found by name, and completed by the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.output import say

if TYPE_CHECKING:
    from trialfleet.workflows.run.run import Run

Command = TypeVar("Command", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def run_called(name: str | None, *, planned: bool = False, quiet: bool = True) -> Run:
    """Return the run of this name, or the newest; see `lookup.find_run`.

    Args:
        name: what was typed, if anything.
        planned: whether a run that is not submitted yet is meant.
        quiet: else the run is named on standard error where nobody has named it.
    """
    from trialfleet.workflows.run.lookup import find_run
    from trialfleet.workflows.run.run import Run

    run = Run(find_run(name, planned=planned))
    if name is None and not quiet:
        say(f"{run.study.name}/{run.run_id}", err=True)
    return run


def _completed_by(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """What completes a word by names, else by files, whose names the shell knows itself."""

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            words = [CompletionItem(name) for name in names(ctx) if name.startswith(typed)]
        except (TrialfleetError, OSError):  # nothing is said into the line that is being typed
            words = []
        return words or [CompletionItem(typed, type="file")]

    return complete


def _runs(_: click.Context) -> list[str]:
    from trialfleet.workflows.run.lookup import runs_here

    runs = runs_here()
    ids = [run.run for run in runs]
    shown = [run.run if ids.count(run.run) == 1 else run.name for run in runs]
    return list(dict.fromkeys([*shown, *(run.study for run in runs if run.study)]))


def _regions(ctx: click.Context) -> Iterable[str]:
    return run_called(ctx.params.get("run")).study.region_table


def _models(_: click.Context) -> Iterable[str]:
    from trialfleet.workflows.run.lookup import published_models, runs_here
    from trialfleet.workflows.run.run import Run

    found = (published_models(Run(run.folder)) for run in runs_here())
    return next(filter(None, found), [])


completed_by_runs = _completed_by(_runs)


def run_argument(command: Command) -> Command:
    """A RUN that may be left out: the newest then."""
    return click.argument("run", required=False, shell_complete=completed_by_runs)(command)


def run_to_name(command: Command) -> Command:
    """A RUN that has to be named."""
    return click.argument("run", shell_complete=completed_by_runs)(command)


def region_option(command: Command) -> Command:
    """One region of the command's RUN."""
    option = click.option(
        "--region", help="Only this region.", shell_complete=_completed_by(_regions)
    )
    return option(command)


def model_argument(name: str, **more: Any) -> Callable[[Command], Command]:
    """A published model, or several."""
    return click.argument(name, shell_complete=_completed_by(_models), **more)


anyway_option = click.option(
    "--anyway", is_flag=True, help="Submit it also where no slot of the pool can run its trials."
)


def _date(_: click.Context, __: click.Parameter, given: str | None) -> date | None:
    try:
        return None if given is None else datetime.strptime(given, "%Y-%m-%d").date()
    except ValueError:
        raise click.BadParameter(
            f"there is no day {given!r}; write one such as 2026-11-22"
        ) from None


def day_option(*names: str, **more: Any) -> Callable[[Command], Command]:
    """An option that takes a date such as 2026-11-22."""
    return click.option(*names, callback=_date, **more)


date_option = day_option(
    "--date", "day", metavar="DATE", help="The day that {date} stands for (default: today)."
)
