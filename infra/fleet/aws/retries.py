"""Patience with AWS, which takes a while to know everywhere what it was just asked to do.

botocore's own retries are for calls that fail in passing; these refusals are right by what AWS
knows so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from botocore.exceptions import ClientError

from trialfleet.infra.fleet.aws.clients import code_of, or_none

T = TypeVar("T")
SOON = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)  # seconds between looks; things made show up within
LATER = (2.0, 4.0, 8.0, *[15.0] * 8)  # two minutes; what depends on other things being gone


def sleep(seconds: float) -> None:
    """Wait; the one place of the fleet's calls that does."""
    time.sleep(seconds)


def on(*codes: str) -> Callable[[ClientError], bool]:
    """Return what tells whether a refusal is one of these."""
    return lambda error: code_of(error) in codes


def patiently(
    call: Callable[[], T],
    again: Callable[[ClientError], bool],
    pauses: Sequence[float] = SOON,
) -> T:
    """Call until it isn't refused for a reason that time mends.

    Done again, the call must do no harm.

    Raises:
        ClientError: a refusal that isn't worth doing it `again`, or one that is, to the end.
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
    """Delete something once what uses it is gone; AWS has a code for either state."""
    or_none(lambda: patiently(call, on(in_use), LATER), gone)


def until(holds: Callable[[], bool], pauses: Sequence[float] = SOON) -> bool:
    """Wait until something holds; return whether it does."""
    for pause in pauses:
        if holds():
            return True
        sleep(pause)
    return holds()
