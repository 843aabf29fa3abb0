"""The settings and problems of the export of a study's models, in PUBLISH/STUDY/.export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trialfleet.errors import InputError
from trialfleet.files import (
    lock_file,
    read_json,
    read_record,
    write_atomic,
    write_json,
)
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.folders import EXPORTS, LATEST
from trialfleet.workflows.facts.run_folder.folder import path_property
from trialfleet.workflows.study.export import Export, Keep
from trialfleet.workflows.study.sections import S3Keys
from trialfleet.workflows.study.spec import Study


class Targets(BaseModel):
    """The targets to which a study's models are exported, such as S3 or MLflow.

    `s3` names the files with the access keys for S3; None if boto3 finds the keys by itself.
    `variables` has environment variables for AWS, which may contain a proxy's password.
    """

    model_config = ConfigDict(frozen=True)

    export: Export
    keep: Keep | None = None
    s3: S3Keys | None = None
    variables: dict[str, str] = {}


@dataclass(frozen=True)
class ExportFolder:
    """The folder with the settings and problems of a study's exports."""

    root: Path

    mlflow = path_property("mlflow")  # MLflow's name of each model; if lost, MLflow is asked again
    _targets = path_property("targets.json")  # of the last export; may hold a proxy's password
    _problems = path_property("problems.json")  # the last try's problems, by target
    _lock = path_property("lock")  # locked by the process that exports

    @staticmethod
    def for_study(study: Study) -> ExportFolder:
        """Return the folder of a study's exports."""
        return ExportFolder(Path(study.publish) / study.name / EXPORTS)

    @staticmethod
    def for_models_folder(models_folder: Path) -> ExportFolder:
        """Return the folder of a study's exports; `models_folder` is of one of its regions."""
        return ExportFolder(models_folder.parent / EXPORTS)

    @property
    def models_folders(self) -> list[Path]:
        """The folders of the study's regions that have published models."""
        try:
            found = sorted(self.root.parent.iterdir())
        except FileNotFoundError:
            return []
        return [path for path in found if path.name[0] != "." and path.is_dir()]

    def signature(self) -> object:
        """Return a value that changes when a model is added, removed or made current."""
        return [
            (place.name, place.stat().st_mtime_ns, history.current_run(place / LATEST))
            for place in self.models_folders
        ]

    def targets(self) -> Targets | None:
        """Return the stored export targets; None if none are stored.

        InputError if they can't be read, for example by another account.
        """
        found = read_record(self._targets, shape=Targets, if_missing={})
        return Targets.model_validate(found) if found else None

    def keep_targets(self, targets: Targets) -> None:
        """Store the export targets."""
        with suppress(InputError):  # damaged
            if targets == self.targets():
                return
        text = targets.model_dump_json(indent=1, exclude_none=True)
        write_atomic(self._targets, text + "\n", mode=0o600)

    def problems(self) -> dict[str, str]:
        """Return the stored problems of the export, by target. InputError if unreadable."""
        return read_record(self._problems, shape=dict[str, str], if_missing={})

    def keep_problems(self, problems: Mapping[str, str]) -> None:
        """Store the present problems of the export, in place of the stored ones."""
        with suppress(InputError):  # damaged
            if problems == self.problems():
                return
        write_json(self._problems, dict(problems))

    @contextmanager
    def hold_lock(self, *, wait: bool) -> Iterator[bool]:
        """Hold the lock for exports during the `with` block; yield whether this process got it.

        With `wait`, this process waits until it gets the lock.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock_file(self._lock, wait=wait) as ours:
            yield ours


def export_problems(study: Study) -> tuple[str, ...]:
    """Return the present problems of the export of a study's models, a line for each target.

    For accounts that may not read them, there are none.
    """
    if study.export is None:
        return ()
    try:
        problems = ExportFolder.for_study(study).problems()
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            return ()
        return (f"it is unknown whether models are exported: {error}",)
    return tuple(f"export to {title}: {problem}" for title, problem in problems.items())


def export_targets(study: Study, variables: Mapping[str, str]) -> Targets | None:
    """Return the export targets of a study; None if the study exports no models.

    `variables` has environment variables for AWS.
    """
    if study.export is None:
        return None
    return Targets(export=study.export, keep=study.keep, s3=study.s3, variables=dict(variables))


def read_variables(path: Path) -> dict[str, str]:
    """Return the environment variables in the file `path`, stored when a run was planned."""
    return {str(name): str(value) for name, value in read_json(path)["variables"].items()}
