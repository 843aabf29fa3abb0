"""The end of a training, as the job's agent reported it, or else as HTCondor did."""

from __future__ import annotations

import math

from trialfleet.workflows.facts.jobs.agent_messages import read_ended
from trialfleet.workflows.facts.jobs.job_log import first_failure
from trialfleet.workflows.facts.jobs.unpacking import take_left
from trialfleet.workflows.facts.run_folder.folder import TrialFolder


def settle_attempt(place: TrialFolder, return_code: int, max_bytes: float = math.inf) -> int:
    """Return an attempt's return code, and move its files into the trial's folder.

    `return_code`, from DAGMan or the agent, is returned if no record of the end is found. If the
    files are damaged or have more than `max_bytes`, a failed result with the reason replaces them.
    Raises OSError, for example if the disk is full.
    """
    take_left(place, place.left, max_bytes)
    if ended := read_ended(place):
        return ended.code
    # For a gang, DAGMan may report a job that was removed because another had failed.
    return first_failure(place.log) or return_code
