"""Slugs: the names of regions as DAGMan, HTCondor and the file system get them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialfleet.workflows.names import check_region_name, region_slug

NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=200
)


@pytest.mark.parametrize("name", ["JFK", "eu-west_1", "NO", "0"])
def test_a_plain_name_is_its_own_slug(name: str) -> None:
    assert region_slug(name) == name


@pytest.mark.parametrize("name", ["parent", "CHILD", "All_Nodes", "optimizer", "a.b", "a b", "é"])
def test_a_name_that_a_dag_would_misread_is_changed(name: str) -> None:
    assert region_slug(name) != name


def test_a_name_that_is_not_utf_8_has_a_slug_too() -> None:
    assert re.fullmatch(r"region-[0-9a-f]{8}", region_slug("\udcff"))


@given(name=NAMES)
def test_every_slug_is_plain_ascii_and_short(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}", region_slug(name))


@given(names=st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_different_names_have_different_slugs(names: list[str]) -> None:
    assert region_slug(names[0]) != region_slug(names[1])


@pytest.mark.parametrize(
    "name", ["", " a", "a\n", "a\tb", "a\u2028b", "x" * 201, "a\x00", "/a", ".a", "s3://a"]
)
def test_invalid_region_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="region name"):
        check_region_name(name)
