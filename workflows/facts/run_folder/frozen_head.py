"""The main facts in RUN/study.yaml, the study as it was when the run was planned.

This module does not import the study's types, because they need pydantic. The import of pydantic
takes longer than all else that `trialfleet rollback` does.
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
    """The main facts about a run and its models.

    `folder` was the run's folder when the run was planned. The run's costs are charged to the day
    `of_day`. `publish` is the publish folder, or `NO_MODELS` if the study publishes no models.
    """

    run: str
    folder: str
    of_day: date
    study: str
    publish: str

    @property
    def publishes(self) -> bool:
        """True if the run publishes models."""
        return self.publish != NO_MODELS


def check_place(found: Path, planned: Path) -> None:
    """Raise InputError if a run was moved from the folder `planned` to the folder `found`."""
    if not planned.is_dir() or not planned.samefile(found):
        # the jobs of a moved run make a folder there, into which the run would be moved back
        is_rest = planned.is_dir() and not RunFolder(planned).study.exists()
        first = " (first remove what its jobs have written there since)" if is_rest else ""
        raise InputError(
            f"the run in {str(found)!r} was planned in {str(planned)!r} and works only there,"
            " because its files contain absolute paths;"
            f" move it back{first}, or plan the study again"
        )


def parse_head(folder: RunFolder) -> FrozenHead:
    """Return the main facts about a run; InputError if the run is missing, damaged or moved."""
    head = read_head(folder.study)
    check_place(folder.root, Path(head.folder))
    return head


def read_head(path: Path) -> FrozenHead:
    """Return the main facts in a study.yaml; InputError if it is missing or damaged."""
    try:
        frozen = read_copy(path)
        study, day = frozen["study"], frozen.get("day")
        planned = datetime.fromisoformat(frozen["created"]).astimezone()
        of_day = date.fromisoformat(day["date"]) if day else planned.date()
        return FrozenHead(frozen["run"], frozen["folder"], of_day, study["name"], study["publish"])
    except DAMAGED:  # another release's file, or a damaged one, which this reports
        from trialfleet.workflows.study.frozen import load_frozen

        found = load_frozen(path)
        study = found.study
        return FrozenHead(found.run, found.folder, found.cost_day, study.name, study.publish)
