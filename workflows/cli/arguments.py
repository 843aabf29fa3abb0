"""Arguments that name a run, a model or a region: found by name, and completed by the shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.views.output import say

if TYPE_CHECKING:
    from trialfleet.workflows.control.run.run import Run

Command = TypeVar("Command", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Names = Callable[[click.Context, str], Iterable[str]]


def run_called(name: str | None, *, planned: bool = False, quiet: bool = True) -> Run:
    """Return the run of this name, or the newest; see `lookup.find_run`.

    Args:
        name: what was typed, if anything.
        planned: whether a run that is not submitted yet is meant.
        quiet: else the run is named on standard error where nobody has named it.
    """
    from trialfleet.workflows.control.run.run import Run
    from trialfleet.workflows.facts.runs.lookup import find_run

    run = Run(find_run(name, planned=planned))
    if name is None and not quiet:
        say(f"{run.study.name}/{run.run_id}", err=True)
    return run


def _completed_by(names: Names) -> Complete:
    """What completes a word by names, else by files, whose names the shell knows itself."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            words = [
                CompletionItem(name)
                for name in names(ctx, incomplete)
                if name.startswith(incomplete)
            ]
        except (TrialfleetError, OSError):  # nothing is said into the line that is being typed
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
    return run_called(ctx.params.get("run")).study.region_table


def _models(ctx: click.Context, _: str) -> Iterable[str]:
    """Regions that have models: those here, and those of the newest run that published any."""
    from trialfleet.workflows.facts.runs.lookup import region_names_here, runs_here

    study = ctx.params.get("study")
    runs = (run.folder for run in runs_here() if study in {None, run.study})
    published = next(filter(None, map(_published_by, runs)), [])
    here = region_names_here(study)
    named = {name.rpartition("/")[2] for name in here}
    return [*here, *(name for name in published if name not in named)]


def _published_by(folder: Path) -> list[str]:
    """The regions whose models a run published; none where it can't be read."""
    from trialfleet.workflows.facts.runs.lookup import published_models

    try:
        return list(published_models(folder))
    except (TrialfleetError, OSError):
        return []


def _models_of_runs(_: click.Context, incomplete: str) -> Iterable[str]:
    """Runs, and RUN/REGION once there is a slash behind a run."""
    from trialfleet.workflows.facts.runs.lookup import find_run

    ids = _run_ids()
    run = incomplete.rpartition("/")[0]
    if run not in ids:
        return ids
    return [f"{run}/{region}" for region in _published_by(find_run(run))]


def _runs_of_region(ctx: click.Context, _: str) -> Iterable[str]:
    from trialfleet.workflows.facts.models.listing import models_on
    from trialfleet.workflows.facts.runs.lookup import find_models_folder

    # what stands before an option without its value is left where it was
    region = ctx.params.get("region") or next(iter(ctx.args), None)
    if region is None:
        return []
    return [model.run for model in models_on(find_models_folder(region, ctx.params.get("study")))]


def _subjects(ctx: click.Context, incomplete: str) -> list[str]:
    """The regions of a run, their nodes and trials; STUDY/REGION behind a study's name."""
    from trialfleet.workflows.facts.run_folder.folder import RunFolder
    from trialfleet.workflows.facts.run_folder.graph import graph_of

    before, slash, _region = incomplete.partition("/")
    if slash and not ctx.params.get("run"):
        return [f"{before}/{region}" for region in run_called(before).study.region_table]
    run = run_called(ctx.params.get("run"))
    regions = graph_of(run.study).regions
    nodes = (node for region in regions for node in (*region.trial_nodes, *region.ends))
    begun = (path.name for path in RunFolder(run.folder).regions.glob("*/trials/*"))
    return [*(region.name for region in regions), *dict.fromkeys((*nodes, *sorted(begun)))]


def _cost_keys(_: click.Context, incomplete: str) -> list[str]:
    """What costs are added up by, also behind others and a comma."""
    from trialfleet.workflows.rules.cost_sums import BY

    before, comma, _last = incomplete.rpartition(",")
    return [f"{before}{comma}{key}" for key in BY if key not in before.split(",")]


completed_by_subjects = _completed_by(_subjects)
completed_by_cost_keys = _completed_by(_cost_keys)
completed_by_runs = _completed_by(_runs)
completed_by_runs_of_region = _completed_by(_runs_of_region)


# A RUN that may be left out: the newest then.
run_argument = click.argument("run", required=False, shell_complete=completed_by_runs)
run_to_name = click.argument("run", shell_complete=completed_by_runs)
# One region of the command's RUN.
region_option = click.option(
    "--region", help="Only this region.", shell_complete=_completed_by(_regions)
)
# Models of runs: all of a run's, or one by RUN/REGION.
models_of_runs = click.argument(
    "models",
    nargs=-1,
    required=True,
    metavar="MODEL...",
    shell_complete=_completed_by(_models_of_runs),
)


def model_argument(name: str, **more: Any) -> Callable[[Command], Command]:
    """A region whose published model is meant."""
    return click.argument(name, shell_complete=_completed_by(_models), **more)


anyway_option = click.option(
    "--anyway", is_flag=True, help="Submit it also where no slot of the pool can run its trials."
)


class _Day(click.ParamType[date]):
    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        like = f"DATE is like {date.today()}"
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            self.fail(f"{value!r} is no date; {like}", param, ctx)
        try:
            return date.fromisoformat(value)
        except ValueError:
            self.fail(f"there is no day {value!r}; {like}", param, ctx)


def day_option(*names: str, **more: Any) -> Callable[[Command], Command]:
    """An option that takes a date such as 2026-11-22."""
    return click.option(*names, type=_Day(), **more)


date_option = day_option(
    "--date",
    "day",
    metavar="DATE",
    help="The day that {date} stands for, and that the run's models are of: they don't go live over"
    " those of a later day (default: today).",
)
