"""Ids of runs: by default the local time to the second, with a number added if the id is taken.

An id names a run's folder and the folders of the run's models. Planning claims an id for both uses.
Each claim is a file or folder that only one process can create, so simultaneous plans get different
ids.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import unless_damaged
from trialfleet.workflows.facts.models.folders import LATEST, region_models_folder
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.spec import Study

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_OURS = re.compile(rf"{LATEST}|study\.json|daily\..*")  # a folder with study.json is a run's folder
_CLAIMS = ".planned"  # next to a study's regions: a file for each id that could be chosen again
_CLAIM_SECONDS = 86_400.0  # when summer time ends, the same hour comes twice


def is_run_id(text: str) -> bool:
    """Return whether a text can be a run's id. Names of trialfleet's own files can't."""
    return _RUN_ID.fullmatch(text) is not None and not _OURS.fullmatch(text)


def check_run_id(run: str) -> None:
    """Raise InputError if `run` can't be a run's id."""
    if not is_run_id(run):
        raise InputError(
            f"run id {run!r}: use at most 64 letters, digits, '-', '_', '.' and ':', and begin "
            f"with a letter or digit; {LATEST!r}, 'study.json' and 'daily.…' are reserved"
        )


def new_run_id() -> str:
    """Return an id for a run that starts now: the local time to the second."""
    return datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S")


def default_folder(study: Study, run: str) -> Path:
    """Return the default folder of a run: `runs/STUDY/RUN-ID` in the working directory."""
    return Path.cwd() / "runs" / study.name / run


def published_already(study: Study, run: str) -> Path | None:
    """Return the folder of a model that a run with this id has published, or None."""
    if not study.publishes:
        return None
    places = (
        region_models_folder(study, region_slug(region)) / run for region in study.region_table
    )
    return next((place for place in places if place.exists()), None)


@dataclass(frozen=True)
class Claim:
    """A run's id and folder, which no other plan can take. `made` lists the created paths."""

    run: str
    place: Path
    made: tuple[Path, ...] = ()

    def release(self) -> None:
        """Remove the `made` paths without other content, unless the run's folder was written."""
        if not self.made or RunFolder(self.place).study.exists():
            return
        for path in self.made:
            with suppress(OSError):  # another plan has put something there
                path.rmdir() if path.is_dir() else path.unlink()


def claim_run(study: Study, out: Path | None) -> Claim:
    """Choose an id and a folder for a run, and keep other plans from taking them.

    The id is the name of the run's folder `out` if this name is a valid id, otherwise the time. A
    number is added if the id is taken. If `out` is None, the run's default folder is created.

    InputError if a folder can't be created.
    """
    given = None if out is None else Path(os.path.abspath(out)).name  # noqa: PTH100 - links stay
    first = given if given and is_run_id(given) else new_run_id()
    runs = (first if number == 1 else f"{first}-{number}" for number in itertools.count(1))
    try:
        return next(claim for run in runs if (claim := _claim_run(study, run, out)))
    except OSError as error:
        raise InputError(f"the run's folder {error.filename!r} can't be made: {error}") from error


def _claim_run(study: Study, run: str, out: Path | None) -> Claim | None:
    place = out or default_folder(study, run)
    new = [] if out else _absent_folders(place.parent)
    if published_already(study, run) or (claimed := _claim_models(study, run, place)) is None:
        return None
    if out:
        return Claim(run, place, tuple(claimed))
    with suppress(FileExistsError):
        place.mkdir(parents=True)
        return Claim(run, place, (place, *new, *claimed))
    return None


def _absent_folders(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _claim_models(study: Study, run: str, place: Path, *, again: bool = True) -> list[Path] | None:
    """Claim the id `run` for the run's folder `place`, which may have it already.

    Return the created paths, innermost first, or None if another folder has the id. With `again`,
    try once more if another plan has just deleted the folder of all claims.
    """
    if not study.publishes:
        return []
    claims = Path(study.publish) / study.name / _CLAIMS
    made = _absent_folders(claims)
    whose = os.path.abspath(place)  # noqa: PTH100 - links stay
    try:
        claims.mkdir(parents=True, exist_ok=True)
        _forget(claims.iterdir())
        with (claims / run).open("x", encoding="utf-8") as claim:
            claim.write(whose)
    except FileExistsError:
        before = unless_damaged(lambda: (claims / run).read_text(encoding="utf-8"), None)
        return made if before == whose else None  # None: another plan removed it
    except FileNotFoundError:  # a failed plan has just released its claim
        if not again:
            raise
        return _claim_models(study, run, place, again=False)
    return [claims / run, *made]


def _forget(claims: Iterable[Path]) -> None:
    for claim in claims:
        with suppress(FileNotFoundError):  # another plan was quicker
            if time.time() - claim.stat().st_mtime > _CLAIM_SECONDS:
                claim.unlink()
