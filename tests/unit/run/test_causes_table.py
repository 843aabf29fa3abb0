"""The table of injected causes: it has at least 40 rows, and some test injects each."""

from __future__ import annotations

import re
from pathlib import Path

from tests.causes import CAUSES
from trialfleet.workflows.views.why.answer import Kind

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "why.md"
PLACES = {"pool": "pool/test_why_causes.py", "aws": "fleet/commands/test_why_fleet.py"}


def test_each_of_at_least_40_causes_is_injected() -> None:
    assert len(CAUSES) >= 40
    for where, file in PLACES.items():
        text = (TESTS / file).read_text()
        rows = [name for name, cause in CAUSES.items() if cause.where == where]
        assert not [name for name in rows if f'"{name}"' not in text]


def test_the_page_lists_exactly_the_kinds_of_causes() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(), re.MULTILINE)
    listed = [word for row in rows for word in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(listed) == sorted(Kind)
