"""The lifetimes of a fleet's EC2 nodes, from this machine's records and from AWS."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from trialfleet.infra.fleet.scaling.instance_costs import Lifetime
from trialfleet.infra.fleet.scaling.last_report import (
    default_report,
    kept_lifetimes,
    parse_lifetimes,
    read_report,
)
from trialfleet.infra.fleet.spec.fleet import Fleet


def reported_lifetimes(fleet: Fleet, reports: Iterable[Path]) -> dict[str, Lifetime]:
    """Return the lifetimes of a fleet's nodes that this machine knows.

    The sources are the autoscalers' `reports`, the fleet's default report and the records of `fleet
    down`. If several sources have a node, the record of `fleet down` takes precedence.
    """
    found: dict[str, Lifetime] = {}
    for report in (*reports, default_report(fleet.full_name)):
        step = (read_report(report) or {}).get("step")
        found |= parse_lifetimes(step.get("instances")) if isinstance(step, dict) else {}
    return found | kept_lifetimes(fleet.full_name)


def recorded_lifetimes(fleet: Fleet, now: datetime | None) -> dict[str, Lifetime]:
    """Return EC2 nodes' lifetimes, from the fleet's record and AWS; FleetError if AWS fails."""
    from trialfleet.infra.fleet.aws.clients import Aws
    from trialfleet.infra.fleet.commands.status import current_record

    return dict(current_record(Aws(), fleet, now).lifetimes)
