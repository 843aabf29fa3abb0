"""The cost of a run's fleet, as its autoscaler last reported it, and whether money ran out.

The fleet's autoscaler decides whether more trials may run. If not, it removes trials' jobs from the
queue with a reason. The first reason is noted in the run's folder, so that no other trial begins.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from trialfleet.errors import join_names
from trialfleet.files import read_record, unless_damaged, write_json
from trialfleet.infra.fleet.scaling.instance_costs import Lifetime, NodesLeft, nodes_left
from trialfleet.infra.fleet.scaling.last_report import (
    kept_lifetimes,
    parse_lifetimes,
    read_report,
    run_report,
)
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.optimizer.budget_and_deadline_rules import Facts, refusal
from trialfleet.workflows.facts.record_shapes import Reasons
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.formatting import usd

STALE = timedelta(minutes=5)  # a working autoscaler reports at least this often
AUTOSCALER_SECONDS = 30.0  # within which a sound autoscaler ends
SHOWN = 8  # nodes in a line
Mode = Literal["tune", "final"]


def note(folder: RunFolder, mode: Mode, reason: str) -> None:
    """Record why no money is left for trials (`tune`), or for trials and full trainings (`final`).

    The first reason for `mode` stays, and so does one for `final`.
    """
    noted = read_out_of_money(folder)
    if mode not in noted and "final" not in noted:
        write_json(folder.out_of_money, noted | {mode: reason})


def read_out_of_money(folder: RunFolder) -> dict[str, str]:
    """Return why no money is left, by mode; empty if there is money.

    The mode is `tune` for trials, or `final` for trials and full trainings.
    """
    return read_record(folder.out_of_money, shape=Reasons) if folder.out_of_money.exists() else {}


def out_of_money_reason(folder: RunFolder) -> str | None:
    """Return why no money is left for trials; None if there is money."""
    refused = refusal("attempt", Facts(out_of_money=read_out_of_money(folder)))
    return refused.reason if refused else None


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The cost of a run's fleet, in USD, as its autoscaler last reported it."""

    spent: float  # by all EC2 nodes since the run began
    cap: float | None  # the study's `price_cap.run`
    left: float | None  # of the cap
    reserve: float | None  # the part of the cap for the full trainings
    ended: str | None  # why no money is left for trials or full trainings
    trouble: str | None  # why the autoscaler makes no progress
    nodes_left: str | None = None  # a text about nodes that still ran when the autoscaler ended

    def __str__(self) -> str:
        of = f" of {usd(self.cap)}, {usd(self.left)} left" if self.cap is not None else ""
        return f"{usd(self.spent)} USD spent{of}"


def read_spending(
    folder: RunFolder,
    run: str,
    fleet: Fleet | None,
    now: datetime | None = None,
    *,
    is_under_way: bool = False,
) -> Spending | None:
    """Return the cost of a run's fleet, from the last file that the fleet's autoscaler wrote.

    Return None if the run has no fleet, if there is no such file, or if the autoscaler works for
    all runs. Each EC2 node is charged until `now`, or until its end if that was earlier. If the end
    is unknown, the node is assumed to end when its lease expires. Only if the run `is_under_way`, a
    silent autoscaler is a trouble.
    """
    report = run_report(folder.fleet_state, fleet.full_name, run) if fleet else None
    if fleet is None or report is None or report["run"] != run:  # the report is about all runs
        return None
    step: dict[str, Any] = report.get("step") or {}
    now, kept = now or datetime.now(UTC), kept_lifetimes(fleet.full_name)
    nodes = {k: kept.get(k, life) for k, life in parse_lifetimes(step.get("instances")).items()}
    spent, cap = _fleet_cost(step, nodes.values(), now), fleet.price_cap.run
    over = report.get("state") == "ended"
    return Spending(
        spent=spent,
        cap=cap,
        left=None if cap is None else max(0.0, cap - spent),
        reserve=None if cap is None else cap * fleet.price_cap.reserve,
        ended=out_of_money_reason(folder) or step.get("stopped") or None,
        trouble=_autoscaler_trouble(report, now if is_under_way else None),
        nodes_left=_in_words(nodes_left(nodes, now)) if over else None,
    )


def _fleet_cost(step: Mapping[str, Any], nodes: Collection[Lifetime], now: datetime) -> float:
    if not nodes:
        return float(step.get("spent", 0.0))
    since = datetime.fromisoformat(step["since"])
    # Without news from AWS, an instance is assumed to have ended with its lease.
    return sum(life.cost(life.end_time(now), since) for life in nodes)


def _in_words(left: NodesLeft | None) -> str | None:
    if left is None:
        return None
    until = f"until {left.until:%H:%M} UTC at the latest" if left.until else "without a lease"
    return (
        f"nodes that still ran when the autoscaler ended: {join_names(left.nodes, SHOWN)} "
        f"({until}, for {usd(left.per_hour)} USD per hour); trialfleet fleet scale 0 ends them"
    )


def has_autoscaler_ended(folder: RunFolder) -> bool:
    """Wait for a finished run's autoscaler to end, 30 s at most; return whether it ended."""
    deadline = time.monotonic() + AUTOSCALER_SECONDS
    while (state := (read_report(folder.fleet_state) or {}).get("state")) in {"scaling", "failing"}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return state == "ended"


def scaling_notes(folder: RunFolder, run: str, fleet: Fleet) -> tuple[str, ...]:
    """Return the autoscaler's last messages about trials for which it can't start an EC2 node."""
    report = run_report(folder.fleet_state, fleet.full_name, run) or {}
    return tuple(map(str, (report.get("step") or {}).get("notes") or ()))


def _autoscaler_trouble(report: Mapping[str, Any], now: datetime | None) -> str | None:
    why, since = None, silence_start(report, now) if now else None
    if report.get("state") == "waiting":
        why = "waits for the end of another autoscaler of this fleet"
    elif report.get("state") == "failing":
        why = str(report.get("error"))
    elif since:
        why = f"has not reported since {since:%H:%M} UTC"
    return why and f"the fleet's autoscaler: {why}"


def silence_start(report: Mapping[str, Any], now: datetime) -> datetime | None:
    """Return the time of an autoscaler's last report if it is older than `STALE`, else None."""
    at = unless_damaged(lambda: datetime.fromisoformat(str(report["at"])), None)
    return at if at and now - at > STALE else None
