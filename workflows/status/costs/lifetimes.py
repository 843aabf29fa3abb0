"""The lives of fleets' nodes, as this machine knows them and as AWS does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from trialfleet.infra.fleet.scaling.last_report import (
    default_report,
    kept_lifetimes,
    lines_in,
    read_report,
)
from trialfleet.infra.fleet.scaling.lifetimes import Lifetime
from trialfleet.infra.fleet.spec.fleet import Fleet


def reported(fleet: Fleet, reports: Iterable[Path]) -> dict[str, Lifetime]:
    """Return the nodes that a fleet's autoscalers reported here, and what `fleet down` kept."""
    found: dict[str, Lifetime] = {}
    for report in (*reports, default_report(fleet.called)):
        step = (read_report(report) or {}).get("step")
        found |= lines_in(step.get("instances")) if isinstance(step, dict) else {}
    return found | kept_lifetimes(fleet.called)


def recorded(fleet: Fleet, now: datetime | None) -> dict[str, Lifetime]:
    """Return the nodes that the fleet's own record has, and those that AWS lists now.

    Raises:
        FleetError: AWS can't be asked.
    """
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.commands.status import current_record

    return dict(current_record(Aws(), fleet, now).lifetimes)
