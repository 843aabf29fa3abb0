"""What commands print with: the terminal, and JSON where it is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from trialfleet.errors import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

UNSQUEEZED = 10_000  # columns for a file or a pipe: nothing is cut or wrapped there


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console() -> Console:
    """Return the terminal, or what stands for it when the output goes elsewhere."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNSQUEEZED
    return made


def say(text: str, *, err: bool = False) -> None:
    """Print a line for a person; a name in it that isn't ours reaches no terminal as it is."""
    click.echo(printable(text), err=err)


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print a value as JSON; what JSON doesn't know (paths, times) as text."""
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def keep_numbers_whole(table: Table) -> None:
    """Let a narrow terminal wrap titles and texts, but no cell of a column that is set right."""
    for column in table.columns:
        if column.justify == "right":
            column.min_width = _widest(column.cells)


def keep_widths(table: Table, widths: dict[int, int]) -> None:
    """Make no column of a table but its first narrower than it was before.

    Args:
        table: with all of its rows; its first column is a name, which doesn't change.
        widths: what each column needed so far, by its place; brought up to date.
    """
    for place, column in enumerate(table.columns[1:], start=1):
        now = _widest([column.header, *column.cells])
        widths[place] = column.min_width = max(now, widths.get(place, 0))


def _widest(cells: Iterable[RenderableType]) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    sizes = (Measurement.get(console, console.options, cell).maximum for cell in cells)
    return max(sizes, default=0)
