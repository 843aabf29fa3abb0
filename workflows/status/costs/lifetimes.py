"""The lives of fleets' nodes, as this machine knows them and as AWS does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.infra.fleet.scaling.last_report import default_report, read_report
from trialfleet.infra.fleet.spec.fleet import Fleet

if TYPE_CHECKING:
    from trialfleet.infra.fleet.scaling.ledger import Lifetime


def reported(fleet: Fleet, reports: Iterable[Path]) -> dict[str, Lifetime]:
    """Return the nodes that a fleet's autoscalers reported here: those of runs, and its own."""
    found: dict[str, Lifetime] = {}
    for report in (*reports, default_report(fleet.called)):
        found |= _in(report)
    return found


def _in(report: Path) -> dict[str, Lifetime]:
    from trialfleet.infra.fleet.scaling import ledger  # AWS's library is slow to import

    try:
        step = (read_report(report) or {}).get("step") or {}
        return ledger.parse_lines(step.get("instances") or {})
    except (ValueError, AttributeError):
        return {}


def recorded(fleet: Fleet, now: datetime | None) -> dict[str, Lifetime]:
    """Return the nodes that the fleet's own record has, and those that AWS lists now.

    Raises:
        FleetError: AWS can't be asked.
    """
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.commands.status import current_record

    return dict(current_record(Aws(), fleet, now).lifetimes)
