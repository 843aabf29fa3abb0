"""A run's folder, its day and its publish folder, read from the head of its frozen study.

They are read without the study's types, because importing pydantic takes longer than all the rest
of `trialfleet rollback`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import DAMAGED
from trialfleet.workflows.checksums import read_copy
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.names import NO_MODELS


@dataclass(frozen=True)
class FrozenHead:
    """The facts in `RUN/study.yaml` about a run and its models.

    Attributes:
        folder: the run's folder when it was planned.
        of_day: the day that its costs belong to, as in `FrozenStudy`.
        publish: its publish folder, or `NO_MODELS`.
    """

    run: str
    folder: str
    of_day: date
    study: str
    publish: str

    @property
    def publishes(self) -> bool:
        """True if the best settings are trained in full and published."""
        return self.publish != NO_MODELS


def check_place(found: Path, planned: Path) -> None:
    """Refuse a run that was moved after it was planned; a link to the run is allowed.

    Raises:
        InputError: the run was moved.
    """
    if not planned.is_dir() or not planned.samefile(found):
        raise InputError(
            f"{str(found)!r} was planned as {str(planned)!r}, and its files contain absolute "
            "paths; "
            "move it back, or plan the study again"
        )


def head_of(folder: RunFolder) -> FrozenHead:
    """Return the facts in the head of a run's frozen study.

    Raises:
        InputError: the folder holds no run, or was moved since it was planned.
    """
    head = read_head(folder.study)
    check_place(folder.root, Path(head.folder))
    return head


def read_head(path: Path) -> FrozenHead:
    """Return the facts in a run's study.yaml, from its JSON copy if that is valid.

    Raises:
        InputError: the file is not a frozen study.
    """
    try:
        frozen = read_copy(path)
        study, day = frozen["study"], frozen.get("day")
        planned = datetime.fromisoformat(frozen["created"]).astimezone()
        of_day = date.fromisoformat(day["date"]) if day else planned.date()
        return FrozenHead(frozen["run"], frozen["folder"], of_day, study["name"], study["publish"])
    except DAMAGED:  # of another release; or this reports what is wrong with it
        from trialfleet.workflows.study.frozen import load_frozen

        found = load_frozen(path)
        study = found.study
        return FrozenHead(found.run, found.folder, found.of_day, study.name, study.publish)
