"""What becomes of an attempt, by its exit code and what it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialfleet.workflows.folder import TrialFolder
from trialfleet.workflows.outcome import Complete, Failed, judge, last_line

COMPLETE = '{"schema": 1, "status": "complete", "metrics": {"auc": 0.5, "n": 3}, "seconds": 2}'

HELD_LOG = """\
000 (007.000.000) 2026-11-20 10:00:00 Job submitted from host: <127.0.0.1:1>
...
012 (007.000.000) 2026-11-20 10:00:05 Job was held.
\t{reason}
\tCode {code} Subcode 0
...
009 (007.000.000) 2026-11-20 10:00:06 Job was aborted.
\tThe job attribute PeriodicRemove expression evaluated to TRUE
...
"""


@pytest.fixture
def folder(tmp_path: Path) -> TrialFolder:
    return TrialFolder(tmp_path)


def test_a_result_with_the_objective_completes(folder: TrialFolder) -> None:
    folder.result.write_text(COMPLETE)
    assert judge(folder, 0, "auc") == Complete(
        metrics={"auc": 0.5, "n": 3.0}, seconds=2.0, device=None
    )


@pytest.mark.parametrize(
    ("text", "words", "final"),
    [
        ("", "without writing", False),
        ("{", "not JSON", False),
        ("[]", "no result", False),
        ('{"status": "complete", "metrics": []}', "no result", False),
        ('{"status": "complete", "metrics": {}}', "it has: none", True),
        ('{"status": "complete", "metrics": {"loss": 1}}', "it has: loss", True),
        ('{"status": "complete", "metrics": {"auc": NaN}}', "auc is nan", True),
        ('{"status": "complete", "metrics": {"auc": -Infinity}}', "auc is -inf", True),
        ('{"status": "complete", "metrics": {"auc": "0.9"}}', "no number 'auc'", True),
        ('{"status": "complete", "metrics": {"auc": true}}', "no number 'auc'", True),
        ('{"status": "failed", "error": "too deep"}', "too deep", True),
        ('{"metrics": {"auc": 1}}', "status None", True),
    ],
)
def test_a_wrong_result_fails_with_its_reason(
    folder: TrialFolder, text: str, words: str, final: bool
) -> None:
    folder.result.write_text(text)
    outcome = judge(folder, 0, "auc")
    assert isinstance(outcome, Failed)
    assert words in outcome.error
    assert outcome.final is final


def test_bytes_that_are_no_text_fail(folder: TrialFolder) -> None:
    folder.result.write_bytes(b"\xff\xfe\x00")
    assert isinstance(judge(folder, 0, "auc"), Failed)


def test_an_exit_code_is_tried_again_and_told_with_the_last_words(folder: TrialFolder) -> None:
    folder.err.write_text("Traceback\nValueError: no\n\n")
    assert judge(folder, 1, "auc") == Failed(error="exit code 1: ValueError: no", final=False)
    assert judge(folder, -9, "auc") == Failed(error="signal 9: ValueError: no", final=False)


def test_exit_64_is_final(folder: TrialFolder) -> None:
    folder.result.write_text('{"status": "failed", "error": "diverged"}')
    assert judge(folder, 64, "auc") == Failed(error="diverged", final=True)


@pytest.mark.parametrize(("code", "final"), [(47, True), (3, True), (34, True), (12, False)])
def test_a_removed_job_tells_its_hold(folder: TrialFolder, code: int, final: bool) -> None:
    folder.log.write_text(HELD_LOG.format(reason="it ran too long", code=code))
    assert judge(folder, -1001, "auc") == Failed(error="it ran too long", final=final)


def test_a_hold_of_an_attempt_before_is_not_blamed(folder: TrialFolder) -> None:
    folder.log.write_text(
        HELD_LOG.format(reason="it ran too long", code=47)
        + "000 (008.000.000) 2026-11-20 10:01:00 Job submitted from host: <127.0.0.1:1>\n...\n"
        "009 (008.000.000) 2026-11-20 10:01:06 Job was aborted.\n\tvia condor_rm\n...\n"
    )
    assert judge(folder, -1001, "auc") == Failed(error="via condor_rm", final=False)


def test_the_last_line_of_a_long_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("x\n" * 100_000 + "the end\n")
    assert last_line(tmp_path / "err") == "the end"
    assert last_line(tmp_path / "missing") == ""
