"""Study files for the tests: a small valid one, and the errors of a changed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialfleet.errors import InputError
from trialfleet.workflows.study.loading import load_study

MINIMAL = """\
name: demo
regions: [A, NO]
objective: {metric: loss, direction: minimize}
search_space:
  x: {type: float, low: 0.0, high: 1.0}
  epochs: 3
trainer: {command: [sh, go.sh], files: [go.sh]}
accelerator: cpu
"""
TRAINER = "trainer: {command: [sh, go.sh], files: [go.sh]}"
OBJECTIVE = "objective: {metric: loss, direction: minimize}"
REGIONS = "regions: [A, NO]"


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def with_line(old: str, new: str) -> str:
    assert old in MINIMAL
    return MINIMAL.replace(old, new)


def error_of(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        load_study(write(folder, text))
    return str(caught.value)


def write_sif(file: Path) -> Path:
    """Write what begins as a SIF file does."""
    file.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\0")
    return file
