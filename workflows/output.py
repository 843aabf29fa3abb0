"""What commands print with: the terminal, and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Return the terminal, or what stands for it when the output goes elsewhere."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print a value as JSON; what JSON doesn't know (paths, times) as text."""
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=str))
