"""Folders of the code are small, and imports between them go in one direction."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOP = ("infra", "nodes", "optimizer", "workflows")
# Each folder of workflows imports only those before it; ARCHITECTURE.md describes them.
ORDER = ("study", "tables", "facts", "rules", "status", "views", "control", "cli")
# How the names of functions begin that look at the world, and modules that do little else.
READS = re.compile(r"(read|open|exists|is_file|is_dir|stat|glob|iterdir|now|look_up|query)")
READERS = {
    "os",
    "shutil",
    "socket",
    "sqlite3",
    "subprocess",
    "time",
    "trialfleet",
    "trialfleet.files",
}
MOST = 16  # Python files in a folder, without its __init__.py
Name = tuple[str, ...]  # the parts of a module's or folder's dotted name below trialfleet


def modules() -> dict[Name, Path]:
    """Return every module of the library but the examples, which stand alone."""
    found = {}
    for path in (path for top in TOP for path in (ROOT / top).rglob("*.py")):
        *folders, name = path.relative_to(ROOT).with_suffix("").parts
        if "examples" not in folders:
            found[(*folders,) if name == "__init__" else (*folders, name)] = path
    return found


def imported(path: Path, known: dict[Name, Path]) -> Iterator[Name]:
    """Yield what a module imports of the library, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trialfleet."):
            package = tuple((node.module or "").split(".")[1:])
            for name in node.names:
                yield (*package, name.name) if (*package, name.name) in known else package


def diverging_folders(one: Name, other: Name) -> tuple[Name, Name]:
    """Return the folders of two modules that lie side by side in one; modules are their own."""
    common = 0
    while one[: common + 1] == other[: common + 1] and common < min(len(one), len(other)):
        common += 1
    return one[: common + 1], other[: common + 1]


@pytest.mark.slow
def test_no_two_folders_import_each_other() -> None:
    known = modules()
    crossings: dict[tuple[Name, Name], list[str]] = defaultdict(list)
    for module, path in known.items():
        for other in imported(path, known):
            ends = diverging_folders(module, other)
            if ends[0] != ends[1] and all(ROOT.joinpath(*end).is_dir() for end in ends):
                crossings[ends].append(f"{'.'.join(module)} imports {'.'.join(other)}")
    mutual = {ends: crossings[ends] for ends in crossings if ends[::-1] in crossings}
    assert len(crossings) > 50
    assert not mutual


@pytest.mark.slow
def test_folders_of_workflows_import_only_folders_that_precede_them() -> None:
    known = modules()
    place = {name: index for index, name in enumerate(ORDER)}
    parts = {module[1] for module in known if module[0] == "workflows" and len(module) > 2}
    assert parts == {*ORDER}
    wrong = [
        f"{'.'.join(module)} imports {'.'.join(other)}"
        for module, path in known.items()
        for other in imported(path, known)
        if module[0] == other[0] == "workflows" and len(module) > 2 < len(other)
        if place[module[1]] < place.get(other[1], -1)  # the examples
    ]
    assert not wrong


def test_rules_read_nothing() -> None:
    rules = sorted((ROOT / "workflows/rules").glob("[!_]*.py"))
    assert len(rules) > 5
    for path in rules:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        asked = {call for call in calls if READS.match(call.rpartition(".")[2])}
        whole = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not asked | (whole | parts) & READERS, path.name


def test_folders_are_small() -> None:
    folders = {path.parent for top in TOP for path in (ROOT / top).rglob("__init__.py")}
    sizes = {str(each.relative_to(ROOT)): len(list(each.glob("[!_]*.py"))) for each in folders}
    assert not {folder: size for folder, size in sizes.items() if size > MOST}


@pytest.mark.slow
def test_no_module_gives_a_constant_two_values() -> None:
    for path in modules().values():
        values = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        names = [name.id for node in values for name in node.targets if isinstance(name, ast.Name)]
        assert len(names) == len(set(names)), path
