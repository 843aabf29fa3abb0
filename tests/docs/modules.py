"""docs/reference/modules.md: each source file, with its first sentence and its public names."""

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
# The comment at the head of a template or of a C++ source, and the first sentence of its text.
_COMMENT = re.compile(r"(?:#![^\n]*\n)?(?:\{#-?(.+?)-?#\}|((?:(?:#|//) [^\n]*\n)+))", re.DOTALL)
_SENTENCE = re.compile(r".+?(?=[.:]? *$|\. )")


def page() -> str:
    """Return the files by folder."""
    found: dict[Path, list[str]] = defaultdict(list)
    for file in _files():
        if words := _first_line(file):
            line = f"- `{file.name}`: {plain(words)}{_names(file)}"
            found[file.parent.relative_to(ROOT)].append(line)
    return "\n\n".join(f"## {folder}/\n\n" + "\n".join(lines) for folder, lines in found.items())


def _files() -> Iterator[Path]:
    for top in FOLDERS:
        found = (ROOT / top).glob("*.py") if top.startswith("src") else (ROOT / top).rglob("*.*")
        for file in sorted(found, key=lambda file: (file.parent.parts, file.name)):
            if file.suffix in SUFFIXES and not _WITHOUT & set(file.parts):
                yield file


def _names(file: Path) -> str:
    """Return the names of a Python module's public functions and classes, as a sentence."""
    if file.suffix != ".py":
        return ""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = [f"`{each.name}`" for each in body if isinstance(each, kinds) and each.name[0] != "_"]
    return f". Names: {', '.join(names)}" if names else ""


def _first_line(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "\n").splitlines()[0].rstrip(".")
    if not (comment := _COMMENT.match(text)):
        return ""
    words = " ".join(re.sub(r"(?m)^(?:#|//) ", "", comment[1] or comment[2]).split())
    first = _SENTENCE.match(words)
    return first[0] if first else ""
