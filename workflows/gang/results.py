"""A gang's result: from the package that a rank delivered to its place in the trial's folder."""

from __future__ import annotations

import math
import os
from pathlib import Path

from trialfleet.nodes.gang.packages import RESULT, Package
from trialfleet.workflows.gang.roster import Roster
from trialfleet.workflows.jobs.delivery import take_left
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
    if package := _package(place, ended):
        take_left(place, package, most)


def _package(place: TrialFolder, ended: Roster) -> Path | None:
    """The result of the generation that ended it: the present one, or that before the next."""
    if ended.proc is None:
        return None
    numbers = (ended.generation, ended.generation - 1)
    paths = (place.gang / Package(RESULT, number, ended.proc).name for number in numbers)
    return next((path for path in paths if os.path.lexists(path)), None)
