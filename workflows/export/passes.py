"""One pass of an export: every target is brought up to date with the publish folder.

What is compared is what lies there, never what was done before: so a pass may be killed anywhere,
and the next one does the rest, whoever makes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trialfleet.workflows.export.folder import ExportFolder, Targets
from trialfleet.workflows.export.published import ExportError, Published, published_in
from trialfleet.workflows.export.s3_client import s3_client, secret_of
from trialfleet.workflows.study.export import Keep
from trialfleet.workflows.study.notify import secret_line
from trialfleet.workflows.study.sections import S3Keys

log = logging.getLogger(__name__)
Progress = Callable[[str], None]


class Target(Protocol):
    """A place that models are exported to."""

    title: str

    def export(self, published: Published, keep: Keep | None) -> list[str]:
        """Bring it up to date with a region's models; return lines on what was done."""


@dataclass(frozen=True)
class Opened:
    """A target, or why it can't even be tried."""

    title: str
    target: Target | None = None
    problem: str = ""


def export_settled(
    folder: ExportFolder,
    targets: Targets,
    progress: Progress,
    models_folders: Sequence[Path] | None = None,
) -> dict[str, str]:
    """As `export_all`, and again while models come, go or are switched meanwhile."""
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
    """Bring all targets up to date; to be called by one process at a time, see `alone`.

    Args:
        folder: of the exports of a study's models.
        targets: where to.
        progress: takes a line for each action.
        models_folders: only of these regions; default: of all.

    Returns:
        Why a target isn't up to date, by its title.
    """
    folder.keep_targets(targets)
    everything = folder.models_folders
    some = everything if models_folders is None else models_folders
    problems = {} if models_folders is None else folder.problems()
    for opened in _opened(folder, targets):
        problem = opened.problem or _export(opened.target, some, targets.keep, progress)
        problems.pop(opened.title, None)
        if problem:
            problems[opened.title] = problem
    folder.keep_problems(problems)
    return problems


def _export(
    target: Target | None, models_folders: Iterable[Path], keep: Keep | None, progress: Progress
) -> str:
    """Why a target isn't up to date; empty if it is. One region's trouble is no other's."""
    assert target is not None, "what can't be opened has a problem"
    problems = []
    for models_folder in models_folders:
        try:
            lines = target.export(published_in(models_folder), keep)
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


def _opened(folder: ExportFolder, targets: Targets) -> list[Opened]:
    found = []
    if url := targets.export.s3:
        found.append(_s3(url, targets.s3))
    if targets.export.mlflow:
        found.append(_mlflow(folder, targets))
    return found


def _s3(url: str, keys: S3Keys | None) -> Opened:
    from trialfleet.workflows.export.s3_mirror import S3Mirror

    try:
        mirror = S3Mirror(s3_client(keys), url)
    except ExportError as error:
        return Opened(url.rstrip("/"), problem=str(error))
    return Opened(mirror.title, mirror)


def _mlflow(folder: ExportFolder, targets: Targets) -> Opened:
    from trialfleet.workflows.export.mlflow_server import MlflowServer, title_of

    settings = targets.export.mlflow
    assert settings is not None, "the caller looked"
    try:
        login = {
            "password": _given(settings.password_file, settings.password_env),
            "token": _given(settings.token_file, settings.token_env),
        }
        return Opened(title_of(settings), MlflowServer(settings, folder.mlflow, **login))
    except ExportError as error:
        return Opened(title_of(settings), problem=str(error))


def _given(file: str | None, variable: str | None) -> str | None:
    """A secret, from where the study says that it is."""
    if file:
        return secret_of(file)
    if variable is None:
        return None
    if not (value := secret_line(os.environ.get(variable, ""))):
        raise ExportError(
            f"the environment variable {variable} is not set where models are exported"
        )
    return value
