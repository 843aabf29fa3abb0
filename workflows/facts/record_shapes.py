"""The keys and types in the JSON files of a run's folder, which `files.read_record` checks.

Other keys may have any value, because other releases may write more keys.
"""

from __future__ import annotations

from datetime import datetime  # pydantic reads it
from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class Published(TypedDict):
    """published.json: where a region's model was published."""

    path: str
    not_latest: NotRequired[str | None]
    awaits_approval: NotRequired[str]  # why the model passed the gate
    drift: NotRequired[str | None]


class Inputs(TypedDict):
    """inputs.json: the files that jobs read, and the folders where new files count as changes."""

    folders: list[str]
    files: list[dict[str, Any]]


class InputsChanged(TypedDict):
    """changed.json: the input files that changed after the run was submitted."""

    reason: str
    files: list[str]


class Failure(TypedDict):
    """A failed attempt at a full training or a gate, in failures.json."""

    time: str
    node: str
    error: str
    blame: NotRequired[str]


Failures = dict[str, Failure]  # failures.json: failures by the attempt's number
Reasons = dict[str, str]  # out-of-money.json: reasons by the mode, tune or final


class Stopped(TypedDict):
    """stopped.json of a region: why the region ended early."""

    reason: NotRequired[str]
    removed: NotRequired[bool]
    script: NotRequired[str]  # the script that failed repeatedly


class StoppedRun(TypedDict):
    """stopped.json of a run: who stopped the run, and when."""

    by: str
    time: datetime


class FullTrainingRecord(TypedDict):
    """trial.json of a full training: those keys that programs other than the trainer read."""

    region: str
    trial: int
