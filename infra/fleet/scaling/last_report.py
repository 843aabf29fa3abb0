"""Files on this machine: an autoscaler's last report, and the costs that `fleet down` kept."""

from __future__ import annotations

import glob
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from trialfleet.files import object_or_empty, read_json, write_json
from trialfleet.infra.fleet.scaling.instance_costs import Lifetime, parse_lines


def default_report(fleet: str) -> Path:
    """Return the file to which a fleet's autoscaler writes its reports on this machine."""
    return platformdirs.user_state_path("trialfleet") / "fleet" / f"{fleet}.json"


def note_current_report(fleet: str, report: Path) -> None:
    """Record that the fleet's present autoscaler on this machine reports to the file `report`."""
    write_json(_current(fleet), {"report": str(report.absolute())})


def current_report(fleet: str, run: str = "") -> dict[str, Any] | None:
    """Return the last report of the fleet's last autoscaler on this machine, or None.

    With `run`, a report about another run is ignored.
    """
    noted = object_or_empty(partial(read_json, _current(fleet))).get("report")
    report = read_report(Path(str(noted)) if noted else default_report(fleet))
    return report if report and (not run or report.get("run") in {run, ""}) else None


def _current(fleet: str) -> Path:
    return default_report(fleet).with_suffix(".current")


def kept_ledger(fleet: str, account: str) -> Path:
    """Return the file in which `fleet down` keeps the costs of a fleet of an AWS account."""
    return default_report(fleet).with_name(f"{fleet}.{account}.ledger.json")


def kept_lifetimes(fleet: str) -> dict[str, Lifetime]:
    """Return the lifetimes that `fleet down` kept on this machine, by instance id.

    The instances may belong to several AWS accounts.
    """
    found: dict[str, Lifetime] = {}
    for file in default_report(fleet).parent.glob(f"{glob.escape(fleet)}.*.ledger.json"):
        found |= parse_lifetimes(object_or_empty(partial(read_json, file)).get("instances"))
    return found


def parse_lifetimes(value: Any) -> dict[str, Lifetime]:
    """Return the lifetimes by instance id from JSON data, or none if the data is damaged."""
    try:
        return parse_lines(value or {})
    except ValueError:
        return {}


def read_report(path: Path) -> dict[str, Any] | None:
    """Return the last report in the file `path`, or None if it is missing or damaged."""
    return object_or_empty(lambda: read_json(path)) or None


def run_report(own: Path, fleet: str, run: str) -> dict[str, Any] | None:
    """Return the last report of an autoscaler that scales for `run`, or None if there is none.

    The file `own` of the run's own autoscaler is tried first, then the fleet's default file,
    perhaps of an autoscaler for all runs.
    """
    reports = filter(None, map(read_report, (own, default_report(fleet))))
    return next((report for report in reports if report.get("run") in {run, ""}), None)
