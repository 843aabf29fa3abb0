"""The command that exports models now."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trialfleet.errors import InputError
from trialfleet.workflows.views.output import json_option, print_json, say

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study


@click.command()
@click.argument("run_or_study", required=False)
@json_option
def export(run_or_study: str | None, as_json: bool) -> None:
    """Copy published models where a study's `export:` wants them, now; exit 1 if that fails.

    Of a study's file, or of a run's study (default: the newest run). What is there already isn't
    copied again, so this may be repeated. While a run goes on, its models are exported without it.
    """
    from trialfleet.workflows.control.export.passes import export_settled
    from trialfleet.workflows.control.export.switching import enter
    from trialfleet.workflows.facts.models.export_folder import ExportFolder, of_study

    study, variables = _study_of(run_or_study)
    targets = of_study(study, variables)
    if targets is None:
        raise InputError(f"the study {study.name!r} has no export:; docs/exports.md shows one")
    folder, lines = ExportFolder.for_study(study), []

    def tell(line: str) -> None:
        lines.append(line)
        if not as_json:
            say(line)

    with folder.hold_lock(wait=True):
        enter(targets)
        problems = export_settled(folder, targets, tell)
    if as_json:
        print_json({"schema": 1, "done": lines, "problems": problems})
    elif problems:
        tell_unexported(problems)
    elif not lines:
        say("everything is exported")
    sys.exit(1 if problems else 0)


def tell_unexported(problems: dict[str, str]) -> None:
    """Say what can't be exported yet, and how it is tried again."""
    for title, problem in problems.items():
        say(f"not exported yet to {title}: {problem}", err=True)
    if problems:
        say("again: trialfleet export RUN-OR-STUDY, or with the study's next run", err=True)


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
