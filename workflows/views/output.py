"""Functions that print the output of commands as tables, progress lines or JSON."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from trialfleet.errors import escape_control
from trialfleet.files import plain_data

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
    from rich.measure import Measurement
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

_SAID_AGAIN = 15.0  # seconds until an unchanged line of progress is printed again
_FIGURES = re.compile(r"\d+")
UNSQUEEZED = 1_000_000  # columns for a file or a pipe, without wrapping or cutting


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console(*, err: bool = False) -> Console:
    """Return a rich console for standard output or, if `err` is true, for standard error.

    In a file or a pipe, the console wraps no lines unless COLUMNS is set.
    """
    from rich.console import Console

    made = Console(highlight=False, stderr=err)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNSQUEEZED
    return made


def show(view: RenderableType) -> None:
    """Print a view without breaking words, such as paths, that are wider than the terminal."""
    console().print(view, overflow="ignore", crop=False)


def say(text: str, *, err: bool = False) -> None:
    """Print a text for a person, with control characters escaped."""
    click.echo(escape_control(text), err=err)


@contextmanager
def progress_lines(indent: str = "", *, err: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text, with the seconds since the `with` block began.

    A terminal shows only the latest text, and removes it when the block ends. A file or a pipe gets
    a line for each text. Texts in a row that differ only in numbers get one line every 15 s.
    """
    from rich.live import Live
    from rich.text import Text

    begun, last, at = time.monotonic(), "", 0.0
    to = console(err=err)

    def line(text: str) -> str:
        return f"{indent}{time.monotonic() - begun:.0f} s: {escape_control(text)}"

    def print_change(text: str) -> None:
        nonlocal last, at
        kind = _FIGURES.sub("#", text)
        if kind != last or time.monotonic() - at >= _SAID_AGAIN:
            last, at = kind, time.monotonic()
            say(line(text), err=err)

    if not to.is_terminal:
        yield print_change
        return
    with Live(console=to, transient=True) as live:
        yield lambda text: live.update(Text(line(text)), refresh=True)


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print a value as JSON, with times in ISO 8601, and paths and other types as text."""
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=plain_data))


def plain_table(*columns: str, right: Container[str] = ()) -> Table:
    """Return a rich table without borders, with the columns in `right` aligned to the right."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


class LongTable:
    """A table that prints many rows faster than rich, which takes a millisecond per row.

    `table` is a rich table with the columns and no rows.
    """

    def __init__(self, table: Table, rows: Sequence[Sequence[str]]) -> None:
        self._table, self._rows = table, rows
        self._columns = [_ColumnCells(cells) for cells in zip(*rows, strict=True)]
        if rows:
            table.add_row(*self._columns)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType | Segment]:
        from rich.segment import Segment, Segments

        lines = console.render_lines(self._table, options, pad=False, new_lines=True)
        for line in lines[:-1] if self._rows else lines:
            yield Segments(line)
        justified = [column.justify for column in self._table.columns]
        widths = [column.width for column in self._columns]
        for row in self._rows:
            places = zip(row, widths, justified, strict=True)
            cells = [_cell_lines(console, *place) for place in places]
            for parts in zip_longest(*cells):
                known = zip(parts, widths, strict=True)
                texts = (" " * width if part is None else part for part, width in known)
                yield Segment("".join(f"{text}  " for text in texts) + "\n")


class _ColumnCells:
    """An empty cell that stands for all cells of a column, and tells rich their width."""

    def __init__(self, cells: Iterable[str]) -> None:
        self._cells, self.width = {*cells}, 0
        self._size: Measurement | None = None

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        if self._size is None:
            sizes = [_cell_widths(cell, console) for cell in self._cells]
            self._size = Measurement(*(max(each) for each in zip(*sizes, strict=True)))
        return self._size

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[str]:
        self.width = options.max_width
        yield ""


def _cell_widths(cell: str, console: Console) -> tuple[int, int]:
    """Return the widths of a cell's longest word and longest line."""
    if _is_plain(cell):
        return max(map(len, cell.split()), default=len(cell)), len(cell)
    from rich.text import Text

    return Text(cell).__rich_measure__(console, console.options)


def _is_plain(cell: str) -> bool:
    return cell.isascii() and cell.isprintable()


def _cell_lines(console: Console, cell: str, width: int, justify: JustifyMethod) -> list[str]:
    if _is_plain(cell) and len(cell) <= width:
        return [cell.rstrip().rjust(width) if justify == "right" else cell.ljust(width)]
    from rich.text import Text

    return [
        line.plain for line in Text(cell).wrap(console, width, justify=justify, overflow="fold")
    ]


def pairs(values: Mapping[str, object], digits: int) -> str:
    """Return `name=value` for each value, with floats rounded to `digits` significant digits."""
    return "  ".join(
        f"{name}={value:.{digits}g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    )


def keep_numbers_whole(table: Table) -> None:
    """Prevent a narrow terminal from wrapping cells of right-aligned columns."""
    for column in table.columns:
        if column.justify == "right":
            column.min_width = _widest_cell(column.cells)


def cut_to_width(text: str, style: str = "") -> Text:
    """Return `text` as a cell of one line, which is cut if the column is too narrow."""
    from rich.text import Text

    return Text(" ".join(text.split()), style, no_wrap=True, overflow="ellipsis")


def with_hint_if_cut(table: Table, hint: str) -> Fitting:
    """Return `table`, followed by the line `hint` if the terminal is too narrow for some cells."""
    from rich.console import Group
    from rich.text import Text

    return Fitting(lambda whole: table if whole else Group(table, Text(hint, "dim")))


class Fitting:
    """A table that is shown in full on a wide enough terminal, otherwise in a narrower form."""

    def __init__(self, table: Callable[[bool], RenderableType]) -> None:
        """Take a function that returns the full table for True, and a narrower one for False."""
        self._table = table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.measure import Measurement

        table, room = self._table(True), options.max_width  # noqa: FBT003 - its only argument
        unsqueezed = options.update_width(UNSQUEEZED)
        fits = room == UNSQUEEZED or Measurement.get(console, unsqueezed, table).maximum <= room
        yield table if fits else self._table(False)  # noqa: FBT003


def keep_widths(table: Table, widths: dict[str, int]) -> None:
    """Prevent columns, except the first, from getting narrower when a table is printed again.

    `widths` has the greatest width of each column so far, by title. The call updates it. The table
    must have its rows already.
    """
    for column in table.columns[1:]:
        title = str(column.header)
        now = _widest_cell([column.header, *column.cells])
        widths[title] = column.min_width = max(now, widths.get(title, 0))


def _widest_cell(cells: Iterable[RenderableType]) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    sizes = (Measurement.get(console, console.options, cell).maximum for cell in cells)
    return max(sizes, default=0)
