"""The project's pages name only files and folders that exist."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.docs.site import DOCS, ROOT

PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")),
    *sorted(DOCS.rglob("*.md")),
]
TOP = "docs|infra|nodes|optimizer|src|templates|tests|workflows"
# A path from one of the top folders on, or a source file by its name alone or with some folders.
NAMED = re.compile(
    rf"(?<![\w./{{}}:*-])(?:(?:{TOP})/[\w./*-]*[\w/*]|\w[\w/-]*\.(?:py|js|j2|cpp|cu))(?![\w/{{}}])"
)
# A program of a page, and HTCondor's sources.
OTHERS = {
    "NTreceivers.cpp", "condor_rw.cpp", "dag.cpp", "probe.py", "reli_sock.cpp",
    "staging_directory.cpp",
}  # fmt: skip
# A folder by the end of its path, as ARCHITECTURE.md has them.
FOLDER = re.compile(r"(?<![\w./])[a-z]\w*(?:/\w+)*/(?![\w{}])")


@cache
def known() -> set[str]:
    """Return the paths of all files and folders of the project, and each ending of those paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = set()
    for name in filter(None, listed.split("\0")):
        parts = name.split("/")
        if (ROOT / name).exists():
            ends = range(1, len(parts) + 1)
            found |= {"/".join(parts[at:end]) for end in ends for at in range(end)}
    return found


def missing(text: str, files: set[str]) -> set[str]:
    """Return the names in a text that no file or folder of the project has."""
    named = {found[0].rstrip("/") for found in NAMED.finditer(text)} - OTHERS
    return {name for name in named - files if "*" not in name or not list(ROOT.glob(name))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8"), known()) == set()


def test_the_folders_that_the_architecture_page_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = {found[0].rstrip("/") for found in FOLDER.finditer(text)}
    assert len(named) > 20
    assert named - known() == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "`workflows/rules/budget_amounts.py`, `rules/`, tests/unit/ and `sampling/seeds.py`",
            set(),
        ),
        ("`workflows/rules/x.py` of infra/x/", {"workflows/rules/x.py", "infra/x"}),
        (
            "`may_x.py`, `templates/report/scripts/*.x`",
            {"may_x.py", "templates/report/scripts/*.x"},
        ),
    ],
)
def test_the_check_finds_names_of_missing_files(text: str, expected: set[str]) -> None:
    assert missing(text, known()) == expected
