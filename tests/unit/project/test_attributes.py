"""The table of ClassAd attributes names every attribute that code and templates write or read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialfleet import attributes

ROOT = Path(__file__).parents[3]
NAMES = {attribute.name for attribute in attributes.ALL}
OURS = re.compile(r"\b(?:Chirp)?Trialfleet(?!Error\b)[A-Z]\w*|\b\w*HAS_GPU\b")
# Code that makes an attribute of a job or of a machine, with any name.
MADE = re.compile(
    r"^(?:My\.|\+|SET_JOB_ATTR +)(\w+) *="
    r"|^STARTD_ATTRS *= *\$\(STARTD_ATTRS\) ([\w ]+?) *(?:\{.*)?$",
    re.MULTILINE,
)


def sources() -> Iterator[tuple[str, str]]:
    """Yield the files that could name an attribute, and what they hold."""
    for folder in ("templates", "nodes", "optimizer", "infra", "workflows"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".j2", ".sh", ".R"} and "vendor" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_attribute_is_listed_twice() -> None:
    assert len(attributes.ALL) == len(NAMES)


@pytest.mark.slow
def test_the_table_lists_every_attribute_that_the_code_uses() -> None:
    missing = {
        f"{place}: {name}" for place, text in sources() for name in set(OURS.findall(text)) - NAMES
    }
    assert not missing, "describe them in src/trialfleet/attributes.py, then: make docs-reference"


def test_the_table_lists_every_attribute_that_a_template_sets() -> None:
    made = {
        name
        for place, text in sources()
        if place.startswith("templates/")
        for one, several in MADE.findall(text)
        for name in (one, *several.split())
        if name
    }
    assert {"TrialfleetMemoryKb", "TrialfleetRegion", "HAS_GPU"} <= made
    assert made <= NAMES


@pytest.mark.slow
def test_every_attribute_of_the_table_is_used() -> None:
    written = "\n".join(text for place, text in sources())
    fixed = {a.name for a in attributes.INSTANCE}  # node.conf.j2 lists them by this table
    assert {name for name in NAMES if not re.search(rf"\b{name}\b", written)} <= fixed


def test_every_attribute_says_what_it_means() -> None:
    for attribute in attributes.ALL:
        assert attribute.meaning.endswith("."), attribute.name
        assert re.match(r"(text|boolean|number)\b", attribute.kind), attribute.name
