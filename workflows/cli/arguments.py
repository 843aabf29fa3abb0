"""Click arguments that name a run, a model or a region, with completion in the shell."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.workflows.views.output import say

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run

Command = TypeVar("Command", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Names = Callable[[click.Context, str], Iterable[str]]


class Integer(click.IntRange):
    """An integer within limits. click would call a text that is none "not an integer range"."""

    name = "integer"


def find_named_run(name: str | None, *, planned: bool = False, quiet: bool = True) -> Run:
    """Return the run that `name` means. InputError if no run matches, or if several do.

    `lookup.find_run` describes the forms of `name` and the effect of `planned`. None means the
    newest run. Its name is printed to standard error, unless `quiet`.
    """
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.facts.runs.lookup import find_run

    run = Run(find_run(name, planned=planned))
    if name is None and not quiet:
        say(f"{run.study.name}/{run.run_id}", err=True)
    return run


def _make_completer(names: Names) -> Complete:
    """Return a click completer that offers the results of `names`.

    It offers files if no name matches, or if the names can't be read.
    """

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            words = [
                CompletionItem(name)
                for name in names(ctx, incomplete)
                if name.startswith(incomplete)
            ]
        except (TrialfleetError, OSError):  # no message while a person types
            words = []
        return words or [CompletionItem(incomplete, type="file")]

    return complete


def _run_ids() -> list[str]:
    from trialfleet.workflows.facts.runs.lookup import runs_here

    runs = runs_here()
    ids = [run.run for run in runs]
    return [run.run if ids.count(run.run) == 1 else run.name for run in runs]


def _runs(_: click.Context, __: str) -> list[str]:
    from trialfleet.workflows.facts.runs.lookup import runs_here

    return list(dict.fromkeys([*_run_ids(), *(run.study for run in runs_here() if run.study)]))


def _regions(ctx: click.Context, _: str) -> Iterable[str]:
    return find_named_run(ctx.params.get("run")).study.region_table


def _models(ctx: click.Context, _: str) -> Iterable[str]:
    from trialfleet.workflows.facts.runs.lookup import region_names_here, runs_here

    study = ctx.params.get("study")
    runs = (run.folder for run in runs_here() if study in {None, run.study})
    published = next(filter(None, map(_list_published, runs)), [])
    here = region_names_here(study)
    named = {*here, *(name.partition("/")[2] for name in here)}
    return [*here, *(name for name in published if name not in named)]


def _list_published(folder: Path) -> list[str]:
    from trialfleet.workflows.facts.runs.lookup import published_models

    try:
        return list(published_models(folder))
    except (TrialfleetError, OSError):
        return []


def _models_of_runs(_: click.Context, incomplete: str) -> Iterable[str]:
    from trialfleet.workflows.facts.runs.lookup import find_run

    ids = _run_ids()
    run = next((one for one in ids if incomplete.startswith(f"{one}/")), None)
    if run is None:
        return ids
    return [f"{run}/{region}" for region in _list_published(find_run(run))]


def _runs_of_region(ctx: click.Context, _: str) -> Iterable[str]:
    from trialfleet.workflows.facts.models.listing import list_published_models
    from trialfleet.workflows.facts.runs.lookup import find_models_folder

    # while the last option has no value yet, the arguments before it are still in ctx.args
    region = ctx.params.get("region") or next(iter(ctx.args), None)
    if region is None:
        return []
    return [
        model.run
        for model in list_published_models(find_models_folder(region, ctx.params.get("study")))
    ]


def _complete_subject(ctx: click.Context, incomplete: str) -> list[str]:
    from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
    from trialfleet.workflows.facts.run_folder.folder import RunFolder

    before, slash, _region = incomplete.partition("/")
    if slash and not ctx.params.get("run"):
        return [f"{before}/{region}" for region in find_named_run(before).study.region_table]
    run = find_named_run(ctx.params.get("run"))
    regions = build_graph(run.study).regions
    nodes = (node for region in regions for node in (*region.trial_nodes, *region.end_nodes))
    begun = (path.name for path in RunFolder(run.folder).regions.glob("*/trials/*"))
    return [*(region.name for region in regions), *dict.fromkeys((*nodes, *sorted(begun)))]


completed_by_subjects = _make_completer(_complete_subject)
completed_by_runs = _make_completer(_runs)
completed_by_runs_of_region = _make_completer(_runs_of_region)


# An optional RUN (default: the newest).
run_argument = click.argument("run", required=False, shell_complete=completed_by_runs)
run_to_name = click.argument("run", shell_complete=completed_by_runs)
# One region of the command's RUN.
region_option = click.option(
    "--region", help="Show only this region.", shell_complete=_make_completer(_regions)
)
# Models of runs: RUN for all of its models, or RUN/REGION for one.
models_of_runs = click.argument(
    "models",
    nargs=-1,
    required=True,
    metavar="MODEL...",
    shell_complete=_make_completer(_models_of_runs),
)


def model_argument(name: str, **more: Any) -> Callable[[Command], Command]:
    """Return a click argument for the name of a region that has a published model."""
    return click.argument(name, shell_complete=_make_completer(_models), **more)


def confirm(question: str, refusal: str) -> None:
    """Ask a question; exit with 1 if the answer is no. InputError `refusal` without a terminal."""
    if not sys.stdin.isatty():
        raise InputError(refusal)
    click.confirm(question, abort=True)


anyway_option = click.option(
    "--anyway", is_flag=True, help="Submit even if no slot of the pool can run a region's trials."
)


class _Day(click.ParamType[date]):
    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        like = f"write DATE like {date.today()}"
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            self.fail(f"{value!r} is not a date; {like}", param, ctx)
        try:
            return date.fromisoformat(value)
        except ValueError:
            self.fail(f"the day {value!r} does not exist; {like}", param, ctx)


def day_option(*names: str, **more: Any) -> Callable[[Command], Command]:
    """Return a click option for a date such as 2026-11-22."""
    return click.option(*names, type=_Day(), **more)


date_option = day_option(
    "--date",
    "day",
    metavar="DATE",
    help="Date of the run, which replaces {date} in the study (default: today). The run's models"
    " never replace models of a later date.",
)
