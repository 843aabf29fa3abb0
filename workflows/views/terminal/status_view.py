"""The view of `trialfleet status` in a terminal."""

from __future__ import annotations

import io
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trialfleet.errors import join_names
from trialfleet.files import shell_quoted
from trialfleet.workflows.facts.models.approval import without_command
from trialfleet.workflows.facts.runs.failed_attempts import (
    SEE,
    error_kind,
    first_clauses,
    in_short,
)
from trialfleet.workflows.formatting import (
    column_decimals,
    fixed_point,
    result_text,
    rough_duration,
    usd,
)
from trialfleet.workflows.rules.region_state import BY_STOP
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.rules.useless_resume import ALIKE, seems_useless
from trialfleet.workflows.status.status_types import RegionStatus, RunStatus
from trialfleet.workflows.views.output import Fitting, keep_numbers_whole, keep_widths

_COLORS: dict[str, str] = {
    RunState.RUNNING: "cyan",
    RunState.DONE: "green",
    RunState.FAILED: "red",
    RunState.STOPPED: "yellow",
    RunState.HELD: "yellow",
    RunState.LOST: "yellow",
    Stage.TUNING: "cyan",
    Stage.TRAINING: "cyan",
    Stage.GATING: "cyan",
    Stage.PUBLISHING: "cyan",
    Stage.PUBLISHED: "green",
    Stage.KEPT: "yellow",
    Stage.TUNED: "green",
}
_SHOWN_REGIONS, _SHOWN_REPAIRS, _SHOWN_STEPS, _SHOWN_NAMES = 45, 3, 4, 3
_FIX = "next: fix the causes above"
_LINE = 110  # characters of a reason in a line, with the region's name
_DIGITS = 5  # significant ones, of the greatest value in a column


def run_view(status: RunStatus, widths: dict[str, int] | None = None) -> RenderableType:
    """Return a run's status as a title, a table of regions, problems and next steps.

    `widths` has the greatest width of each column so far, by title. The call updates it, so that
    columns, except the first one, don't get narrower while a run is watched.
    """
    title = Text.assemble(
        (status.study, "bold"),
        f"  {status.run}  ",
        state_text(status.state),
        f"  about {rough_duration(status.seconds_left)} left" if status.seconds_left else "",
    )
    kept = {} if widths is None else widths
    parts: list[RenderableType] = [
        title,
        Fitting(lambda bars: _region_table(status, kept, bars=bars)),
    ]
    said: set[str] = set()
    if status.notice:
        parts.append(Text(_omit_known_cause(status.notice, status, said), "yellow"))
    parts += [Text(line, color) for line, color in money_lines(status)]
    parts += [Text(str(status.work), "yellow")] if status.work.is_much_lost else []
    parts += [
        Text.assemble((names, color), text)
        for (text, color), names in _group_notes(status).items()
        if not said or _omit_known_cause(text, status, said)
    ]
    parts += [Text(str(held), "yellow") for held in status.held]
    parts += [Text(trouble, "yellow") for trouble in status.troubles]
    parts += [Text(_repair_line(repair), "dim") for repair in status.repairs[-_SHOWN_REPAIRS:]]
    steps = next_steps(status) if status.state.can_resume else []
    if not any(step.startswith(_FIX) for step in steps):  # the cause is shown above
        parts += [Text(line) for line in _ask_why(status)]
    parts += [Text(f"to fix it: {status.fix}")] if status.fix else []
    parts += [Text(line) for line in steps]
    return Group(*parts)


def _region_notes(region: RegionStatus) -> Iterator[tuple[str, str]]:
    """Yield notes on a region that follow the region's name, each with its colour."""
    if region.reason:
        by_whom = region.reason == BY_STOP
        yield (f" {BY_STOP}", "yellow") if by_whom else (f" {region.stage}: {region.reason}", "red")
    if region.cause and region.cause.error not in (region.reason or ""):
        yield f": {region.cause}", "yellow"
    if region.spent and region.spent not in (region.reason or ""):
        yield f": no more trials: {region.spent}", "default"
    for words in filter(None, (region.model_note, *region.warnings)):
        yield f": {words}", "yellow"


def _group_notes(status: RunStatus) -> dict[tuple[str, str], str]:
    """Return, for each note and its colour, a text that names the regions with the note.

    Notes that differ only in paths and numbers count as the same note.
    """
    first: dict[str, tuple[str, str]] = {}
    regions: dict[str, list[str]] = {}
    for region in status.regions:
        for text, color in _region_notes(region):
            kind = error_kind(text.partition(SEE)[0])
            first.setdefault(kind, (text, color))
            regions.setdefault(kind, []).append(region.name)
    return {
        first[kind]: _region_names(names, len(status.regions)) for kind, names in regions.items()
    }


def _region_names(names: list[str], total: int) -> str:
    if len(names) == 1:
        return names[0]
    which = "" if len(names) == total else f" ({join_names(names, _SHOWN_NAMES)})"
    return f"{len(names)} of {total} regions{which}"


def _ask_why(status: RunStatus) -> list[str]:
    unwell = [
        region.name
        for region in status.regions
        if region.stage.needs_help or region.stage is Stage.UNKNOWN
    ]
    troubled = {trouble.region for trouble in status.job_troubles}
    unwell += [region.name for region in status.regions if region.slug in troubled]
    if not (unwell or status.troubles or status.held):
        return []
    region = f"{shlex.quote(unwell[0])} " if unwell else ""  # else `why` finds it
    return [f"why: trialfleet why {region}--run {shell_quoted(Path(status.folder))}"]


def next_steps(status: RunStatus) -> list[str]:
    """Return lines with the next steps for a run that can be resumed."""
    resume = f"trialfleet resume {shell_quoted(Path(status.folder))}"
    failed = any(region.cause and region.stage is Stage.FAILED for region in status.regions)
    left = [region for region in status.regions if not region.stage.is_good]
    if not (failed and status.state is RunState.FAILED) and not (
        left and all(seems_useless(each.over, each.cause, complete=each.done) for each in left)
    ):
        return [f"next: {resume}"]
    can_go_on = status.state is not RunState.FAILED or not all(region.over for region in left)
    steps = [f"{_FIX}, then start another run: {status.again}"]
    if can_go_on:
        steps.append(f"or, if the causes are gone: {resume}")
    return steps


def _omit_known_cause(line: str, status: RunStatus, known_causes: set[str]) -> str:
    """Return `line`, but shortened or "" if it names only known causes of failures.

    `known_causes` has the causes in earlier lines. The call adds the causes in `line`. If all of
    them were known, a line about attempts that failed alike is shortened. Any other line is left
    out: the result is "".
    """
    causes = {error_kind(region.cause.error) for region in status.regions if region.cause}
    found = {cause for cause in causes if cause in error_kind(line)}
    if found and found <= known_causes:
        words, alike, error = line.partition(ALIKE)
        return f"{words}: {in_short(error)}" if alike else ""
    known_causes |= found
    return line


def state_text(state: RunState) -> Text:
    """Return the name of a run's state in its colour."""
    return Text(state, _COLORS.get(state, "default"))


def to_html(view: RenderableType) -> str:
    """Return a view as HTML for a notebook."""
    recorder = Console(record=True, file=io.StringIO(), width=110, highlight=False)
    recorder.print(view)
    style = "font-family: monospace; line-height: 1.3; overflow-x: auto"
    return recorder.export_html(
        inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'
    )


def _repair_line(repair: dict[str, Any]) -> str:
    when = datetime.fromisoformat(repair["time"]).astimezone()
    where = f"{repair['region']}: " if repair["region"] else ""
    return f"repaired at {when:%H:%M:%S}: {where}{repair['what']}"


def money_lines(status: RunStatus) -> list[tuple[str, str]]:
    """Return lines about the fleet's costs and problems, each with its colour."""
    money = status.money
    if money is None:
        return []
    troubles = [f"trials ended: {money.ended}"] if money.ended else []
    troubles += [money.trouble] if money.trouble else []
    troubles += [money.nodes_left] if money.nodes_left else []
    return [(f"fleet: {money}", "default"), *((line, "yellow") for line in troubles)]


def _region_table(status: RunStatus, widths: dict[str, int], *, bars: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    names = ["region", "state", "", "trials", "failed", "stopped early", "running", "ranks"]
    names += ["step", "queued", f"best {status.metric}", "USD", "time left", "why"]
    hidden = {names.index(name) for name in _columns_without_news(status, bars=bars)}
    for place, name in enumerate(names):
        if place not in hidden:
            is_number = names.index("trials") <= place < names.index("why")
            table.add_column(name, justify="right" if is_number else "left")
    decimals = column_decimals([region.best for region in status.regions], _DIGITS)
    for region in status.regions[:_SHOWN_REGIONS]:
        cells = enumerate(_region_row(region, decimals))
        table.add_row(*(cell for place, cell in cells if place not in hidden))
    keep_numbers_whole(table)
    if not status.ended:
        keep_widths(table, widths)
    more = len(status.regions) - _SHOWN_REGIONS
    if more > 0:
        table.add_row(f"… {more} more")
    return table


def _columns_without_news(status: RunStatus, *, bars: bool) -> set[str]:
    regions = status.regions
    has_news = {
        "": bars and not status.ended,
        "running": not status.ended,
        "queued": not status.ended,
        "time left": not status.ended,
        "step": not status.ended or any(map(_steps, regions)),
        "USD": any(region.usd is not None for region in regions),
        "stopped early": any(region.stopped_early for region in regions),
        "ranks": any(map(_ranks, regions)),
        "why": any(map(_failure_reason, regions)),
    }
    return {name for name, shown in has_news.items() if not shown}


def _region_row(region: RegionStatus, decimals: int | None) -> list[RenderableType]:
    return [
        Text(region.name[:40]),
        Text(region.stage, _COLORS.get(region.stage, "dim")),
        ProgressBar(total=region.budget, completed=region.finished, width=16),
        f"{region.finished}/{region.budget}",
        Text(_count(region.all_failed), "red" if region.all_failed else ""),
        _count(region.stopped_early),
        _count(region.running),
        _ranks(region),
        _steps(region),
        _count(region.queued),
        value_text(region.best, decimals),
        usd(region.usd),
        rough_duration(region.seconds_left),
        Text(_failure_reason(region), "red", no_wrap=True, overflow="ellipsis"),
    ]


def _failure_reason(region: RegionStatus) -> str:
    return region.short_failure if region.stage is Stage.FAILED else ""


def value_text(value: float | None, decimals: int | None) -> str:
    """Return a metric's value as text for a column of values, or "" for None.

    If `decimals` is None, the value has its own format.
    """
    return "" if value is None else fixed_point(value, decimals)


def _steps(region: RegionStatus) -> str:
    steps = [str(trial.step) for trial in region.running_trials if trial.step is not None]
    more = " …" if len(steps) > _SHOWN_STEPS else ""
    return " ".join(steps[:_SHOWN_STEPS]) + more


def _ranks(region: RegionStatus) -> str:
    """Return each gang's ranks and generation, such as 4g2 for 4 ranks in generation 2.

    A new generation (set of ranks) begins whenever a rank joins, leaves or is lost.
    """
    gangs = [each for each in region.running_trials if each.generation is not None]
    more = " …" if len(gangs) > _SHOWN_STEPS else ""
    return " ".join(f"{each.ranks}g{each.generation}" for each in gangs[:_SHOWN_STEPS]) + more


def _count(number: int) -> str:
    return str(number) if number else "·"


def watch(wait: Callable[[Callable[[RunStatus], None]], RunStatus], console: Console) -> RunStatus:
    """Show a run's status until the run ends, and return the last status.

    A terminal shows a view that is updated in place. Other outputs get a line for each change.
    `wait` is `Run.wait`, which calls its argument with each new status until the run ends.
    """
    from rich.live import Live

    if not console.is_terminal:
        return wait(_line_printer(console))
    widths: dict[str, int] = {}
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        return wait(lambda status: live.update(run_view(status, widths)))


def _line_printer(console: Console) -> Callable[[RunStatus], None]:
    shown: dict[str, str] = {}
    said: set[str] = set()

    def show_change(of: str, line: str, status: RunStatus, *, short: bool = False) -> None:
        if shown.get(of) == line:
            return
        shown[of] = line
        if line := _omit_known_cause(line, status, said):
            line = _shorten_line(line) if short else line
            console.print(Text(f"{time.strftime('%H:%M:%S')} {line}"), soft_wrap=True)

    def show(status: RunStatus) -> None:
        for of, line in _lines(status):
            show_change(of, line, status)
        for of, line in _problem_lines(status):
            if of not in shown:
                show_change(of, line, status, short=True)

    return show


def _lines(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Yield pairs of a key and a line.

    A line is printed if it differs from the last line with the same key.
    """
    yield "run", f"{status.run}: {status.state}"
    if status.notice:
        yield "notice", status.notice
    for trouble in status.run_troubles:
        yield trouble, trouble
    for repair in status.repairs:
        yield str(repair), _repair_line(repair)
    for number, (line, _) in enumerate(money_lines(status)[1:]):  # the sum changes constantly
        yield f"money {number}", line
    for region in status.regions:
        yield region.slug, _region_line(region, status.metric)
    for held in status.held:
        yield held.job, str(held)


def _shorten_line(line: str) -> str:
    words, see, log = without_command(line).partition(SEE)
    return f"{first_clauses(words, _LINE)}{see}{log}"


def _problem_lines(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Yield pairs of a kind of problem and a line.

    Of each kind, only the first line is printed.
    """
    for trouble in status.job_troubles:
        yield error_kind(trouble.cause), str(trouble)
    for region in status.regions:
        for text, _ in _region_notes(region):
            yield error_kind(text.partition(SEE)[0]), f"{region.name}{text}"


def _region_line(region: RegionStatus, metric: str) -> str:
    best = "" if region.best is None else f", best {result_text(metric, region.best)}"
    failed = f", {count} failed" if (count := region.all_failed) else ""
    if region.stage is Stage.FAILED and region.cause and not count:
        failed = f", {region.cause.of} failed attempt{'s' if region.cause.of > 1 else ''}"
    stopped = f", {region.stopped_early} stopped early" if region.stopped_early else ""
    trials = f"{region.finished}/{region.budget} trials"
    return f"{region.name}: {region.stage}: {trials}{failed}{stopped}{best}"
