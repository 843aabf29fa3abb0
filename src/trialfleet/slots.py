"""Which of a machine's slots are claimed for a job, or soon will be; a machine with none is idle.

Such a slot is called held here; this has nothing to do with jobs on hold. Two kinds of slots have a
job's id but run nothing. The jobs of a partitionable slot run in dynamic slots. A data slot holds
files that jobs share, and is claimed with the id of the first of these jobs. HTCondor releases a
data slot 5 minutes (KEEP_DATA_CLAIM_IDLE) after the last job, or when the machine drains. A data
slot never counts as held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HELD = ("Claimed", "Preempting", "Matched")  # states of a slot that a job has, or will have soon
ATTRIBUTES = ("State", "SlotType", "JobId", "IsDataSlot")  # of a slot's ad
# `not is_held` as HTCondor evaluates it: true of each slot of an idle machine.
_UNHELD = " && ".join(f'State =!= "{state}"' for state in HELD)
# Where the startd evaluates it, an ad lacks IsDataSlot; HTCondor names such slots `data1_2`.
IS_FREE = f'regexp("^data", Name) =?= true || ({_UNHELD})'


def is_held(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot is claimed for a job, or kept for the next one after a job ended."""
    return ad.get("State") in HELD and not is_data_slot(ad)


def is_data_slot(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot holds files that jobs share, and runs no job."""
    return ad.get("IsDataSlot") is True


def runs_job(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot runs a job now."""
    return "JobId" in ad and not is_data_slot(ad) and ad.get("SlotType") != "Partitionable"
