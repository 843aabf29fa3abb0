"""The command `trialfleet export`, which exports published models."""

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
    """Copy published models to the destinations in a study's `export:`.

    The argument is a study's file, or a run (default: the newest). Existing copies are skipped, so
    the command can be repeated. A run exports its models by itself, without this command. The exit
    code is 1 if an export fails.
    """
    from trialfleet.workflows.control.export.export_pass import export_settled
    from trialfleet.workflows.control.promote_and_rollback import enter
    from trialfleet.workflows.facts.models.export_folder import ExportFolder, export_targets

    study, variables = _read_study(run_or_study)
    targets = export_targets(study, variables)
    if targets is None:
        raise InputError(f"the study {study.name!r} has no `export:` table; see docs/exports.md")
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
        print_unexported(problems)
    elif not lines:
        say("everything is exported")
    sys.exit(1 if problems else 0)


def print_unexported(problems: dict[str, str]) -> None:
    """Print why models are not yet exported, by destination, and how to retry."""
    for title, problem in problems.items():
        say(f"not exported yet to {title}: {problem}", err=True)
    if problems:
        say("to retry: trialfleet export RUN-OR-STUDY; the study's next run also retries", err=True)


def _read_study(name: str | None) -> tuple[Study, dict[str, str]]:
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
