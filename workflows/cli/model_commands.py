"""The commands `models`, `promote` and `rollback` on published models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from trialfleet.errors import InputError
from trialfleet.workflows.cli.arguments import (
    completed_by_runs_of_region,
    model_argument,
    models_of_runs,
)
from trialfleet.workflows.cli.export_command import print_unexported
from trialfleet.workflows.facts.models.folders import display_name
from trialfleet.workflows.views.output import json_option, print_json, say, show

if TYPE_CHECKING:
    from trialfleet.workflows.facts.models.listing import PublishedModel
    from trialfleet.workflows.facts.runs.model_lookup import RegionModels

study_option = click.option("--study", help="Only models of this study.")
_CURRENT = ""  # the value of --card without a RUN
_why_option = click.option(
    "--why",
    default="",
    metavar="TEXT",
    help="Reason, recorded in the region's history and the day's digest.",
)


@click.command()
@model_argument("region", required=False)
@study_option
@click.option(
    "--card",
    "card_of",
    is_flag=False,
    flag_value=_CURRENT,
    metavar="[RUN]",
    shell_complete=completed_by_runs_of_region,
    help="Show all details of one model (default: the current model).",
)
@json_option
def models(region: str | None, study: str | None, card_of: str | None, as_json: bool) -> None:
    """Show each region's current model, or all models of REGION, oldest first.

    Without REGION, the command shows all regions that have published models here. REGION is a
    region's name, STUDY/REGION, or the folder of a region's models. REGION may also be a study's
    name, the folder of a study's models, or a publish folder. Then the command shows all regions of
    that study or folder.
    """
    from trialfleet.workflows.facts.runs.model_lookup import models as models_named
    from trialfleet.workflows.views.terminal.model_tables import (
        card_text,
        champions_table,
        history_table,
    )

    if region is None and card_of is not None:
        raise InputError("--card needs a region: trialfleet models REGION --card [RUN]")
    found = models_named(region, study=study)
    is_one = region is not None and len(found) == 1
    if card_of is not None and not is_one:
        raise InputError(
            f"--card needs one region, but {region!r} names {len(found)} regions: give STUDY/REGION"
        )
    if card_of is not None:
        model = _find_model(found[0], card_of)
        print_json(model.to_json()) if as_json else show(card_text(model))
    elif as_json:
        print_json([each.to_json() for each in found])
    elif not found:
        say(
            "there are no published models here. A run publishes models beside its study file, by "
            "default into models/: change to the study's folder, or name the folder of a region's "
            "models"
        )
    elif is_one:
        say(display_name(found[0].folder))
        show(history_table(found[0].models))
    else:
        show(champions_table({each.folder: each.models for each in found}))


def _find_model(region: RegionModels, run: str) -> PublishedModel:
    for model in region.models:
        if model.run == run or (run == _CURRENT and model.is_current):
            return model
    there = ", ".join(model.run for model in region.models) or "none"
    wanted = f"model of the run {run!r}" if run else "current model"
    raise InputError(f"{region.region} has no {wanted}; its models: {there}")


@click.command()
@model_argument("region")
@click.option(
    "--to",
    metavar="RUN",
    help="Run whose model becomes current (default: the previous model's run).",
    shell_complete=completed_by_runs_of_region,
)
@study_option
@_why_option
def rollback(region: str, to: str | None, study: str | None, why: str) -> None:
    """Make REGION's previous model its current model again.

    Repeat the command to go back further. REGION is a region's name, STUDY/REGION, or the folder of
    its models.
    """
    from trialfleet.workflows.control.promote_and_rollback import follow, go_back

    switch = go_back(region, study, to, why)
    say(str(switch))
    print_unexported(follow([switch.folder], say))


@click.command()
@models_of_runs
@_why_option
def promote(models: tuple[str, ...], why: str) -> None:
    """Make each MODEL the current model of its region, even if a newer model is current.

    MODEL is a run's id (the models of all its regions), RUN/REGION, or a model's folder. A run
    never replaces the model of a later run, but this command does. If one of several models can't
    be promoted, the command names it, promotes the others, and exits with 1.
    """
    from trialfleet.workflows.control.promote_and_rollback import follow, promote_each

    done, left = promote_each(models, why)
    for switch in done:
        say(str(switch))
    print_unexported(follow([switch.folder for switch in done], say))
    for line in left:
        say(f"not promoted: {line}", err=True)
    if left:
        sys.exit(1)
