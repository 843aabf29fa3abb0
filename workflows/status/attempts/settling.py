"""How a training ended: as its agent told, or the keeper of a gang; else as its job did."""

from __future__ import annotations

import math

from trialfleet.workflows.facts.jobs.agent_messages import read_ended
from trialfleet.workflows.facts.jobs.delivery import take_left
from trialfleet.workflows.facts.jobs.job_log import first_failure
from trialfleet.workflows.facts.run_folder.folder import TrialFolder


def settled(place: TrialFolder, return_code: int, most: float = math.inf) -> int:
    """Return the code by which an attempt is judged, with what it left in its place.

    Its job ended with `return_code`, as DAGMan told it; of one that goes on, as its agent did. What
    it left may have `most` bytes.

    Raises:
        OSError: there is no room, say.
    """
    take_left(place, place.left, most)
    if ended := read_ended(place):
        return ended.code
    # Of a gang DAGMan may tell the end of a job that was removed because others had failed.
    return first_failure(place.log) or return_code
