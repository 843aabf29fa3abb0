"""The terminal views of a fleet: its plan, its status, and the findings of `fleet doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from trialfleet.workflows.formatting import rough_duration, usd
from trialfleet.workflows.views.output import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from trialfleet.infra.fleet.choice.interruption_history import PoolHistory
    from trialfleet.infra.fleet.commands.gpu_types import GpuTypes
    from trialfleet.infra.fleet.commands.permissions import Finding
    from trialfleet.infra.fleet.commands.plan import FleetPlan
    from trialfleet.infra.fleet.commands.status import FleetStatus, NodeStatus
    from trialfleet.infra.fleet.spec.machines import Candidate

SHOWN_CANDIDATES = 15
_STAGE_COLORS = {
    "asked": "cyan",
    "booted": "cyan",
    "joined": "green",
    "sick": "red",
    "draining": "yellow",
    "ending": "dim",
    "ended": "dim",
}
_MARKS = {True: ("ok", "green"), False: ("wrong", "red"), None: ("unknown", "yellow")}


def plan_view(plan: FleetPlan) -> RenderableType:
    """Return the view of a fleet's plan: what `up` would create, and its cost."""
    columns = ("type", "zone", "", "GPUs", "GPU", "USD/h", "on-demand", "interrupted", "trials/USD")
    table = plain_table(*columns, right=("USD/h", "on-demand", "trials/USD"))
    best = plan.candidates[0].cost
    for one, seen in list(zip(plan.candidates, plan.seen, strict=True))[:SHOWN_CANDIDATES]:
        memory = f"{one.type.gpu} {one.type.gpu_memory_mb // 1024} GB" if one.type.gpus else ""
        table.add_row(
            one.type.name,
            one.zone,
            one.lifecycle,
            str(one.type.gpus),
            memory,
            f"{one.price:.3f}",
            _on_demand_price(plan, one),
            _interruption_text(one, seen),
            f"{best / one.cost:.2f}",
        )
    hidden = len(plan.candidates) - SHOWN_CANDIDATES
    if hidden > 0:
        table.add_row(f"… {hidden} more")
    return Group(
        Text.assemble((plan.fleet, "bold"), f"  account {plan.account}"),
        Text(_request_text(plan)),
        table,
        Text(_money(plan)),
        *(Text(str(gang)) for gang in plan.gangs),
        Text("`up` also creates:"),
        *(Text(f"  {resource}") for resource in plan.makes),
        Text("to print the required permissions: trialfleet fleet plan --policy"),
        *(Text(warning, "yellow") for warning in plan.warnings),
        *(Text(problem, "red") for problem in plan.problems),
    )


def _request_text(plan: FleetPlan) -> str:
    regions = len({one.aws_region for one in plan.candidates[: plan.first]})
    where = "one request" if regions == 1 else "one request per AWS region"
    rest = len(plan.candidates) - plan.first
    text = f"EC2 Fleet gets {where}, with {plan.first} of these pools"
    if rest:
        text += (
            f"; the other {rest}, with less than 2/3 of the best pool's trials/USD, are requested "
            f"only if the first {plan.first} have no capacity"
        )
    if plan.spot_nodes < plan.max_nodes and plan.spot_share > 0:
        beyond = f" of the nodes beyond spot.base ({plan.spot_base})" if plan.spot_base else ""
        text += (
            f"\nof {plan.max_nodes} nodes, {plan.spot_nodes} are spot: "
            f"{plan.spot_share:.0%}{beyond}, "
            + ("rounded to whole gangs" if plan.gangs else "rounded up")
        )
    return text


def _interruption_text(candidate: Candidate, seen: PoolHistory) -> str:
    """Return how often spot instances of a type in a zone were interrupted: "0.3 in 12.0 h".

    The hours are summed over all nodes. In both numbers, nodes that ended long ago count less. The
    text is empty for on-demand instances, and if no hours are known.
    """
    if candidate.lifecycle != "spot" or not seen.hours:
        return ""
    return f"{seen.interruptions:.1f} in {seen.hours:.1f} h"


def _on_demand_price(plan: FleetPlan, candidate: Candidate) -> str:
    usd = plan.on_demand.get(candidate.aws_region, {}).get(candidate.type.name)
    return "" if usd is None else f"{usd:.3f}"


def _money(plan: FleetPlan) -> str:
    caps = [
        f"at most {cap:.2f} USD per {what}"
        for what, cap in (("hour", plan.hour_cap), ("run", plan.run_cap))
        if cap is not None
    ]
    return (
        f"{plan.min_nodes} to {plan.max_nodes} nodes, {plan.living} now, "
        f"{plan.spot_share:.0%} spot; {', '.join(caps) or 'no price cap'}; "
        f"maximum {plan.most_per_hour:.2f} USD per hour"
    )


def gpus_view(found: GpuTypes) -> RenderableType:
    """Return a table of instance types with GPUs, the cheapest GPU first."""
    table = plain_table(
        "type", "GPUs", "GPU", "vCPUs", "memory", "on-demand", "spot", "cheapest in", "offered in",
        right=("GPUs", "vCPUs", "memory", "on-demand", "spot"),
    )  # fmt: skip
    for one in found.types:
        kind = one.type
        on_demand = f"{min(one.on_demand.values()):.3f}" if one.on_demand else ""
        table.add_row(
            one.name,
            str(kind.gpus) if kind else "",
            f"{kind.gpu} {kind.gpu_memory_mb // 1024} GB" if kind else "",
            str(kind.vcpus) if kind else "",
            f"{kind.memory_mb // 1024} GB" if kind else "",
            on_demand,
            "" if one.spot is None else f"{one.spot:.3f}",
            one.zone,
            ", ".join(one.aws_regions) or "none",
        )
    prices = Text("prices in USD per hour, the lowest of the AWS regions")
    return Group(table, prices, *([Text(found.note, "yellow")] if found.note else []))


def status_view(status: FleetStatus) -> RenderableType:
    """Return the view of a fleet: a summary line, nodes, trials, notices, and problems of nodes."""
    title = Text.assemble(
        (status.fleet, "bold"),
        f"  {_counts(status)}  {status.price_per_hour:.2f} USD/h, {usd(status.spent)} USD so far",
    )
    parts: list[RenderableType] = [title]
    if status.nodes:
        parts.append(_nodes_table(status.nodes))
    if status.demand is not None:
        running, waiting = status.demand.running_trials, status.demand.waiting_trials
        parts.append(Text(f"trials: {running} running, {waiting} waiting"))
    parts += [Text(line, "yellow") for line in (*status.silent.values(), *status.notices)]
    parts += [
        Text.assemble((f"{node.instance.id}: ", "yellow"), node.reason)
        for node in status.nodes
        if node.reason
    ]
    return Group(*parts)


def status_line(status: FleetStatus) -> str:
    """Return the number of nodes by stage, and why nodes or some of their GPUs take no trials."""
    waits = [
        f"{node.instance.id}: {node.reason.split(';')[-1].strip()}"
        for node in status.nodes
        if node.reason
    ]
    return "\n  ".join([_counts(status), *waits])


def _counts(status: FleetStatus) -> str:
    return ", ".join(f"{count} {stage}" for stage, count in status.stages.items()) or "no nodes"


def _nodes_table(nodes: Sequence[NodeStatus]) -> Table:
    table = plain_table(
        "instance", "stage", "type", "zone", "", "USD/h", "age", "USD", "GPU", "GB/s", "trial",
        right=("USD/h", "age", "USD", "GB/s"),
    )  # fmt: skip
    for node in nodes:
        instance, machine = node.instance, node.machine
        gpu = f"{node.gpus} x {machine.gpu or 'GPU'}" if machine and node.gpus else ""
        bandwidth = machine.bandwidth if machine else None
        table.add_row(
            instance.id,
            Text(node.stage, _STAGE_COLORS.get(node.stage, "")),
            instance.type,
            instance.zone,
            instance.lifecycle,
            "" if instance.price is None else f"{instance.price:.3f}",
            rough_duration(node.age_minutes * 60),
            usd(node.cost),
            gpu,
            "" if bandwidth is None else f"{bandwidth:.0f}",
            Text(", ".join(trial.node for trial in machine.trials) if machine else ""),
        )
    return table


def doctor_view(findings: Sequence[Finding]) -> RenderableType:
    """Return a table of the findings of `fleet doctor`, with advice."""
    table = plain_table("", "check", "found")
    for finding in findings:
        mark, color = _MARKS[finding.ok]
        table.add_row(Text(mark, color), finding.check, Text(finding.found))
        if finding.advice and finding.ok is not True:
            table.add_row("", "", Text(f"→ {finding.advice}"))
    return table
