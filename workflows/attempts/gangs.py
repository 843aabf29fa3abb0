"""How a gang ended: its node has many jobs, and the keeper's last word on them counts."""

from __future__ import annotations

from contextlib import suppress

from trialfleet import job_files
from trialfleet.workflows.gang.records import read_roster
from trialfleet.workflows.gang.roster import DONE
from trialfleet.workflows.jobs.job_log import first_failure
from trialfleet.workflows.plan.folder import TrialFolder


def settled(place: TrialFolder, return_code: int) -> int:
    """Return the code by which a node's attempt is judged: of a gang, how its training ended.

    What DAGMan tells of a gang is that of one of its jobs, perhaps of one that was removed at the
    end because it still waited for a slot. The output and the last words of the rank that decided
    get the names that those of a single job have.

    Args:
        place: the trial's folder.
        return_code: what DAGMan told.
    """
    if not job_files.is_folder(place.gang):
        return return_code
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
