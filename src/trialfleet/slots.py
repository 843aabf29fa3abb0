"""Rules for a machine's slots: which ones run a job, and which ones are claimed for a job.

`is_held` means that a slot is claimed or will be soon, not that a job is on hold. A claimed slot
may be between two jobs. A machine without held slots is idle. Two kinds of slots have a job's id
but run no job: partitionable slots, whose jobs run in dynamic slots, and data slots, which hold
files that jobs share and never count as held. HTCondor releases a data slot 5 minutes
(KEEP_DATA_CLAIM_IDLE) after the last of these jobs, or when the machine drains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HELD = ("Claimed", "Preempting", "Matched")  # states of a slot that a job has, or will have soon
ATTRIBUTES = ("State", "SlotType", "JobId", "IsDataSlot")  # of a slot's ad
# `not is_held` as a ClassAd expression, except for data slots.
_UNHELD = " && ".join(f'State =!= "{state}"' for state in HELD)
# The startd evaluates this, but there ads lack IsDataSlot. HTCondor names data slots `data1_2`.
IS_FREE = f'regexp("^data", Name) =?= true || ({_UNHELD})'


def is_held(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot is claimed or will be soon. It may be between two jobs."""
    return ad.get("State") in HELD and not is_data_slot(ad)


def is_data_slot(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot holds files that jobs share, and runs no job."""
    return ad.get("IsDataSlot") is True


def runs_job(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot runs a job now."""
    return "JobId" in ad and not is_data_slot(ad) and ad.get("SlotType") != "Partitionable"
