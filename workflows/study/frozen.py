"""The study that a run froze when it was planned: `RUN/study.yaml`."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

from trialfleet.errors import InputError
from trialfleet.files import unless_damaged
from trialfleet.sections import FROM_FILE
from trialfleet.workflows.checksums import read_copy
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.spec import Study

# The frozen study that was read or written last, by its file: a command asks for one run's often.
_known: dict[Path, tuple[tuple[int, ...], FrozenStudy]] = {}


class CostsBefore(BaseModel):
    """What jobs of earlier runs cost, in USD.

    Attributes:
        trial: of a trial, their mean.
        full: of a full training; None where there was none.
    """

    model_config = ConfigDict(frozen=True)

    trial: float
    full: float | None = None


class FrozenStudy(BaseModel):
    """What `RUN/study.yaml` holds.

    Attributes:
        folder: where the run was planned.
        created: when it was planned: of two runs of a region, the later one's model is the newer.
        day: the day that it is of, where the study or whoever planned it names one.
        costs: what its study's jobs cost before; where a budget in USD asks for that.
        notes: what was chosen for the study when it was planned, and why.
        places: where the study's file sets what a person may want to change, `FILE:LINE` by key;
            the file alone where that leaves a key out.
        study: the resolved study.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    folder: str
    created: AwareDatetime
    day: RunsDay | None = None
    costs: CostsBefore | None = None
    notes: tuple[str, ...] = ()
    places: dict[str, str] = {}
    study: Study

    @property
    def of_day(self) -> date:
        """The day that its costs are put to: its own, else that on which it was planned."""
        return self.day.date if self.day else self.created.astimezone().date()

    @property
    def as_of(self) -> datetime:
        """How new its models are: when it was planned, or the end of its day if that was before.

        A run that makes up for a former day is planned after those of later days.
        """
        return min(self.created, self.day.end) if self.day else self.created

    @property
    def study_path(self) -> str | None:
        """The file that the study was read from; None where that isn't known."""
        return next((re.sub(r":\d+$", "", place) for place in self.places.values()), None)

    @property
    def study_file(self) -> str:
        """The same as it is typed; STUDY where it isn't known."""
        return shlex.quote(self.study_path) if self.study_path else "STUDY"

    def again_for(self, region: str | None) -> str:
        """What starts another run of the study and tries a region's trainer; see `run_again`."""
        day = self.day.date if self.day else None
        is_first = region is None or region == next(iter(self.study.region_table))
        return run_again(self.study_file, day, None if is_first else region)


def run_again(study_file: str, day: date | None, region: str | None = None) -> str:
    """Return what starts another run of a study, of the same day, and tries its trainer first."""
    check = "--check" if region is None else f"--check-region {shlex.quote(region)}"
    return f"trialfleet run {study_file} {check}" + (f" --date {day}" if day else "")


class NoRunError(InputError):
    """What is there was never planned; the message says what it is."""


def load_frozen(path: Path) -> FrozenStudy:
    """Read the study that a run froze; once, while its file stays as it is.

    Raises:
        NoRunError: it is a study that was never planned.
        InputError: the file can't be read or was changed into something that is no study.
    """
    stamp = _stamp(path)
    if stamp and (known := _known.get(path)) and known[0] == stamp:
        return known[1]
    if stamp and (copied := _copied(path)):
        remember_frozen(path, copied)
        return copied
    # ruamel.yaml is slow to import, and to parse
    from trialfleet.workflows.study.error_lines import validated
    from trialfleet.workflows.study.text import read_yaml

    tree = read_yaml(path, largest=None)  # absolute paths may have made it large
    if not isinstance(tree, dict):
        what = "it is empty" if tree is None else "it holds no study"
        raise InputError(
            f"{str(path)!r} is damaged: {what}; a copy of the run's folder may have it"
        )
    if "study" not in tree and "search_space" in tree:
        raise NoRunError(f"{path} is a study, and no run of it")
    with suppress(LookupError, AttributeError, TypeError):  # what is no study is told below
        # before there was such a key, each trial was a job
        tree["study"]["budget"].setdefault("trials_per_job", 1)
    frozen = validated(FrozenStudy, path, tree)
    _known.clear()
    _known[path] = stamp, frozen
    return frozen


def _copied(path: Path) -> FrozenStudy | None:
    """The study by its copy in JSON; None where that is none of the file as it is."""
    return unless_damaged(  # the file itself says what is wrong
        lambda: FrozenStudy.model_validate(read_copy(path), context=FROM_FILE), None
    )


def remember_frozen(path: Path, frozen: FrozenStudy) -> None:
    """Note what was just written to `path`, so that this process needn't parse it."""
    _known.clear()
    _known[path] = _stamp(path), frozen


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is written anew, or in place; empty where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def dump_copy(frozen: FrozenStudy, text: str) -> str:
    """Return the text of `RUN/study.json`, the copy of a frozen study whose text is given."""
    plain = frozen.model_dump(mode="json", exclude_none=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "frozen": plain})


def dump_frozen(frozen: FrozenStudy) -> str:
    """Return the text of `RUN/study.yaml`; the same study gives the same text."""
    from ruamel.yaml import YAML

    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.width = 100
    writer.allow_unicode = True
    text = io.StringIO()
    writer.dump(frozen.model_dump(mode="json", exclude_unset=False, exclude_none=True), text)
    return text.getvalue()
