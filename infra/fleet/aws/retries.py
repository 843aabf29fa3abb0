"""Retries of calls that AWS refuses until all of its servers know a recent change.

botocore itself only retries after network errors, server errors and throttling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from botocore.exceptions import ClientError

from trialfleet.infra.fleet.aws.clients import error_code, or_none

T = TypeVar("T")
SOON = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)  # seconds between tries, until AWS knows a new resource
LATER = (2.0, 4.0, 8.0, *[15.0] * 8)  # two minutes; for waits until other resources are gone


def sleep(seconds: float) -> None:
    """Sleep. All waits between the fleet's calls to AWS use this function."""
    time.sleep(seconds)


def retry(call: Callable[[], T], code: str, pauses: Sequence[float] = SOON) -> T:
    """Return the result of `call`, which is repeated while AWS refuses with the error `code`.

    `call` must be safe to repeat. `pauses` has the seconds to wait before each repetition.
    ClientError if AWS refuses the last repetition, or gives another error code.
    """
    for pause in pauses:
        try:
            return call()
        except ClientError as error:
            if error_code(error) != code:
                raise
            sleep(pause)
    return call()


def delete(call: Callable[[], object], *, in_use: str, gone: str) -> None:
    """Delete a resource by `call`.

    The call is repeated for two minutes while AWS's error code is `in_use`. The error code `gone`
    counts as success. ClientError if AWS refuses for another reason or for longer.
    """
    or_none(lambda: retry(call, in_use, LATER), gone)


def wait_for(condition: Callable[[], bool], pauses: Sequence[float] = SOON) -> bool:
    """Wait until `condition()` is true. Return False if it is still false after the last pause.

    `pauses` has the seconds between two checks.
    """
    for pause in pauses:
        if condition():
            return True
        sleep(pause)
    return condition()
