"""Commands of README and docs can be typed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TYPED = re.compile(r"^(sudo |\S*/)?(git|make|trialfleet|python3?|eval|pip|\.) .*", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_has_dots_in_place_of_a_word(page: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    commands = [found[0] for block in blocks for found in TYPED.finditer(block)]
    assert [command for command in commands if "…" in command.split("#")[0]] == []


EXAMPLES = sorted((ROOT / "workflows" / "examples").glob("*/README.md"))


@pytest.mark.parametrize(
    "page", [*PAGES, *EXAMPLES], ids=lambda page: f"{page.parent.name}-{page.name}"
)
def test_a_command_that_reads_models_names_the_study_too(page: Path) -> None:
    """Once a second study has such a region, a cron job that names no study ends in an error."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    words = r"^trialfleet (?:predict|rollback|models|export) ([\w./-]+)"
    named = [name for block in blocks for name in re.findall(words, block, re.MULTILINE)]
    assert [name for name in named if "/" not in name and not name.endswith(".yaml")] == []


def test_the_first_page_leads_to_every_task() -> None:
    tasks = (
        (ROOT / "mkdocs.yml").read_text().partition("- Tasks:")[2].partition("- GPUs and EC2:")[0]
    )
    pages = re.findall(r": (\S+\.md)$", tasks, re.MULTILINE)
    first = (ROOT / "docs" / "index.md").read_text()
    assert [page for page in pages if f"({page})" not in first] == []
    assert len(pages) > 5


def test_the_clone_command_has_a_placeholder_with_an_explanation() -> None:
    text = (ROOT / "README.md").read_text()
    assert "git clone REPOSITORY trialfleet    # REPOSITORY: " in text


ACTIVATED = [page for page in PAGES if ". .venv/bin/activate" in page.read_text()]


@pytest.mark.parametrize("page", ACTIVATED, ids=lambda page: page.name)
def test_an_environment_is_made_before_it_is_activated(page: Path) -> None:
    assert "make install" in page.read_text().partition(". .venv/bin/activate")[0]


def test_make_install_makes_the_environment_and_nothing_else(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "install", f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"-m venv {tmp_path}" in done.stdout
    assert f"touch {tmp_path}/run" in done.stdout
    assert "pool up" not in done.stdout


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """Packages come from where the user's pip, uv, npm and apt are set up to take them."""
    hosts = r"registry\.npm|npmjs\.(org|com)|pypi\.org|pythonhosted\.org|download\.pytorch\.org"
    hosts += r"|deb\.debian\.org|crates\.io|jsdelivr\.net|unpkg\.com"
    command = ["git", "grep", "--no-index", "--exclude-standard", "-nEI", hosts]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    others = [line for line in found.stdout.splitlines() if "/vendor/" not in line]
    assert [line for line in others if not line.startswith("tests/unit/project/test_readme")] == []


@pytest.mark.parametrize(
    ("name", "fault"), [("a,b", "a comma"), ('a"b', "a double quote"), ("a|b", "'|'")]
)
def test_make_demo_refuses_an_unusable_folder_before_it_installs_anything(
    tmp_path: Path, name: str, fault: str
) -> None:
    clone = tmp_path / name
    clone.mkdir()
    for entry in ("Makefile", "src", "workflows"):
        (clone / entry).symlink_to(ROOT / entry)
    command = ["make", "demo", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert fault in done.stderr
    assert done.returncode == 2
    assert not (tmp_path / "venv").exists()
