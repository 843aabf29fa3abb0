"""A pytest plugin that saves the results of GPU tests after each test, so a hung test is named.

TRIALFLEET_GPU_TESTS names the file. In a dry run torch reports a GPU while the tests
are only listed: all that they import and are made of is there then.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

PART = "TRIALFLEET_GPU_TESTS"


class Recorder:
    """Counts, and writes what it counted."""

    def __init__(self, part: Path) -> None:
        self.part, self.began = part, time.monotonic()
        self.record: dict[str, Any] = {
            "collected": 0,
            "passed": 0,
            "failed": [],
            "skipped": {},
            "running": None,
            "seconds": 0.0,
        }

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what can't be imported, and modules that skip themselves."""
        self.take(report)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep how many there are."""
        self.record["collected"] = len(session.items)
        self.write()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Keep which one runs."""
        self.record["running"] = nodeid
        self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how it went."""
        self.take(report)
        if report.when == "call" and report.passed:
            self.record["passed"] += 1

    def pytest_sessionfinish(self) -> None:
        """Nothing runs any more."""
        self.record["running"] = None
        self.write()

    def take(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Take a failure or a reason to skip."""
        if report.failed:
            causes = [line[2:] for line in report.longreprtext.splitlines() if line[:2] == "E "]
            cause = " ".join(causes[:3]).strip() or report.longreprtext[-300:]
            self.record["failed"].append({"test": report.nodeid, "cause": cause[:500]})
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            counts = self.record["skipped"]
            counts[reason] = counts.get(reason, 0) + 1

    def write(self) -> None:
        """Put it in the file's place."""
        self.record["seconds"] = round(time.monotonic() - self.began, 1)
        beside = self.part.with_suffix(".new")
        beside.write_text(json.dumps(self.record, indent=1), encoding="utf-8")
        beside.replace(self.part)


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    config.pluginmanager.register(Recorder(Path(os.environ[PART])))
    if os.environ.get("TRIALFLEET_GPU_DRY"):
        assert config.getoption("collectonly"), "without a GPU tests of one can't run"
        torch.cuda.is_available = lambda: True
