"""The jobs that failed on this machine, found in the history that HTCondor's startd keeps.

When a job leaves the machine, the startd (HTCondor's daemon here) adds a ClassAd to the file that
the setting STARTD_HISTORY names. It adds none for a job that saves a checkpoint (exit code 85) and
restarts here at once. HTCondor 25.14 writes these attributes (- if missing):

what happened                              ExitCode   ExitBySignal  VacateReasonCode
exits by itself                            its code   false         -
dies of a signal (a crash, the kernel's
OOM killer, kill -9 of the job)            -          true          -
never started (no such program here),
or its parent condor_starter was killed    -          false         -
vacated, removed, held, over its time,
its schedd gone                            whatever   whatever      1009 or 1017
the startd drains / is shut down           whatever   whatever      1014 / 1013

A job with VacateReasonCode was ended from outside, so it does not count as failed. JobStatus is
always 4, so it does not show a failure. ExitSignal may come from an earlier attempt of the job,
so it only counts if ExitBySignal is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ATTRIBUTES = (
    *("ClusterId", "ProcId", "CompletionDate"),
    *("ExitCode", "ExitBySignal", "ExitSignal", "VacateReasonCode"),
)
# Exit codes that are not the machine's fault: success, rejected parameters, the access point did
# not answer, a saved checkpoint, a gang without enough slots.
INNOCENT_CODES = (0, 64, 75, 85, 86)
FAILURES, FAILURE_SECONDS = 3, 60.0  # this number of failed jobs within this time: leave the pool


@dataclass(frozen=True)
class Failure:
    """A job that failed on this machine."""

    job: str  # its number in the schedd, such as `12.0`
    at: float  # when it left the machine, UNIX seconds
    how: str  # for people


def failures(ads: Iterable[Mapping[str, Any]]) -> tuple[Failure, ...]:
    """Return the failed jobs among `ads`, ClassAds of a startd's history, the earliest first."""
    found = []
    for ad in ads:
        if how := failure_text(ad):
            job = f"{ad.get('ClusterId', '?')}.{ad.get('ProcId', '?')}"
            found.append(Failure(job, float(ad.get("CompletionDate", 0)), how))
    return tuple(sorted(found, key=lambda one: one.at))


def failure_text(ad: Mapping[str, Any]) -> str | None:
    """Return how the job of this ClassAd failed, or None if it did not fail."""
    if ad.get("VacateReasonCode") is not None:
        return None
    if ad.get("ExitBySignal"):
        return f"killed by signal {ad.get('ExitSignal', '?')}"
    code = ad.get("ExitCode")
    if code is None:
        return "never ran to its end"
    return None if code in INNOCENT_CODES else f"exit code {code}"


def burst(found: tuple[Failure, ...], since: float = 0) -> tuple[Failure, ...] | None:
    """Return the latest FAILURES successive failures within FAILURE_SECONDS, or None.

    `found` has all failures, the earliest first. Only failures after `since` (UNIX seconds) count.
    """
    counted = [one for one in found if one.at > since]
    for end in range(len(counted), FAILURES - 1, -1):
        window = counted[end - FAILURES : end]
        if window[-1].at - window[0].at <= FAILURE_SECONDS:
            return tuple(window)
    return None
