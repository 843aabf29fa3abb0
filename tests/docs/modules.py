"""docs/reference/modules.md: every module of the sources, with the first line of its docstring."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.docs.site import ROOT
from tests.docs.tables import plain

FOLDERS = ("workflows", "optimizer", "nodes", "infra")


def page() -> str:
    """Return the modules by folder."""
    found: dict[Path, list[str]] = defaultdict(list)
    for folder, name, words in _modules():
        found[folder].append(f"- `{name}`: {plain(words)}")
    return "\n\n".join(f"## {folder}/\n\n" + "\n".join(lines) for folder, lines in found.items())


def _modules() -> Iterator[tuple[Path, str, str]]:
    """Yield each module's folder and name, and its docstring's first line."""
    files = [file for top in FOLDERS for file in sorted((ROOT / top).rglob("*.py"))]
    shared = sorted((ROOT / "src" / "trialfleet").glob("*.py"))
    for file in sorted(files, key=lambda file: (file.parent.parts, file.name)) + shared:
        words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if words and "examples" not in file.parts and "__pycache__" not in file.parts:
            yield file.parent.relative_to(ROOT), file.name, words.splitlines()[0].rstrip(".")
