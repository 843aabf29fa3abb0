"""docs/reference/modules.md: every source file, with the first line of its docstring or comment."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.docs.site import ROOT
from tests.docs.tables import plain

FOLDERS = ("workflows", "optimizer", "nodes", "infra", "templates", "src/trialfleet")
SUFFIXES = {".py", ".j2", ".js", ".cpp", ".cu", ".cuh", ".h"}
_WITHOUT = {"examples", "vendor", "optunahub", "__pycache__"}
# The first comment of a template or of a C++ source.
_COMMENT = re.compile(r"(?:#!.*\n)?(?:\{#|#|//) +([^{}\n]+?\w[.)]?)(?: +#\})?\n")


def page() -> str:
    """Return the files by folder."""
    found: dict[Path, list[str]] = defaultdict(list)
    for file in _files():
        if words := _first_line(file):
            line = f"- `{file.name}`: {plain(words)}"
            found[file.parent.relative_to(ROOT)].append(line)
    return "\n\n".join(f"## {folder}/\n\n" + "\n".join(lines) for folder, lines in found.items())


def _files() -> Iterator[Path]:
    for top in FOLDERS:
        found = (ROOT / top).glob("*.py") if top.startswith("src") else (ROOT / top).rglob("*.*")
        for file in sorted(found, key=lambda file: (file.parent.parts, file.name)):
            if file.suffix in SUFFIXES and not _WITHOUT & set(file.parts):
                yield file


def _first_line(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "\n").splitlines()[0].rstrip(".")
    first = _COMMENT.match(text)
    return first[1].rstrip(".") if first else ""
