"""Tables of Markdown, with cells that may hold any text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown, without a line break at its end."""
    lines = [head, ["---"] * len(head), *([in_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_cell(text: str) -> str:
    """Return a text as a cell of a table may hold it."""
    return " ".join(text.split()).replace("|", "\\|")


def plain(text: str) -> str:
    """Return a text in which nothing is taken for HTML or emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*")
