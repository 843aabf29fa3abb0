"""The shapes of the JSON files in a run's folder; `files.read_record` refuses others.

A key that isn't named here may have any value, because other releases may note more.
"""

from __future__ import annotations

from datetime import datetime  # pydantic reads it
from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic wants that one before Python 3.12
)

from typing_extensions import TypedDict

Metrics = dict[str, float]


class Published(TypedDict):
    """published.json."""

    path: str
    not_latest: NotRequired[str | None]
    awaits_approval: NotRequired[str]  # why the gate let it pass
    drift: NotRequired[str | None]


class Inputs(TypedDict):
    """inputs.json: the files that jobs read, and the folders that must not get more files."""

    folders: list[str]
    files: list[dict[str, Any]]


class InputsChanged(TypedDict):
    """changed.json."""

    reason: str
    files: list[str]


class Result(TypedDict):
    """result.json of a full training that has ended."""

    metrics: Metrics


class Failure(TypedDict):
    """The failure of an attempt at a full training, in failures.json."""

    time: str
    node: str
    error: str
    blame: NotRequired[str]


Failures = dict[str, Failure]  # failures.json: by the attempt's number
Reasons = dict[str, str]  # unpaid.json: by the mode


class Stopped(TypedDict):
    """stopped.json."""

    reason: NotRequired[str]
    removed: NotRequired[bool]
    script: NotRequired[str]  # that failed again and again


class StoppedRun(TypedDict):
    """stopped.json of a run: the person who stopped it, and the time."""

    by: str
    time: datetime


class FailingNotes(TypedDict):
    """One script in failing.json; see `failing.FailingScript`."""

    node: str
    script: str
    error: str
    cause: Literal["error", "storage", "space"]
    times: int
    since: datetime


class FailingScripts(TypedDict):
    """failing.json."""

    scripts: list[FailingNotes]


class Ordered(TypedDict):
    """trial.json of a full training: the keys that programs other than the trial read."""

    region: str
    trial: int
