"""Where an autoscaler reports on this machine, and what it last did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import platformdirs

from trialfleet.files import read_json, unless_damaged


def default_report(fleet: str) -> Path:
    """Return where the autoscaler of a fleet reports on this machine."""
    return platformdirs.user_state_path("trialfleet") / "fleet" / f"{fleet}.json"


def read_report(path: Path) -> dict[str, Any] | None:
    """Return what the autoscaler last reported; None if it never did."""
    report: dict[str, Any] | None = unless_damaged(lambda: read_json(path), None)
    return report


def run_report(own: Path, fleet: str, run: str) -> dict[str, Any] | None:
    """Return the last report of the autoscaler that serves a run: the run's own, or of all trials.

    Args:
        own: where an autoscaler that the run started reports.
        fleet: the fleet's name.
        run: the run's id.
    """
    reports = filter(None, map(read_report, (own, default_report(fleet))))
    return next((report for report in reports if report.get("run") in {run, ""}), None)
