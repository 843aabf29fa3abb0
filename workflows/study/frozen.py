"""The study as it was when a run was planned, stored in the run's folder: `RUN/study.json`."""

from __future__ import annotations

import re
import shlex
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.files import first_error, json_text, read_record
from trialfleet.sections import FROM_PLAN
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.spec import Study


class CostsBefore(BaseModel):
    """Mean costs in USD of a trial and of a full training (None: unknown) in previous runs."""

    model_config = ConfigDict(frozen=True)

    trial: float
    full: float | None = None


class FrozenStudy(BaseModel):
    """The content of `RUN/study.json`: a study with absolute paths, and facts about its run."""

    model_config = ConfigDict(frozen=True)

    run: str
    folder: str  # in which the run was planned
    created: AwareDatetime  # when the run was planned
    day: RunsDay | None = None  # that the run is for, if the study or the user sets one
    costs: CostsBefore | None = None  # if they are known, and the study has a budget in USD
    notes: tuple[str, ...] = ()  # what planning chose for open settings, with reasons
    # FILE:LINE for each key that a person may want to change, or only FILE if the file omits it
    places: dict[str, str] = {}
    study: Study

    @property
    def cost_day(self) -> date:
        """The day to which the run's costs belong: the run's `day`, else the day of planning."""
        return self.day.date if self.day else self.created.astimezone().date()

    @property
    def as_of(self) -> datetime:
        """The time by which models are ordered: the earlier of planning time and the day's end.

        A missed day may run after later days. Its models still count as older than the models of
        those days.
        """
        return min(self.created, self.day.end) if self.day else self.created

    @property
    def study_path(self) -> str | None:
        """The study file from which the run was planned; None if unknown."""
        return next((re.sub(r":\d+$", "", place) for place in self.places.values()), None)

    @property
    def study_file(self) -> str:
        """The study's file, quoted for a shell; the placeholder STUDY if it is unknown."""
        return shlex.quote(self.study_path) if self.study_path else "STUDY"

    def rerun_command(self, region: str | None) -> str:
        """Return the command for a new run that first checks the trainer on `region`.

        If `region` is None, the trainer is checked on the study's first region.
        """
        is_first = region is None or region == next(iter(self.study.region_table))
        check = "--check" if is_first else f"--check-region {shlex.quote(str(region))}"
        day = f" --date {self.day.date}" if self.day else ""
        return f"trialfleet run {self.study_file} {check}{day}"


def load_frozen(path: Path) -> FrozenStudy:
    """Return the content of `RUN/study.json`; InputError if it can't be read, or is damaged."""
    return _read(path, untrusted_files.file_stamp(path))


@lru_cache(maxsize=1)  # a command often reads the same file again
def _read(path: Path, _changed: tuple[int, int]) -> FrozenStudy:
    found = read_record(path)
    try:
        return FrozenStudy.model_validate(found, context=FROM_PLAN)
    except ValidationError as error:
        fault = first_error(error)
    # outside of the except clause, so that pydantic's text, perhaps with a password, is not shown
    raise InputError(f"{str(path)!r} is damaged: {fault}")


def dump_frozen(frozen: FrozenStudy) -> str:
    """Return the text of `RUN/study.json`. The same study always gives the same text."""
    return json_text(frozen.model_dump(mode="json", exclude_none=True))
