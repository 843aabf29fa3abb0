"""The terminal view of the embedded pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from trialfleet.infra.pool.machines import Machine
from trialfleet.infra.pool.status import PoolStatus


def pool_view(status: PoolStatus) -> RenderableType:
    """Return the view of the pool: its daemons and machines, and the runs and jobs in its queue."""
    color = {"up": "green", "down": "dim", "failing": "red"}[status.state]
    # not known before the first start
    version = f"  HTCondor {status.version}" if status.version else ""
    lines: list[RenderableType] = [
        Text.assemble((status.state, color), f"{version}  {status.folder}")
    ]
    if status.daemons:
        lines.append(Text("daemons  " + ", ".join(status.daemons)))
    lines += [
        Text(f"silent   {name} does not answer: see {log}", "red")
        for name, log in status.silent.items()
    ]
    lines += [Text(f"machine  {_machine(machine)}") for machine in status.machines]
    if status.state == "up":
        lines.append(Text(f"runs     {status.runs or 'none'}"))
        lines.append(Text(f"trials   {_in_states(status.trials)}"))
        others = Counter(status.jobs)
        others.subtract(status.trials)
        if +others:
            what = "full trainings, publications and similar jobs"
            lines.append(Text(f"others   {_in_states(+others)} ({what})"))
        if status.clocks:
            lines.append(Text(f"daily    {status.clocks} schedule(s)"))
    return Group(*lines)


def _machine(machine: Machine) -> str:
    used, free = machine.in_use, machine.offered_room
    parts = [
        f"cores {used.cpus} in use, {free.cpus} free",
        f"memory {used.memory_mb:,} MB in use, {free.memory_mb:,} MB free",
        *([f"GPUs {used.gpus} in use, {free.gpus} free"] if used.gpus + free.gpus else []),
    ]
    return f"{machine.name}: {'; '.join(parts)}"


def _in_states(jobs: Mapping[str, int]) -> str:
    words = {"idle": "waiting"}
    order = ["running", "idle", "held"]
    states = [state for state in order if state in jobs] + sorted(jobs.keys() - set(order))
    return ", ".join(f"{jobs[state]} {words.get(state, state)}" for state in states) or "none"
