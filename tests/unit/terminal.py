"""The text that rich prints on a terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType


def printed(view: RenderableType, width: int = 200) -> str:
    """Return what a terminal of this width shows of a view, without colours."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get()
