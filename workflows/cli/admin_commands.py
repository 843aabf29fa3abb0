"""The commands for what no process decides by itself: which model is in force, who writes a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trialfleet.errors import InputError
from trialfleet.files import shell_quoted
from trialfleet.workflows.cli.arguments import models_of_runs, run_to_name
from trialfleet.workflows.cli.export_command import follow
from trialfleet.workflows.output import say


@click.command()
@models_of_runs
def promote(models: tuple[str, ...]) -> None:
    """Make each MODEL the latest of its region, older ones too.

    MODEL is a run's id, for the models of all its regions; RUN/REGION for one of them; or a model's
    folder. A run leaves latest alone when the model of a later one is published; this is how a
    person moves it, back or forth. Where some of several can't be promoted the others are; those
    are named, and the exit code is 1.
    """
    from trialfleet.workflows.models.latest import called, switched
    from trialfleet.workflows.run.lookup import models_of

    named = [place for model in models for place in models_of(model)]
    done, left = [], []
    for place in named:
        try:
            former = _make_latest(place)
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


def _make_latest(place: Path) -> str | None:
    """Make a model the latest of its region; return the run whose model was that before.

    Raises:
        InputError: it is no published model, or its folder can't be written.
    """
    from trialfleet.workflows.models.latest import promote as make_latest

    try:
        return make_latest(place)
    except OSError as error:
        raise InputError(f"{error.filename or place}: {error.strerror}") from error


@click.command()
@run_to_name
def takeover(run: str) -> None:
    """Let this machine, with the folder RUN, write the run's studies in place of another.

    For a machine that is gone for good, where the study names a storage of its own, a database:
    what is finished stays finished. Should that machine come back, its regions stop.
    """
    from trialfleet.workflows.run.lookup import find_run
    from trialfleet.workflows.status.status import open_run
    from trialfleet.workflows.status.storage import take_over

    folder = open_run(find_run(run))
    former = take_over(folder)
    say(f"taken over from {former}" if former else "nobody else had it")
    say(f"next: trialfleet submit or resume {shell_quoted(folder.root)}")
