"""Retries of calls that AWS refuses until an earlier change is known everywhere.

botocore's own retries are for transient failures; AWS's refusals are correct as long as a part of
AWS doesn't know the earlier change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from botocore.exceptions import ClientError

from trialfleet.infra.fleet.aws.clients import code_of, or_none

T = TypeVar("T")
SOON = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)  # seconds between tries; new resources show up in time
LATER = (2.0, 4.0, 8.0, *[15.0] * 8)  # two minutes; for waits until other resources are gone


def sleep(seconds: float) -> None:
    """Wait; all waits of the fleet's calls use this function."""
    time.sleep(seconds)


def on(*codes: str) -> Callable[[ClientError], bool]:
    """Return a function that tells whether an error has one of these codes."""
    return lambda error: code_of(error) in codes


def patiently(
    call: Callable[[], T],
    again: Callable[[ClientError], bool],
    pauses: Sequence[float] = SOON,
) -> T:
    """Call until AWS no longer refuses for a temporary reason.

    The call must be safe to repeat.

    Raises:
        ClientError: a refusal for which `again` is false, or the last one after all pauses.
    """
    for pause in pauses:
        try:
            return call()
        except ClientError as error:
            if not again(error):
                raise
            sleep(pause)
    return call()


def delete(call: Callable[[], object], *, in_use: str, gone: str) -> None:
    """Delete a resource, and wait while AWS's error code says that it is in use."""
    or_none(lambda: patiently(call, on(in_use), LATER), gone)


def until(holds: Callable[[], bool], pauses: Sequence[float] = SOON) -> bool:
    """Wait until a condition holds; return whether it does."""
    for pause in pauses:
        if holds():
            return True
        sleep(pause)
    return holds()
