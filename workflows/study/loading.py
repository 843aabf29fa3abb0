"""Functions that read a study file: the whole study, the study on one day, or just its fleet.

All of them raise InputError if the file can't be read, and StudyError if it is not YAML or not a
valid study. The message of a StudyError has one line per problem.

The normal form of a study lists its regions by name, and has only absolute paths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from trialfleet.errors import StudyError
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.workflows.study.checks import Accelerator, StudyName
from trialfleet.workflows.study.daily import DATE
from trialfleet.workflows.study.error_lines import problems_with_lines, read_table, validate
from trialfleet.workflows.study.paths import AbsentError, Problem
from trialfleet.workflows.study.regions import Regions, list_gangs
from trialfleet.workflows.study.resolution import (
    resolve_publishing,
    resolve_usable,
    studys_fleet,
)
from trialfleet.workflows.study.sections import Resources
from trialfleet.workflows.study.spec import Study, trials_per_gpu

if TYPE_CHECKING:
    from trialfleet.infra.fleet.scaling.suitable_types import GangNeed


@dataclass(frozen=True)
class DaysStudy:
    """A study on one day."""

    whole: Study  # still with `{date}`
    study: Study | None  # the day's normal form of the regions with usable data, if there are any
    unusable: Mapping[str, str]  # the other regions, and why

    @property
    def usable(self) -> Collection[str]:
        """The names of the regions with usable data."""
        return self.study.region_table if self.study else ()


def load_day(path: Path, day: date) -> DaysStudy:
    """Read a study file for one day. The result lists regions without data in `unusable`.

    One region's missing or unusable data must not stop the other regions.
    """
    tree = read_table(path)
    with problems_with_lines(path, tree):
        whole = validate(Study, path, tree)
        dated, _ = whole.fill_date(day)
        return DaysStudy(whole, *resolve_usable(dated, path.absolute().parent))


def load_whole(path: Path) -> Study:
    """Read and validate a study file. Its data and other files needn't exist."""
    return validate(Study, path, read_table(path))


def load_published(path: Path) -> Study:
    """Read a study file for commands that need the study's published models, but not its data.

    StudyError if a file with S3 keys, or a destination of models, can't be used.
    """
    tree = read_table(path)
    with problems_with_lines(path, tree):
        study = validate(Study, path, tree)
        return study.model_copy(update=resolve_publishing(study, path.absolute().parent))


def load_study(
    study: str | PathLike[str] | Mapping[str, Any],
    day: date | None = None,
    folder: str | PathLike[str] = ".",
) -> Study:
    """Return a study with absolute paths, read from a file or given as a dict.

    Args:
        study: the study's file, or its content as a dict.
        day: the date for `{date}` in the study's data; default: today in the study's zone.
        folder: the base of relative paths if `study` is a dict. Paths in a file are relative to the
            file's folder.

    Raises:
        StudyError: the study is invalid, or names files that can't be used. The message has one
            line per problem.
        InputError: the file can't be read.
    """
    if not isinstance(study, Mapping):
        return load_dated(study, day)[0]
    here = Path("study")  # the name in error messages
    with problems_with_lines(here, study):
        return _resolve(validate(Study, here, study), day, Path(folder).absolute())[0]


def load_dated(path: str | PathLike[str], day: date | None = None) -> tuple[Study, date | None]:
    """Return the normal form of a study file, and the day for which it was read.

    `day` replaces `{date}` in the study's data. The default is today in the study's time zone. If
    no data contains `{date}`, `day` is returned unchanged. StudyError if a named file can't be
    used.
    """
    file = Path(path)
    tree = read_table(file)
    with problems_with_lines(file, tree):
        return _resolve(validate(Study, file, tree), day, file.absolute().parent)


def _resolve(study: Study, day: date | None, folder: Path) -> tuple[Study, date | None]:
    dated, of = study.fill_date(day)
    try:
        return dated.resolve(folder), of
    except AbsentError as error:
        if not study.is_dated:
            raise
        zone = f" in {study.daily.zone}" if study.daily and study.daily.zone else ""
        why = "as requested" if day else f"today{zone}; for another day: --date"
        note = f"; {DATE} is {of}, {why}"
        problems = [
            Problem(keys, text + (note if str(of) in text else "")) for keys, text in error.problems
        ]
        raise AbsentError(*problems, path=error.path) from error


class StudyWithFleet(BaseModel):
    """The part of a study file that `trialfleet fleet` reads."""

    model_config = ConfigDict(extra="ignore")
    name: StudyName
    fleet: Fleet
    resources: Resources = Resources()
    accelerator: Accelerator = "auto"
    regions: Regions | None = None


def load_fleet(path: Path) -> Fleet:
    """Return the fleet of a study file, or of a file that holds only a fleet with a name."""
    tree = read_table(path, "study or fleet")
    if "fleet" in tree:
        study = validate(StudyWithFleet, path, tree)
        shares = trials_per_gpu(study.accelerator, study.resources, study.fleet)
        gangs = bool(list_gangs(study.resources, study.regions))
        with problems_with_lines(path, tree):
            return studys_fleet(study.fleet, study.name, shares, gangs=gangs)
    if "search_space" in tree:
        raise StudyError(
            f"{path}: the study has no `fleet:` table; add one, beginning with `aws_regions`"
        )
    fleet = validate(Fleet, path, tree)
    if fleet.name is None:
        raise StudyError(f"{path}: a fleet in a separate file needs a name; add `name:`")
    return fleet


def load_gang_needs(path: Path) -> list[GangNeed]:
    """Return the sizes of a study's gangs, and what each of their slots needs.

    Equal needs are returned once. Return [] if the file has no key `fleet`.
    """
    from trialfleet.infra.fleet.scaling.suitable_types import GangNeed
    from trialfleet.infra.pool import machines

    tree = read_table(path, "study or fleet")
    if "fleet" not in tree:
        return []
    study = validate(StudyWithFleet, path, tree)
    has_gpus = trials_per_gpu(study.accelerator, study.resources, study.fleet) is not None
    need = machines.Resources(
        gpus=study.resources.whole_gpus if has_gpus else 0,
        cpus=study.resources.cpus,
        memory_mb=round(study.resources.memory_bytes / (1 << 20)),
    )
    found = [
        GangNeed(min=gang.min, max=gang.max, need=need)
        for gang in list_gangs(study.resources, study.regions)
    ]
    return list(dict.fromkeys(found))
