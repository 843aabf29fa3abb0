"""The logs of HTCondor's daemons and of a run's own programs, for the report of a failed test."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

LINES = 40  # the last ones of each log
LOGS = (
    "*/log/*Log",  # a pool's daemons
    "*/log/StarterLog.*",  # its slots
    "*/log/start.out",
    "**/*.dag.dagman.out",  # a run's graphs
    "**/scripts.log",
    "**/service.log",
)


def attach_logs(report: pytest.TestReport, folder: Path) -> None:
    """Add the end of each log below `folder` to a test's report, as a section of its own."""
    for log in sorted({log for pattern in LOGS for log in folder.glob(pattern)}):
        report.sections.append((f"end of {log}", end_of(log) or "(empty)"))


def end_of(log: Path) -> str:
    """Return a log's last lines; the reason where it can't be read."""
    try:
        with log.open(errors="replace") as lines:
            return "".join(deque(lines, LINES))
    except OSError as error:
        return str(error)
