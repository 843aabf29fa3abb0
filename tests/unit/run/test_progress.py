"""Contents of a trial's reports, whatever its trainer wrote."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from trialfleet import untrusted_files
from trialfleet.workflows.facts.jobs.progress import last_report, read_reports


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "progress.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def report(step: object, **metrics: object) -> str:
    return json.dumps({"step": step, "metrics": metrics, "time": 1.0})


def test_the_last_report_of_each_step_counts(tmp_path: Path) -> None:
    path = write(tmp_path, report(1, auc=0.5, loss=2), report(2, auc=0.6), report(1, auc=0.7))
    assert read_reports(path, "auc") == {1: 0.7, 2: 0.6}
    assert last_report(path, "auc") == (1, 0.7)


def test_reports_are_read_again_only_after_a_change(tmp_path: Path) -> None:
    path = write(tmp_path, report(1, auc=0.5))
    read_reports(path, "auc").clear()
    assert read_reports(path, "auc") == {1: 0.5}
    with path.open("a") as file:
        file.write(f"{report(2, auc=0.6)}\n")
    assert read_reports(path, "auc") == {1: 0.5, 2: 0.6}


def test_a_value_that_is_no_number_is_nan_and_infinity_stays(tmp_path: Path) -> None:
    lines = [report(1, auc=None), report(2, auc=math.inf), report(3, auc=math.nan),
             report(4, auc="x"), report(5, auc=10**400)]  # fmt: skip
    found = read_reports(write(tmp_path, *lines), "auc")
    assert found[2] == math.inf
    assert [step for step in found if math.isnan(found[step])] == [1, 3, 4, 5]
    assert last_report(tmp_path / "progress.jsonl", "auc") == (5, None)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "3", '{"metrics": {"auc": 1}}', report(-1, auc=1), report(1.5, auc=1),
     report("1", auc=1), '{"step": true, "metrics": {"auc": 1}}', report(2**31, auc=1),
     report(10**400, auc=1), report(math.nan, auc=1), '{"step": 1, "metrics": 3}', "[" * 5000,
     "9" * 5000],
)  # fmt: skip
def test_invalid_reports_are_left_out(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, report(7, auc=0.5), line)
    assert read_reports(path, "auc") == {7: 0.5}
    assert last_report(path, "auc") == (7, 0.5)


def test_a_step_may_be_an_integral_float_and_a_report_may_lack_the_metric(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, report(3.0, auc=0.5), report(4, loss=0.1), '{"step": 5}')
    assert read_reports(path, "auc") == {3: 0.5}
    assert last_report(path, "auc") == (5, None)


def test_bytes_that_are_no_text_and_an_unfinished_line_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, report(1, auc=0.5))
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n{"step": 2, "metr')
    assert read_reports(path, "auc") == {1: 0.5}
    assert last_report(path, "auc") == (1, 0.5)


def test_only_the_end_of_a_very_long_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted_files, "MOST_REPORTS", 200)
    path = write(tmp_path, *(report(step, auc=step / 100) for step in range(100)))
    found = read_reports(path, "auc")
    assert 99 in found
    assert len(found) < 6


def test_without_a_file_there_are_no_reports(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        assert read_reports(tmp_path / name, "auc") == {}
        assert last_report(tmp_path / name, "auc") is None
