"""The command that exports models now, and what lets exports follow a switch of `latest`."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trialfleet.errors import InputError
from trialfleet.workflows.facts.models.folders import EXPORTS
from trialfleet.workflows.views.output import json_option, print_json, say

if TYPE_CHECKING:
    from trialfleet.workflows.facts.models.export_folder import ExportFolder, Targets
    from trialfleet.workflows.study.spec import Study

_TRIES, _TRY_SECONDS = 20, 0.25  # to be the one who exports


@click.command()
@click.argument("run_or_study", required=False)
@json_option
def export(run_or_study: str | None, as_json: bool) -> None:
    """Copy published models where a study's `export:` wants them, now; exit 1 if that fails.

    Of a study's file, or of a run's study (default: the newest run). What is there already isn't
    copied again, so this may be repeated. While a run goes on, its models are exported without it.
    """
    from trialfleet.workflows.control.export.passes import export_settled
    from trialfleet.workflows.facts.models.export_folder import ExportFolder, of_study

    study, variables = _study_of(run_or_study)
    targets = of_study(study, variables)
    if targets is None:
        raise InputError(f"the study {study.name!r} has no export:; docs/exports.md shows one")
    folder, lines = ExportFolder.of(study), []

    def tell(line: str) -> None:
        lines.append(line)
        if not as_json:
            say(line)

    with folder.alone(wait=True):
        _enter(targets)
        problems = export_settled(folder, targets, tell)
    if as_json:
        print_json({"schema": 1, "done": lines, "problems": problems})
    elif problems:
        _tell(problems)
    elif not lines:
        say("everything is exported")
    sys.exit(1 if problems else 0)


def follow(models_folders: Iterable[Path]) -> None:
    """Let the exports of models follow a switch of `latest` that has taken place.

    What is out of reach is reported and follows later; where models are being exported at the
    moment, that sees the switch by itself.
    """
    exported = [each for each in models_folders if (each.parent / EXPORTS).is_dir()]
    if not exported:  # and then nothing of it is imported: a rollback takes no time
        return
    from trialfleet.workflows.facts.models.export_folder import ExportFolder

    by_folder = defaultdict(list)
    for models_folder in exported:
        by_folder[ExportFolder.beside(models_folder)].append(models_folder)
    for folder, some in by_folder.items():
        if (targets := folder.targets()) is None:
            continue
        from trialfleet.workflows.control.export.passes import export_settled

        with _alone(folder) as ours:
            if not ours:
                say("models are being exported at the moment; that follows the switch, too")
                continue
            _enter(targets)
            _tell(export_settled(folder, targets, say, some))


@contextmanager
def _alone(folder: ExportFolder) -> Iterator[bool]:
    """Give whether this process may export; it waits a little for who does."""
    for _ in range(_TRIES):
        with folder.alone(wait=False) as ours:
            if ours:
                yield True
                return
        time.sleep(_TRY_SECONDS)
    yield False


def _tell(problems: dict[str, str]) -> None:
    for title, problem in problems.items():
        say(f"not exported yet to {title}: {problem}", err=True)
    if problems:
        say("again: trialfleet export RUN-OR-STUDY, or with the study's next run", err=True)


def _enter(targets: Targets) -> None:
    """Take the variables that were frozen with a run where this shell has none of its own."""
    for name, value in targets.variables.items():
        os.environ.setdefault(name, value)


def _study_of(name: str | None) -> tuple[Study, dict[str, str]]:
    """A study with absolute places of its models, and the variables by which it reaches AWS."""
    from trialfleet.workflows.facts.models.export_folder import read_variables
    from trialfleet.workflows.facts.run_folder.folder import RunFolder
    from trialfleet.workflows.facts.runs.lookup import find_run
    from trialfleet.workflows.study.frozen import load_frozen
    from trialfleet.workflows.study.loading import load_published

    if name and Path(name).is_file():
        from trialfleet.infra.fleet.aws.account import variables

        return load_published(Path(name)), variables()
    folder = RunFolder(find_run(name).absolute())
    known = folder.export_variables
    return load_frozen(folder.study).study, read_variables(known) if known.exists() else {}
