"""requirements.lock, which `make lock` writes: it meets the requirements that it is made from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())
APART = ["torch"]  # installed by infra/install_torch.py


def locked() -> dict[str, str]:
    """Return the versions that the lock gives this Python, by package."""
    lines = re.findall(r"^(\S+==[^\\\n]+)", LOCK, re.MULTILINE)
    pins = [Requirement(line) for line in lines]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    return {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in here}


def declared() -> list[str]:
    project = DECLARED["project"]
    extras = project["optional-dependencies"]
    groups = [*extras["docs"], *extras["flights"], *extras["postgresql"], *extras["test"]]
    return [*project["dependencies"], *groups, *DECLARED["dependency-groups"]["lock"]]


def unmet(requirements: Iterable[str]) -> list[str]:
    """Return the requirements that the lock doesn't meet."""
    pins = locked()
    wanted = [Requirement(line) for line in requirements]
    here = [need for need in wanted if need.marker is None or need.marker.evaluate({"extra": ""})]
    return [
        str(need)
        for need in here
        if need.name not in APART
        and not need.specifier.contains(pins.get(canonicalize_name(need.name), "0"))
    ]


def test_the_lock_meets_the_requirements_of_the_project() -> None:
    assert unmet(declared()) == []


@pytest.mark.slow
def test_the_lock_meets_the_requirements_of_its_own_packages() -> None:
    """So pip, which loads nothing that the lock doesn't name, finds everything."""
    needs = {name: metadata.requires(name) or [] for name in locked()}
    assert {name: unmet(lines) for name, lines in needs.items() if unmet(lines)} == {}


def test_the_lock_meets_the_requirements_of_torch_on_a_cpu() -> None:
    needs = metadata.requires("torch") or []
    assert needs
    assert unmet(line for line in needs if not line.startswith(("nvidia", "cuda", "triton"))) == []


def test_the_lock_for_users_is_a_part_of_the_full_lock() -> None:
    run = (ROOT / "requirements-run.lock").read_text()
    entries = [set(re.findall(r"^\S+==[^\\\n]+", text, re.MULTILINE)) for text in (run, LOCK)]
    names = [{entry.partition("==")[0] for entry in found} for found in entries]
    assert names[0] < names[1]
    versions = [{entry.partition(" ")[0] for entry in found} for found in entries]
    assert versions[0] <= versions[1]
    needed = [*DECLARED["project"]["dependencies"], *DECLARED["dependency-groups"]["lock"]]
    wanted = {canonicalize_name(Requirement(line).name) for line in needed} - set(APART)
    assert wanted <= {canonicalize_name(name.partition("[")[0]) for name in names[0]}
    assert "file:" not in run
    assert "index-url" not in run


def test_every_package_has_hashes() -> None:
    entries = re.findall(r"^\S+==.*(?:\n +--hash.*)*", LOCK, re.MULTILINE)
    assert len(entries) > 100
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("place", ["://", "file:", "--find-links", "index-url", "/opt/", "/home/"])
def test_the_lock_contains_no_paths_or_urls(place: str) -> None:
    assert place not in LOCK


def test_every_range_has_an_upper_bound() -> None:
    ranges = [Requirement(line) for line in declared()]
    unbounded = [
        str(need)
        for need in ranges
        if not any("<" in s.operator or s.operator[:1] == "=" for s in need.specifier)
    ]
    assert unbounded == []
