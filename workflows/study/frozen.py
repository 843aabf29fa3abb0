"""The study as it was when a run was planned, stored in the run's folder: `RUN/study.yaml`."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

from trialfleet.errors import InputError
from trialfleet.files import unless_damaged
from trialfleet.sections import FROM_PLAN
from trialfleet.workflows.checksums import read_copy
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.spec import Study

# The frozen study that was read or written last, by its file: a command often reads it again.
_known: dict[Path, tuple[tuple[int, ...], FrozenStudy]] = {}


class CostsBefore(BaseModel):
    """Mean costs in USD of a trial and of a full training (None: unknown) in previous runs."""

    model_config = ConfigDict(frozen=True)

    trial: float
    full: float | None = None


class FrozenStudy(BaseModel):
    """The content of `RUN/study.yaml`: a study with absolute paths, and facts about its run."""

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


class NoRunError(InputError):
    """The file is a study written by a user, not the `study.yaml` in a run's folder."""


def load_frozen(path: Path) -> FrozenStudy:
    """Return the content of `RUN/study.yaml`; the last file read is cached until it changes.

    Raises:
        NoRunError: `path` is a user's study file.
        InputError: the file can't be read, or is damaged.
    """
    stamp = _stamp(path)
    if stamp and (known := _known.get(path)) and known[0] == stamp:
        return known[1]
    if stamp and (copied := _read_json_copy(path)):
        remember_frozen(path, copied)
        return copied
    # imported here, because ruamel.yaml is slow to import and to parse
    from trialfleet.workflows.study.error_lines import validate
    from trialfleet.workflows.study.text import read_yaml

    tree = read_yaml(path, largest=None)  # absolute paths may make it large
    if not isinstance(tree, dict):
        what = "it is empty" if tree is None else "it does not contain a study"
        raise InputError(
            f"{str(path)!r} is damaged: {what}; restore it from a copy of the run's folder"
        )
    if "study" not in tree and "search_space" in tree:
        raise NoRunError(f"{path} is a study, not a run")
    frozen = validate(FrozenStudy, path, tree, FROM_PLAN)
    _known.clear()
    _known[path] = stamp, frozen
    return frozen


def _read_json_copy(path: Path) -> FrozenStudy | None:
    return unless_damaged(  # if the copy is damaged, the caller reads study.yaml itself
        lambda: FrozenStudy.model_validate(read_copy(path), context=FROM_PLAN), None
    )


def remember_frozen(path: Path, frozen: FrozenStudy) -> None:
    """Cache `frozen`, just written to `path`, so that `load_frozen` needn't parse the file."""
    _known.clear()
    _known[path] = _stamp(path), frozen


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def dump_copy(frozen: FrozenStudy, text: str) -> str:
    """Return the text of `RUN/study.json`: `frozen` as JSON, and a checksum of the YAML `text`."""
    plain = frozen.model_dump(mode="json", exclude_none=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "frozen": plain})


def dump_frozen(frozen: FrozenStudy) -> str:
    """Return the text of `RUN/study.yaml`. The same study always gives the same text."""
    from ruamel.yaml import YAML

    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.width = 100
    writer.allow_unicode = True
    text = io.StringIO()
    writer.dump(frozen.model_dump(mode="json", exclude_unset=False, exclude_none=True), text)
    return text.getvalue()
