"""What commands print with: the terminal, and JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

UNSQUEEZED = 160  # columns for a file or a pipe: a table is not cut to the 80 of an old terminal


def console() -> Console:
    """Return the terminal, or what stands for it when the output goes elsewhere."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNSQUEEZED
    return made


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print a value as JSON; what JSON doesn't know (paths, times) as text."""
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=str))
