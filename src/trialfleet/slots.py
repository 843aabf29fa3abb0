"""The use of a machine's slots; a machine is idle while none of its slots is held.

Two kinds of slots have a job's id but run nothing. Partitionable slots run their jobs in dynamic
slots. Data slots hold files that jobs share, and are claimed with the id of the first of these
jobs. HTCondor releases a data slot 5 minutes (KEEP_DATA_CLAIM_IDLE) after the last job, or when the
machine drains. Until then the machine still counts as idle.
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
    """Return whether the slot is claimed for a job, or for the next job after a job has ended."""
    return ad.get("State") in HELD and not is_data_slot(ad)


def is_data_slot(ad: Mapping[str, Any]) -> bool:
    """Return whether the slot holds files that jobs share."""
    return ad.get("IsDataSlot") is True


def runs_job(ad: Mapping[str, Any]) -> bool:
    """Return whether a slot runs a job now."""
    return "JobId" in ad and not is_data_slot(ad) and ad.get("SlotType") != "Partitionable"
