"""The outcome of an attempt, by its exit code and its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trialfleet.infra.fleet.spec.limits import NO_MONEY
from trialfleet.optimizer.region_types import Complete, Failed, OutOfMoney
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.rules.gang_decision import MACHINE_FAULT
from trialfleet.workflows.status.attempts.outcome import last_line, read_outcome
from trialfleet.workflows.views.why.failure_advice import kind_of_attempt

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
    assert read_outcome(folder, 0, "auc", {}) == Complete(
        metrics={"auc": 0.5, "n": 3.0}, seconds=2.0, device=None
    )


@pytest.mark.parametrize(
    ("text", "words", "final"),
    [
        ("", "without writing", False),
        ("{", "not JSON", True),
        ("[]", "has the wrong form", True),
        ('{"status": "complete", "metrics": []}', "has the wrong form", True),
        ('{"status": "complete", "metrics": {}}', "it has: none", True),
        ('{"status": "complete", "metrics": {"loss": 1}}', "it has: loss", True),
        ('{"status": "complete", "metrics": {"auc": NaN}}', "auc is nan", True),
        ('{"status": "complete", "metrics": {"auc": -Infinity}}', "auc is -inf", True),
        ('{"status": "complete", "metrics": {"auc": "0.9"}}', "'auc' is text: '0.9'", True),
        ('{"status": "complete", "metrics": {"auc": true}}', "'auc' is true or false: True", True),
        ('{"status": "complete", "metrics": {"auc": null}}', "'auc' is null", True),
        ('{"status": "complete", "metrics": {"auc": [0.9]}}', "'auc' is a list: [0.9]", True),
        ('{"status": "complete", "metrics": {"auc": {"a": 1}}}', "'auc' is an object", True),
        ('{"status": "complete", "metrics": {"loss": "0.9"}}', "'loss' is text: '0.9'", True),
        ('{"status": "complete", "auc": "0.9"}', "'auc' is text: '0.9'", True),
        ('{"status": "failed", "error": "too deep"}', "too deep", True),
        ('{"metrics": {"auc": 1}}', "has no status", True),
        ("[" * 200_000, "not JSON", True),
        ('{"a":' * 200_000, "not JSON", True),
        ("9" * 5000, "not JSON", True),
        (f'{{"status": "complete", "metrics": {{"auc": 1{"0" * 400}}}}}', "auc is 1000", True),
        (f'{{"status": "complete", "metrics": {{"{"x" * 900}": 1}}}}', "it has: none", True),
        (f'{{"status": "complete", "metrics": {{"auc": "{"x" * 900}"}}}}', "is text: 'xxx", True),
    ],
)
def test_a_wrong_result_fails_with_its_reason(
    folder: TrialFolder, text: str, words: str, final: bool
) -> None:
    folder.result.write_text(text)
    outcome = read_outcome(folder, 0, "auc", {})
    assert isinstance(outcome, Failed)
    assert words in outcome.error
    assert outcome.final is final
    assert len(outcome.error) <= 300


def test_a_result_may_begin_with_a_byte_order_mark(folder: TrialFolder) -> None:
    folder.result.write_text(COMPLETE, encoding="utf-8-sig")
    assert isinstance(read_outcome(folder, 0, "auc", {}), Complete)


def test_a_result_that_is_not_text_fails(folder: TrialFolder) -> None:
    folder.result.write_bytes(b"\xff\xfe\x00")
    assert isinstance(read_outcome(folder, 0, "auc", {}), Failed)


def test_a_failed_exit_code_is_retried_and_shown_with_the_last_output(folder: TrialFolder) -> None:
    folder.err.write_text("Traceback\nValueError: no\n\n")
    assert read_outcome(folder, 1, "auc", {}) == Failed(
        error="exit code 1: ValueError: no", final=False
    )
    assert read_outcome(folder, -9, "auc", {}) == Failed(
        error="signal 9: ValueError: no", final=False
    )


@pytest.mark.parametrize(("code", "expected"), [(126, "Permission denied"), (127, "not found")])
def test_a_command_that_cant_be_run_is_final(folder: TrialFolder, code: int, expected: str) -> None:
    folder.err.write_text(f"condor_exec.exe: 6: exec: fit: {expected}\n")
    words = f"exit code {code}: condor_exec.exe: 6: exec: fit: {expected}"
    assert read_outcome(folder, code, "auc", {}) == Failed(
        error=words, final=True, never_began=True
    )


def test_an_agents_exit_with_87_is_the_machines_fault(folder: TrialFolder) -> None:
    folder.agent_log.write_text("trialfleet: [Errno 27] File too large\n")
    words = "exit code 87: the machine has a fault: [Errno 27] File too large"
    assert read_outcome(folder, 87, "auc", {}) == Failed(error=words, final=False, by_machine=True)
    folder.agent_log.unlink()
    assert read_outcome(folder, 87, "auc", {}) == Failed(
        error="exit code 87: the machine has a fault", final=False, by_machine=True
    )


def test_a_trainers_exit_with_87_is_its_own_fault(folder: TrialFolder) -> None:
    folder.ended.write_text('{"code": 87, "seconds": 1, "over": null}')
    folder.err.write_text("eighty-seven\n")
    assert read_outcome(folder, 87, "auc", {}) == Failed(
        error="exit code 87: eighty-seven", final=False
    )


def test_exit_64_is_final(folder: TrialFolder) -> None:
    folder.result.write_text('{"status": "failed", "error": "diverged"}')
    assert read_outcome(folder, 64, "auc", {}) == Failed(error="diverged", final=True)


@pytest.mark.parametrize(("code", "final"), [(47, True), (3, True), (34, True), (12, False)])
def test_a_removed_job_shows_the_reason_of_its_hold(
    folder: TrialFolder, code: int, final: bool
) -> None:
    folder.log.write_text(HELD_LOG.format(reason="it ran too long", code=code))
    outcome = read_outcome(folder, -1002, "auc", {})
    assert isinstance(outcome, Failed)
    assert "it ran too long" in outcome.error
    assert outcome.final is final


RELEASED = "013 (007.000.000) 2026-11-20 10:00:05 Job was released.\n\tby a person\n...\n009 "


def test_a_released_hold_is_not_the_reason_of_a_removal(folder: TrialFolder) -> None:
    held = HELD_LOG.format(reason="via condor_hold (by user me)", code=1)
    folder.log.write_text(held.replace("009 ", RELEASED))
    outcome = read_outcome(folder, -1002, "auc", {})
    assert isinstance(outcome, Failed)
    assert "condor_hold" not in outcome.error


PLACES = {"resources.memory": "/s/study.yaml:12"}


@pytest.mark.parametrize(
    ("reason", "code", "expected"),
    [
        (
            "over its memory: used 612 MB of 512 MB",
            3,
            "over its memory: used 612 MB of 512 MB; raise resources.memory in /s/study.yaml:12",
        ),
        (
            "over its disk: used 21 MB of 20 MB",
            3,
            "over its disk: used 21 MB of 20 MB; raise resources.disk in the study",
        ),
        (
            "Job has gone over cgroup memory limit of 512 megabytes. Peak usage: 612 megabytes.",
            34,
            "over its memory: used 612 MB of 512 MB; raise resources.memory in /s/study.yaml:12",
        ),
        ("Transfer output files failure", 12, "Transfer output files failure"),
        ("somebody's own limit", 3, "somebody's own limit"),
    ],
)
def test_a_trial_over_a_limit_is_shown_with_the_setting_to_raise(
    folder: TrialFolder, reason: str, code: int, expected: str
) -> None:
    folder.log.write_text(HELD_LOG.format(reason=reason, code=code))
    outcome = read_outcome(folder, -1002, "auc", PLACES)
    assert isinstance(outcome, Failed)
    assert outcome.error == expected


def test_a_hold_of_an_earlier_attempt_is_ignored(folder: TrialFolder) -> None:
    folder.log.write_text(
        HELD_LOG.format(reason="it ran too long", code=47)
        + "000 (008.000.000) 2026-11-20 10:01:00 Job submitted from host: <127.0.0.1:1>\n...\n"
        "009 (008.000.000) 2026-11-20 10:01:06 Job was aborted.\n\tvia condor_rm\n...\n"
    )
    assert read_outcome(folder, -1002, "auc", {}) == Failed(error="via condor_rm", final=False)


@pytest.mark.parametrize("held", ["", HELD_LOG.format(reason="it ran too long", code=47)])
def test_a_job_that_was_removed_for_lack_of_money_is_distinguished(
    folder: TrialFolder, held: str
) -> None:
    reason = f"{NO_MONEY}the run's cap of $60.00 is reached: $60.01 is spent"
    aborted = f"009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.\n\t{reason} (by user me)\n"
    folder.log.write_text(f"{held}{aborted}...\n")
    assert read_outcome(folder, -1002, "auc", {}) == OutOfMoney(error=reason)


def test_a_gang_whose_machines_have_faults_did_not_fail_by_itself(folder: TrialFolder) -> None:
    reason = f"{MACHINE_FAULT}: it left slot1_1@a"
    aborted = f"009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.\n\t{reason} (by user me)\n"
    folder.log.write_text(f"{aborted}...\n")
    found = read_outcome(folder, -1002, "auc", {})
    assert isinstance(found, Failed)
    assert found.by_machine
    assert reason in found.error


STARTED_WITHOUT_PROGRESS = """\
000 (007.000.000) 2026-11-20 10:00:00 Job submitted from host: <127.0.0.1:1>
...
004 (007.000.000) 2026-11-20 10:00:09 Job was evicted. Code 1008 Subcode 0
\t(0) CPU times
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t0  -  Run Bytes Sent By Job
\t15  -  Run Bytes Received By Job
\tReason: Job not found at execution machine
...
009 (007.000.000) 2026-11-20 10:01:06 Job was aborted.
\t{removal}
...
"""


@pytest.mark.parametrize(
    ("removal", "error"),
    [
        (
            "evicted too often: 5 starts in a row kept no work (by user me)",
            "evicted too often: 5 starts in a row kept no work",
        ),
        (
            "stuck: its job was suspended for 31 min on a (by user me)",
            "stuck: its job was suspended for 31 min on a",
        ),
        (
            "The job attribute PeriodicRemove expression '...' evaluated to TRUE",
            "evicted too often: 1 time(s), soon after each start",
        ),
    ],
)
def test_a_job_without_progress_is_a_failed_attempt_to_retry_on_another_machine(
    folder: TrialFolder, removal: str, error: str
) -> None:
    folder.log.write_text(STARTED_WITHOUT_PROGRESS.format(removal=removal))
    outcome = read_outcome(folder, -1002, "auc", {})
    assert outcome == Failed(error=error, final=False, got_nowhere=True)
    assert kind_of_attempt(error) in {"evictions", "stuck"}


def test_the_last_line_of_a_long_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("x\n" * 100_000 + "the end\n")
    assert last_line(tmp_path / "err") == "the end"
    assert last_line(tmp_path / "missing") == ""


@pytest.mark.parametrize("key", ["status", "error"])
def test_a_result_with_a_deeply_nested_value_fails(
    folder: TrialFolder, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    folder.result.write_text("{}")
    monkeypatch.setattr(json, "loads", lambda _: {key: deep})  # which depth that is, Python decides
    outcome = read_outcome(folder, 0, "auc", {})
    assert isinstance(outcome, Failed)
    assert "a deeply nested list" in outcome.error


def test_a_result_that_is_too_large_is_not_read_to_its_end(folder: TrialFolder) -> None:
    folder.result.write_text(COMPLETE + " " * (1_000_000 - len(COMPLETE)))
    assert isinstance(read_outcome(folder, 0, "auc", {}), Complete)
    with folder.result.open("ab") as file:
        file.truncate(1 << 40)
    assert read_outcome(folder, 0, "auc", {}) == Failed(
        error="result.json is larger than 1,000,000 bytes", final=True
    )


def test_a_pipe_in_place_of_a_result_fails_at_once(folder: TrialFolder) -> None:
    os.mkfifo(folder.result)
    outcome = read_outcome(folder, 0, "auc", {})
    assert outcome == Failed(error="result.json is a pipe", final=True)


@pytest.mark.parametrize("number", ["NaN", "Infinity", f"1{'0' * 400}", '"3"', "true", "-1"])
def test_only_the_numbers_that_can_be_stored_are_kept(folder: TrialFolder, number: str) -> None:
    folder.result.write_text(
        f'{{"status": "complete", "metrics": {{"auc": 1, "n": {number}}}, "seconds": {number}}}'
    )
    outcome = read_outcome(folder, 0, "auc", {})
    kept = {"n": -1.0} if number == "-1" else {}
    assert outcome == Complete(metrics={"auc": 1.0, **kept}, seconds=None, device=None)


def test_a_cleaned_name_of_a_metric_never_becomes_the_objective(folder: TrialFolder) -> None:
    names = {"a\x1b[31mb\ud800\0": 2, "\x1b[0mauc": 3, "x" * 101: 4, " \x1b[0m": 5}
    result = {"status": "complete", "metrics": {"auc": 1, **names}, "device": "c\x1b[1mpu\n\ud800"}
    folder.result.write_text(json.dumps(result))
    assert read_outcome(folder, 0, "auc", {}) == Complete(
        metrics={"auc": 1.0, "ab\ufffd\ufffd": 2.0}, seconds=None, device="cpu \ufffd"
    )


@pytest.mark.parametrize("code", [0, 1, 64])
def test_a_trainers_error_becomes_one_line_that_can_be_stored(
    folder: TrialFolder, code: int
) -> None:
    error = "\x1b[31mred\x1b[0m\n  \ud800 bell\x07\0" + "x" * 1000
    folder.result.write_text(json.dumps({"status": "failed", "error": error}))
    outcome = read_outcome(folder, code, "auc", {})
    assert isinstance(outcome, Failed)
    assert "red \ufffd bell\ufffd\ufffdx" in outcome.error
    assert outcome.error.isprintable()
    assert len(outcome.error) <= 320
    assert outcome.error.encode()


@pytest.mark.parametrize("text", ["[" * 200_000, '{"error": "a"' + " " * 1_000_000 + "}", "[1]"])
def test_standard_error_is_shown_if_the_result_is_unusable(folder: TrialFolder, text: str) -> None:
    folder.result.write_text(text)
    folder.err.write_text("out of memory")
    assert read_outcome(folder, 1, "auc", {}) == Failed(
        error="exit code 1: out of memory", final=False
    )


def test_the_last_line_is_cleaned(tmp_path: Path) -> None:
    (tmp_path / "err").write_bytes(b"no\n\x1b[31mError: \xff\x07\x1b[0m\r\n\x1b[0m\n")
    assert last_line(tmp_path / "err") == "Error: \ufffd\ufffd"
    (tmp_path / "err").write_text("x" * 1000 + " the end")
    assert last_line(tmp_path / "err").endswith("xx the end")
    assert len(last_line(tmp_path / "err")) == 300


def test_the_reason_of_a_hold_is_cleaned(folder: TrialFolder) -> None:
    folder.log.write_text(HELD_LOG.format(reason="\x1b[31mno " + "x" * 1000, code=12))
    outcome = read_outcome(folder, -1002, "auc", {})
    assert isinstance(outcome, Failed)
    assert outcome.error == ("no " + "x" * 1000)[:300]


@pytest.mark.parametrize("error", [" ", "\x1b[0m", "\n\t"])
def test_an_empty_error_is_ignored(folder: TrialFolder, error: str) -> None:
    folder.result.write_text(json.dumps({"status": "failed", "error": error}))
    folder.err.write_text("out of memory")
    outcome = read_outcome(folder, 0, "auc", {})
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("result.json has status 'failed'")
    assert read_outcome(folder, 64, "auc", {}) == Failed(error="out of memory", final=True)


def test_the_error_shows_that_a_trainer_did_not_exit_after_its_result(folder: TrialFolder) -> None:
    folder.ended.write_text('{"code": -9, "over": "time"}')
    unfinished = read_outcome(folder, 0, "auc", {})
    folder.result.write_text(COMPLETE)
    finished = read_outcome(folder, 0, "auc", {})
    assert isinstance(unfinished, Failed)
    assert isinstance(finished, Failed)
    assert "result.json" not in unfinished.error
    assert (
        "although its result.json is complete; make the trainer end its threads" in finished.error
    )
    assert finished.error.endswith("or raise trainer.minutes in the study")
    assert finished.final
