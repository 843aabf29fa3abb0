"""`make fuzz`: the keys that it generates, some of its cases, and which texts are findings."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tests import fuzz
from tests.docs.keys import sections
from tests.fuzz import generate
from tests.fuzz.__main__ import place
from tests.fuzz.check import CASES, assert_clear, assert_safe, furnish
from trialfleet.workflows.study import export
from trialfleet.workflows.study.loading import load_study

ROOT = Path(fuzz.__file__).parents[2]


def test_every_key_of_a_study_is_generated() -> None:
    generated = set(keys_in([generate.STUDIES, generate.FLEET]))
    keys = {key for section in sections().values() for key in section.get("properties", {})}
    assert sorted(keys - generated) == []


def keys_in(tree: object) -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield key
        yield from keys_in(value)
    for value in tree if isinstance(tree, list) else ():
        yield from keys_in(value)


@pytest.mark.parametrize("text", [*map(json.dumps, generate.STUDIES)])
def test_generated_studies_are_valid_before_they_are_changed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "NEEDED", "json")  # not everybody has MLflow
    furnish(tmp_path)
    (tmp_path / "study.yaml").write_text(text)
    load_study(tmp_path / "study.yaml", date.fromisoformat(generate.DAY))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_some_cases_of_each_kind_end_well(kind: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        done = few_cases(kind, folder, tmp_path)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["case"] for line in records if "case" in line] == list(range(25)), done.stderr
    assert [line["traceback"] for line in records if "failed" in line] == []
    assert done.returncode == 0, done.stderr


def few_cases(kind: str, folder: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.worker", kind, "0", "0", "25", folder],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TRIALFLEET_POOL": str(home / "none")},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Traceback (most recent call last):",
        "1 validation error: [type=x, input_value=1] see pydantic",
        "a\x1b[31mred",
        f"the storage {generate.PASSWORD} is away",
        "study.yaml:1: :",
        "x" * 20_000,
    ],
)
def test_a_message_that_is_not_clear_is_a_finding(message: str) -> None:
    with pytest.raises(AssertionError):
        assert_clear(message)


def test_a_text_with_control_characters_is_a_finding() -> None:
    assert_safe("study.yaml:1: name: must be text\nand one more")
    with pytest.raises(AssertionError):
        assert_safe("\u202e")
