"""Where an autoscaler reports on this machine, and what it last did."""

from __future__ import annotations

import glob
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from trialfleet.files import object_or_empty, read_json
from trialfleet.infra.fleet.scaling.lifetimes import Lifetime, parse_lines


def default_report(fleet: str) -> Path:
    """Return where the autoscaler of a fleet reports on this machine."""
    return platformdirs.user_state_path("trialfleet") / "fleet" / f"{fleet}.json"


def kept_ledger(fleet: str, account: str) -> Path:
    """Return where this machine keeps what a fleet of an AWS account had cost when it went down."""
    return default_report(fleet).with_name(f"{fleet}.{account}.ledger.json")


def kept_lifetimes(fleet: str) -> dict[str, Lifetime]:
    """Return the instances of a fleet that went down, in whichever account, as kept here."""
    found: dict[str, Lifetime] = {}
    for file in default_report(fleet).parent.glob(f"{glob.escape(fleet)}.*.ledger.json"):
        found |= lines_in(object_or_empty(partial(read_json, file)).get("instances"))
    return found


def lines_in(value: Any) -> dict[str, Lifetime]:
    """Return the instances in what an autoscaler or `fleet down` wrote; none if it is damaged."""
    try:
        return parse_lines(value or {})
    except ValueError:
        return {}


def read_report(path: Path) -> dict[str, Any] | None:
    """Return what the autoscaler last reported; None if it never did."""
    return object_or_empty(lambda: read_json(path)) or None


def run_report(own: Path, fleet: str, run: str) -> dict[str, Any] | None:
    """Return the last report of the autoscaler that serves a run: the run's own, or of all trials.

    Args:
        own: where an autoscaler that the run started reports.
        fleet: the fleet's name.
        run: the run's id.
    """
    reports = filter(None, map(read_report, (own, default_report(fleet))))
    return next((report for report in reports if report.get("run") in {run, ""}), None)
