"""A trial's progress reports, which trainers write as lines of `progress.jsonl`."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.files import object_or_empty
from trialfleet.objective import is_number

_LARGEST_STEP = 2**31 - 1  # the largest integer of a database


def read_reports(path: Path, metric: str) -> dict[int, float]:
    """Return the last reported value of `metric` for each step; empty if the file is missing.

    A value that is not a number becomes NaN. Lines that are not reports are ignored.
    """
    return dict(_read_reports(path, metric, untrusted_files.file_stamp(path)))


@lru_cache(maxsize=1 << 5)  # early stopping reads a region's trials again if one has reported
def _read_reports(path: Path, metric: str, _changed: tuple[int, int]) -> dict[int, float]:
    lines = _last_lines(path, untrusted_files.MOST_REPORTS)
    reports = (found for line in lines if (found := _parse_report(line)))
    return {step: _number(metrics[metric]) for step, metrics in reports if metric in metrics}


def last_report(path: Path, metric: str) -> tuple[int, float | None] | None:
    """Return the last reported step and its value of `metric`; None if there are no reports.

    The value is None if it is missing or not finite.
    """
    stamp = untrusted_files.file_stamp(path)
    return _last_report(path, metric, stamp) if stamp[0] else None


@lru_cache(maxsize=1 << 13)  # all running trials
def _last_report(
    path: Path, metric: str, _changed: tuple[int, int]
) -> tuple[int, float | None] | None:
    for line in reversed(_last_lines(path, 8192)):
        if found := _parse_report(line):
            step, metrics = found
            value = _number(metrics.get(metric))
            return step, value if math.isfinite(value) else None
    return None


def _last_lines(path: Path, max_bytes: int) -> list[bytes]:
    return untrusted_files.tail(path, max_bytes)[0].splitlines()


def _parse_report(line: bytes) -> tuple[int, dict[str, Any]] | None:
    report = object_or_empty(lambda: untrusted_files.parse_json(line))
    step, metrics = report.get("step"), report.get("metrics", {})
    if not is_number(step) or not isinstance(metrics, dict):
        return None
    is_step = 0 <= step <= _LARGEST_STEP and step == int(step)
    return (int(step), metrics) if is_step else None


def _number(value: Any) -> float:
    """Return a number as a float, and NaN for anything else, such as JSON's null."""
    try:
        return float(value) if is_number(value) else math.nan
    except OverflowError:
        return math.nan
