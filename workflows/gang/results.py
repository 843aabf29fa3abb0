"""A gang's result: from the package that a rank delivered to its place in the trial's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from trialfleet.files import sync, write_json
from trialfleet.nodes.gang.packages import (
    IN_RESULT,
    MODEL,
    RESULT,
    DamagedPackageError,
    Package,
    unpack,
)
from trialfleet.workflows.gang.roster import Roster
from trialfleet.workflows.plan.folder import TrialFolder


def take_result(place: TrialFolder, ended: Roster) -> None:
    """Put the result of a gang that is over to its trial; done again, it changes nothing.

    A package that can't be used becomes a result that says so.

    Raises:
        OSError: there is no room, say.
    """
    if (package := _package(place, ended)) is None:
        return
    beside = place.gang / "unpacked"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        unpack(package, beside)
    except DamagedPackageError as error:
        write_json(
            place.result, {"status": "failed", "error": f"its result can't be used: {error}"}
        )
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
    return next((path for path in paths if path.exists()), None)


def _put(beside: Path, place: TrialFolder) -> None:
    for path in (path for path in beside.rglob("*") if not path.is_symlink()):
        sync(path)
    # A full training's folder for the model is empty until then, and a rename takes its place.
    if (beside / MODEL).is_dir() and place.model.is_dir() and not any(place.model.iterdir()):
        (beside / MODEL).replace(place.model)
    for name in IN_RESULT:
        if (beside / name).is_file():
            (beside / name).replace(place.root / name)
    sync(place.root)
