"""A pass of an export: it updates each target, S3 or MLflow, to match the publish folder.

A pass needs no record of earlier passes. So if a process is killed during a pass, the next pass by
any process completes the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import ExportError, InputError
from trialfleet.workflows.control.export.published_models import read_published
from trialfleet.workflows.control.export.s3_client import s3_client
from trialfleet.workflows.facts.models.export_folder import ExportFolder, Targets
from trialfleet.workflows.study.export import Keep

if TYPE_CHECKING:
    from trialfleet.workflows.control.export.mlflow_models import MlflowServer
    from trialfleet.workflows.control.export.s3_mirror import S3Mirror

    Target = S3Mirror | MlflowServer

log = logging.getLogger(__name__)
Progress = Callable[[str], None]


def export_settled(
    folder: ExportFolder,
    targets: Targets,
    progress: Progress,
    models_folders: Sequence[Path] | None = None,
) -> dict[str, str]:
    """Repeat `export_all` until no model changes during a call, or until a target has a problem.

    Return the result of the last call.
    """
    while True:
        before = folder.signature()
        problems = export_all(folder, targets, progress, models_folders)
        if problems or folder.signature() == before:
            return problems


def export_all(
    folder: ExportFolder,
    targets: Targets,
    progress: Progress,
    models_folders: Sequence[Path] | None = None,
) -> dict[str, str]:
    """Export the models in `models_folders`, by default all, to all targets.

    Return the problem of each target that has one, by the target's title. The caller holds the lock
    of `folder` (`ExportFolder.hold_lock`).
    """
    folder.keep_targets(targets)
    everything = folder.models_folders
    some = everything if models_folders is None else models_folders
    problems: dict[str, str] = {}
    if models_folders is not None:
        with suppress(InputError):  # damaged; the next whole export replaces it
            problems = folder.problems()
    for title, open_target in _target_openers(folder, targets):
        problems.pop(title, None)
        try:
            target = open_target()
            target.check()
            problem = _export(target, some, targets.keep, progress)
        except ExportError as error:  # the target can't be opened
            problem = str(error)
        if problem:
            problems[title] = problem
    folder.keep_problems(problems)
    return problems


def _export(
    target: Target, models_folders: Iterable[Path], keep: Keep | None, progress: Progress
) -> str:
    """Update a target. Return the reason why it is not up to date, or "" if it is."""
    problems = []
    for models_folder in models_folders:
        try:
            lines = target.export(read_published(models_folder), keep)
        except (ExportError, OSError) as error:
            log.warning("%s: %s: %s", target.title, models_folder.name, error)
            problems.append(f"{models_folder.name}: {error}")
            if isinstance(error, ExportError) and error.is_of_all:
                break
        else:
            for line in lines:
                progress(f"{target.title}: {models_folder.name}: {line}")
    more = f" (and {len(problems) - 1} more regions)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}" if problems else ""


def _target_openers(
    folder: ExportFolder, targets: Targets
) -> Iterator[tuple[str, Callable[[], Target]]]:
    if url := targets.export.s3:
        from trialfleet.workflows.control.export.s3_mirror import S3Mirror

        yield url.rstrip("/"), lambda: S3Mirror(s3_client(targets.s3), url)
    if mlflow := targets.export.mlflow:
        from trialfleet.workflows.control.export.mlflow_models import MlflowServer, server_title

        yield server_title(mlflow), lambda: MlflowServer(mlflow, folder.mlflow)
