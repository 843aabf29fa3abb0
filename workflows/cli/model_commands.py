"""The commands for published models: what there is, and which of them is in force."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trialfleet.errors import InputError
from trialfleet.workflows.cli.arguments import (
    completed_by_runs_of_region,
    model_argument,
    models_of_runs,
)
from trialfleet.workflows.cli.export_command import follow
from trialfleet.workflows.facts.models.folders import called, region_of
from trialfleet.workflows.formatting import in_one_line
from trialfleet.workflows.views.output import json_option, print_json, say, show

if TYPE_CHECKING:
    from trialfleet.workflows.facts.models.listing import PublishedModel

study_option = click.option("--study", help="Only models of this study.")
_IN_FORCE = ""  # as --card's RUN


def _in_a_line(_context: click.Context, _option: click.Parameter, given: str) -> str:
    return in_one_line(given, _LONGEST_WHY)


_LONGEST_WHY = 300  # characters
_why_option = click.option(
    "--why",
    default="",
    metavar="TEXT",
    callback=_in_a_line,
    help="The reason, for those who read the region's history and the day's digest.",
)


@click.command()
@model_argument("region", required=False)
@study_option
@click.option(
    "--card",
    "card_of",
    is_flag=False,
    flag_value=_IN_FORCE,
    metavar="[RUN]",
    shell_complete=completed_by_runs_of_region,
    help="Show all that is known of one model (default: the one in force).",
)
@json_option
def models(region: str | None, study: str | None, card_of: str | None, as_json: bool) -> None:
    """Show the published models here, or all those of REGION, oldest first.

    REGION is a region's name, STUDY/REGION, or the folder of its models; a study's name, the
    folder of its models, or a publish folder stands for all regions there.
    """
    from trialfleet.workflows.facts.models.listing import models_on
    from trialfleet.workflows.facts.runs.lookup import models_folders_here
    from trialfleet.workflows.facts.runs.models_named import by_region, models_folders_named
    from trialfleet.workflows.views.terminal.model_tables import (
        card_text,
        champions_table,
        history_table,
    )

    if region is None and card_of is not None:
        raise InputError("--card is of one region: trialfleet models REGION --card [RUN]")
    named = models_folders_named(region, study) if region else models_folders_here(study)
    models_folders = by_region(named)
    is_one = region is not None and len(models_folders) == 1
    if card_of is not None and not is_one:
        raise InputError(f"--card is of one region, and {region!r} is a study: STUDY/REGION")
    found = {models_folder: models_on(models_folder) for models_folder in models_folders}
    if card_of is not None:
        model = _chosen(found[models_folders[0]], region_of(models_folders[0]), card_of)
        print_json(model.to_json()) if as_json else show(card_text(model))
    elif as_json:
        print_json(
            [
                {
                    "study": models_folder.parent.name,
                    "region": region_of(models_folder),
                    "folder": str(models_folder),
                    "models": [model.to_json() for model in of],
                }
                for models_folder, of in found.items()
            ]
        )
    elif not found:
        say(
            "no models here; a run publishes them beside its study's file, into models/ unless the "
            "study says otherwise: go to that folder, or name the folder of a region's models"
        )
    elif is_one:
        say(called(models_folders[0]))
        show(history_table(found[models_folders[0]]))
    else:
        show(champions_table(found))


def _chosen(found: list[PublishedModel], region: str, run: str) -> PublishedModel:
    """The model of a run, or the one in force."""
    for model in found:
        if model.run == run or (run == _IN_FORCE and model.in_force):
            return model
    there = ", ".join(model.run for model in found) or "none"
    wanted = f"model of the run {run!r}" if run else "model in force"
    raise InputError(f"{region} has no {wanted}; its models: {there}")


@click.command()
@model_argument("region")
@click.option(
    "--to",
    metavar="RUN",
    help="Go back to this run's model.",
    shell_complete=completed_by_runs_of_region,
)
@study_option
@_why_option
def rollback(region: str, to: str | None, study: str | None, why: str) -> None:
    """Make the model the latest of REGION that was in force before the present one.

    Once more goes one further back. REGION is a region's name, STUDY/REGION, or the folder of its
    models.
    """
    from trialfleet.workflows.control.models.latest import rollback as go_back
    from trialfleet.workflows.control.models.latest import switched
    from trialfleet.workflows.facts.runs.lookup import find_models_folder

    models_folder = find_models_folder(region, study)
    with _told(models_folder):
        now, before = go_back(models_folder, to, why)
    say(f"{called(models_folder)}: latest is {switched(now, before)}")
    follow([models_folder])


@click.command()
@models_of_runs
@_why_option
def promote(models: tuple[str, ...], why: str) -> None:
    """Make each MODEL the latest of its region, older ones too.

    MODEL is a run's id, for the models of all its regions; RUN/REGION for one of them; or a model's
    folder. A run leaves latest alone when the model of a later one is published; this is how a
    person moves it, back or forth. Where some of several can't be promoted the others are; those
    are named, and the exit code is 1.
    """
    from trialfleet.workflows.control.models.latest import promote as make_latest
    from trialfleet.workflows.control.models.latest import switched
    from trialfleet.workflows.facts.runs.lookup import models_of

    named = [place for model in models for place in models_of(model)]
    done, left = [], []
    for place in named:
        try:
            with _told(place):
                former = make_latest(place, why)
        except InputError as error:
            if len(named) == 1:
                raise
            left.append(f"{called(place.parent) if place.parent.is_dir() else place}: {error}")
            continue
        done.append(place)
        say(f"{called(place.parent)}: latest is {switched(place.name, former)}")
    follow([place.resolve().parent for place in done])
    for line in left:
        say(f"not promoted: {line}", err=True)
    if left:
        sys.exit(1)


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """Tell what can't be written without a traceback."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or place}: {error.strerror}") from error
