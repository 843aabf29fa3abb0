"""A trial's reports of its progress: the lines of `progress.jsonl`, whoever wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from trialfleet import job_files
from trialfleet.objective import is_number

_LARGEST_STEP = 2**31 - 1  # what a database's integer holds


def read_reports(path: Path, metric: str) -> dict[int, float]:
    """Return the metric by step; NaN if its value was no number.

    The last report of a step counts, if a trainer that continues from a checkpoint repeats it.
    Other lines are left out: a trainer may write anything.

    Args:
        path: the file; a missing one holds no report.
        metric: the objective's.
    """
    return dict(_reports(_last_lines(path, job_files.MOST_REPORTS), metric))


def last_report(path: Path, metric: str) -> tuple[int, float | None] | None:
    """Return the last reported step, and its metric if that is a number."""
    stamp = job_files.stamp_of(path)
    return _last_report(path, metric, stamp) if stamp[0] else None


@lru_cache(maxsize=1 << 13)  # of all trials that run
def _last_report(
    path: Path, metric: str, _changed: tuple[int, int]
) -> tuple[int, float | None] | None:
    for line in reversed(_last_lines(path, 8192)):
        if (found := _parsed(line)) is not None:
            step, metrics = found
            value = _number(metrics.get(metric))
            return step, value if math.isfinite(value) else None
    return None


def _last_lines(path: Path, most: int) -> list[bytes]:
    """Return the lines within the last bytes of a file, without incomplete ones."""
    return job_files.tail(path, most)[0].splitlines()


def _reports(lines: list[bytes], metric: str) -> Iterator[tuple[int, float]]:
    for line in lines:
        found = _parsed(line)
        if found is not None and metric in found[1]:
            yield found[0], _number(found[1][metric])


def _parsed(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """Return the step and the metrics of a line; None if it is no report."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict):
        return None
    step, metrics = report.get("step"), report.get("metrics", {})
    if not is_number(step) or not isinstance(metrics, dict):
        return None
    if not 0 <= step <= _LARGEST_STEP or step != int(step):
        return None
    return int(step), metrics


def _number(value: Any) -> float:
    """Return `value` as a float; NaN if it is no number: JSON writes NaN and infinity as null."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
