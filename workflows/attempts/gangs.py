"""How a training ended: as its agent told, or the keeper of a gang; else as its job did."""

from __future__ import annotations

import math
from contextlib import suppress

from trialfleet import job_files
from trialfleet.workflows.gang.records import read_roster
from trialfleet.workflows.gang.roster import DONE
from trialfleet.workflows.jobs.agent_words import read_ended
from trialfleet.workflows.jobs.delivery import take_left
from trialfleet.workflows.jobs.job_log import first_failure
from trialfleet.workflows.plan.folder import TrialFolder


def settled(place: TrialFolder, return_code: int, most: float = math.inf) -> int:
    """Return the code by which an attempt is judged, with what it left in its place.

    What DAGMan tells of a gang is that of one of its jobs, perhaps of one that was removed at the
    end because it still waited for a slot. The output and the last words of the rank that decided
    get the names that those of a single job have.

    Args:
        place: the trial's folder.
        return_code: what DAGMan told; of a job that goes on, what its agent told.
        most: bytes that what it left may have together.

    Raises:
        OSError: there is no room, say.
    """
    if not job_files.is_folder(place.gang):
        take_left(place, place.left, most)
        ended = read_ended(place)
        return ended.code if ended else return_code
    roster = read_roster(place)
    if roster is None or roster.state != DONE or roster.code is None:
        code, proc = first_failure(place.log) or (return_code, 0)
    else:
        code, proc = roster.code, roster.proc or 0
    for stream in (place.out, place.err):
        own = place.of_proc(stream, proc)
        with suppress(OSError):
            job_files.remove(stream)
            job_files.share(own, stream)
    return code
