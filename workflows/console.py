"""How runs and pools look in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trialfleet.files import typed
from trialfleet.workflows.status import RegionStatus, RunState, RunStatus

if TYPE_CHECKING:
    from trialfleet.infra.pool_status import PoolStatus
    from trialfleet.workflows.run import BestSettings, Run, TrialRecord

_COLORS = {
    RunState.RUNNING: "cyan",
    RunState.DONE: "green",
    RunState.FAILED: "red",
    RunState.STOPPED: "yellow",
    RunState.HELD: "yellow",
}
_SHOWN_REGIONS = 45


def run_view(status: RunStatus) -> RenderableType:
    """The status of a run: a line, a table of its regions, and what needs a person."""
    title = Text.assemble(
        (status.study, "bold"),
        f"  {status.run}  ",
        (status.state, _COLORS.get(status.state, "default")),
        f"  about {duration(status.seconds_left)} left" if status.seconds_left else "",
    )
    parts: list[RenderableType] = [title, _region_table(status)]
    if status.notice:
        parts.append(Text(status.notice, "yellow"))
    parts += [
        Text.assemble((f"{region.name} stopped: ", "red"), region.reason)
        for region in status.regions
        if region.reason
    ]
    parts += [Text(f"held: {h.node} (job {h.job}): {h.reason}", "yellow") for h in status.held]
    if status.rescue:
        parts.append(Text(f"next: trialfleet resume {typed(Path(status.folder))}"))
    return Group(*parts)


def _region_table(status: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("region", "", "trials"):
        table.add_column(name)
    for name in ("running", "queued", "failed", f"best {status.metric}", "left"):
        table.add_column(name, justify="right")
    table.add_column("")
    for region in status.regions[:_SHOWN_REGIONS]:
        table.add_row(*_region_row(region))
    hidden = len(status.regions) - _SHOWN_REGIONS
    if hidden > 0:
        table.add_row(f"… {hidden} more")
    return table


def _region_row(region: RegionStatus) -> list[RenderableType]:
    finished = region.done + region.failed
    return [
        Text(region.name[:40]),
        ProgressBar(total=region.budget, completed=finished, width=16),
        f"{finished}/{region.budget}",
        _count(region.running),
        _count(region.queued),
        Text(_count(region.failed), "red" if region.failed else ""),
        "" if region.best is None else f"{region.best:.5g}",
        duration(region.seconds_left),
        Text(
            _stage(region),
            _COLORS.get(region.state, "dim"),
        ),
    ]


def _stage(region: RegionStatus) -> str:
    """What a region is at, or how it ended."""
    return region.phase if region.state is RunState.RUNNING else region.state


def _count(number: int) -> str:
    return str(number) if number else "·"


def duration(seconds: float | None) -> str:
    """Return a time span as people say it: 42 s, 3 min, 2 h 5 min."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes + (rest >= 30), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def watch(run: Run, console: Console) -> RunStatus:
    """Show a run's status until it ends: live on a terminal, else a line for each change."""
    if not console.is_terminal:
        return run.wait(_line_printer(console))
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        return run.wait(lambda status: live.update(run_view(status)))


def _line_printer(console: Console) -> Callable[[RunStatus], None]:
    shown: dict[str, str] = {}

    def show_change(of: str, line: str) -> None:
        if shown.get(of) != line:
            shown[of] = line
            console.print(Text(f"{time.strftime('%H:%M:%S')} {line}"), soft_wrap=True)

    def show(status: RunStatus) -> None:
        show_change("run", f"{status.run}: {status.state}")
        if status.notice:
            show_change("notice", status.notice)
        for region in status.regions:
            show_change(region.slug, _region_line(region, status.metric))
        for held in status.held:
            show_change(held.job, f"held: {held.node} (job {held.job}): {held.reason}")

    return show


def _region_line(region: RegionStatus, metric: str) -> str:
    best = "" if region.best is None else f", best {metric} {region.best:.5g}"
    failed = f", {region.failed} failed" if region.failed else ""
    why = f" ({region.reason})" if region.reason else ""
    stage = f"{_stage(region)}{why}"
    return f"{region.name}: {stage}: {region.done}/{region.budget} trials{failed}{best}"


def trials_table(trials: list[TrialRecord]) -> Table:
    """The trials of a run, a row each."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("region", "trial", "state", "value", "time", "parameters"):
        table.add_column(name, justify="right" if name in {"trial", "value", "time"} else "left")
    for trial in trials:
        table.add_row(
            Text(trial.region),
            str(trial.trial),
            trial.state,
            "" if trial.value is None else f"{trial.value:.6g}",
            duration(trial.seconds),
            Text(trial.error or _settings(trial.params)),
        )
    return table


def best_table(best: list[BestSettings], metric: str) -> Table:
    """The best settings of a run's regions, a row each."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("region", "trial", metric, "parameters", "published"):
        table.add_column(name, overflow="fold")
    for entry in best:
        table.add_row(
            Text(entry.region),
            str(entry.trial),
            f"{entry.value:.6g}",
            Text(_settings(entry.params)),
            Text(entry.published or ""),
        )
    return table


def _settings(params: dict[str, object]) -> str:
    return "  ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def pool_view(status: PoolStatus) -> RenderableType:
    """The embedded pool: its daemons, slots and jobs."""
    color = {"up": "green", "down": "dim", "failing": "red"}[status.state]
    version = f"HTCondor {status.version}" if status.version else "HTCondor not installed yet"
    lines: list[RenderableType] = [
        Text.assemble((status.state, color), f"  {version}  {status.folder}")
    ]
    if status.daemons:
        lines.append(Text("daemons  " + ", ".join(status.daemons)))
    for slot in status.slots:
        gpus = f", {slot.gpus} GPUs" if slot.gpus else ""
        free = " free" if slot.partitionable else ""
        size = f"{slot.cpus} cpus, {slot.memory} MB{gpus}{free}"
        lines.append(Text(f"slot     {slot.name}: {slot.state}, {slot.activity}: {size}"))
    if status.state == "up":
        jobs = ", ".join(f"{count} {state}" for state, count in status.jobs.items()) or "none"
        lines.append(Text(f"jobs     {jobs}"))
    return Group(*lines)
