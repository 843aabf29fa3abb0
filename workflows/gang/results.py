"""A gang's result: from the package that a rank delivered to its place in the trial's folder."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

from trialfleet import job_files
from trialfleet.files import sync
from trialfleet.nodes.gang.packages import IN_RESULT, MODEL, RESULT, Package, unpack_from
from trialfleet.optimizer.client import FULL
from trialfleet.workflows.gang.roster import Roster
from trialfleet.workflows.plan.folder import TrialFolder


def take_result(place: TrialFolder, ended: Roster, most: float = math.inf) -> None:
    """Put the result of a gang that is over to its trial; done again, it changes nothing.

    A package that can't be used becomes a result that says so.

    Args:
        place: the trial's folder.
        ended: the gang's last roster.
        most: bytes that the files of a result may have together.

    Raises:
        OSError: there is no room, say.
    """
    if (package := _package(place, ended)) is None:
        return
    beside = place.root / ".unpacked"  # no job's folder: nobody changes it meanwhile
    job_files.make_empty(beside)
    try:
        with job_files.opened(package, place.root) as file:
            unpack_from(file, beside, most)
    except OSError as error:
        if error.errno in FULL:
            raise
        words = f"its result can't be used: {package.name}: {error}"
        job_files.write_json(place.result, {"status": "failed", "error": words})
    else:
        _put(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _package(place: TrialFolder, ended: Roster) -> Path | None:
    """The result of the generation that ended it: the present one, or that before the next."""
    if ended.proc is None:
        return None
    numbers = (ended.generation, ended.generation - 1)
    paths = (place.gang / Package(RESULT, number, ended.proc).name for number in numbers)
    return next((path for path in paths if os.path.lexists(path)), None)


def _put(beside: Path, place: TrialFolder) -> None:
    for path in beside.rglob("*"):
        sync(path)
    # A full training's folder for the model is empty until then, and a rename takes its place.
    is_free = job_files.is_folder(place.model) and not job_files.has_files(place.model)
    if is_free and (beside / MODEL).is_dir():
        (beside / MODEL).replace(place.model)
    for name in IN_RESULT:
        if (beside / name).is_file():
            if job_files.is_folder(place.root / name):
                job_files.remove(place.root / name)
            (beside / name).replace(place.root / name)
    sync(place.root)
