"""Generated parts of docs/ are up to date, and every command, option and key is explained."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import __main__ as program
from tests.docs import commands, keys, site
from trialfleet.nodes.trial import Trial


def test_the_generated_pages_are_up_to_date() -> None:
    assert program.stale() == [], "run: make docs-reference"


def test_every_command_is_there_with_each_of_its_options() -> None:
    page = (site.DOCS / "reference/commands.md").read_text(encoding="utf-8")
    for context in commands.walk():
        section = page.split(f" `{context.command_path}`\n")[1].split("\n##")[0]
        for option in commands.options(context.command):
            assert option.help, f"{context.command_path} {option.name} has no help"
            assert all(name in section for name in option.opts), option.name


def test_every_key_has_a_meaning() -> None:
    found = keys.sections()
    silent = [
        f"{name}.{key}"
        for name, section in found.items()
        for key, schema in section.get("properties", {}).items()
        if not keys.meaning(schema, found)
    ]
    assert not silent, "give them Field(description=…)"


def test_the_page_lists_exactly_the_public_attributes_of_a_trial(tmp_path: Path) -> None:
    """Each attribute and method of `trial.Trial`, a method with its arguments."""
    made = Trial(tmp_path, {})
    there = {
        f"{name}{_arguments(value)}" if callable(value) else name
        for name in dir(made)
        if not name.startswith("_")
        for value in [getattr(made, name)]
    }
    page = (site.DOCS / "trainers.md").read_text(encoding="utf-8")
    tables = page.split("Attributes of a trial")[1].split("The study names the program")[0]
    cells = re.findall(r"^\| (`.+?) \|", tables, re.MULTILINE)
    assert {name for cell in cells for name in re.findall("`(.+?)`", cell)} == there


def _arguments(method: Callable[..., object]) -> str:
    parameters = inspect.signature(method).parameters.values()
    return f"({', '.join(str(p.replace(annotation=p.empty, default=p.empty)) for p in parameters)})"


def test_the_navigation_has_every_page_once() -> None:
    files = [page.file for page in site.pages()]
    there = {str(path.relative_to(site.DOCS)) for path in site.DOCS.rglob("*.md")}
    assert sorted(files) == sorted(there)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """A link or an anchor that leads nowhere is one."""
    shutil.copytree(site.DOCS, tmp_path / "docs")
    shutil.copy(site.CONFIGURATION, tmp_path)
    zensical = str(Path(sys.executable).with_name("zensical"))
    command = [zensical, "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = tmp_path / "build/site"
    assert (built / "llms.txt").read_text(encoding="utf-8") == site.llms_text()
    assert [page.url for page in site.pages() if not (built / page.url).exists()] == []


def test_every_page_opens_with_a_sentence() -> None:
    for page in site.pages():
        assert page.opening.endswith("."), page.file


OUTSIDE = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")


@pytest.mark.parametrize("name", OUTSIDE)
def test_links_within_the_repository_lead_somewhere(name: str) -> None:
    """The site's build checks those of docs/; an anchor is that of a heading."""
    text = (site.ROOT / f"{name}.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (site.ROOT / link.partition("#")[0]).exists()] == []
    for file, _, anchor in (link.partition("#") for link in links if "#" in link):
        headings = re.findall(r"^#+ (.+)$", (site.ROOT / file).read_text(encoding="utf-8"), re.M)
        anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
        assert anchor in anchors, f"{file}#{anchor}"
