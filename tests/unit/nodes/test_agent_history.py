"""Failures in the ads of a startd's history; each was recorded from HTCondor 25.14.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialfleet.nodes.node_agent.history import Failure, burst, failure_text, failures
from trialfleet.nodes.node_agent.htcondor_tools import Condor

FAILED = {
    "exits with 1": ({"ExitCode": 1, "ExitBySignal": False}, "exit code 1"),
    "crashes": ({"ExitBySignal": True, "ExitSignal": 11}, "killed by signal 11"),
    "vacated once, then fails by itself": (
        {"ExitCode": 137, "ExitBySignal": False, "ExitSignal": 15},
        "exit code 137",
    ),
    "its agent found a fault of the machine": (
        {"ExitCode": 87, "ExitBySignal": False},
        "exit code 87",
    ),
    "no such program": ({"ExitBySignal": False, "StarterExitStatus": 9}, "never ran to its end"),
}
INNOCENT = {
    "done": {"ExitCode": 0, "ExitBySignal": False},
    "parameters can't be trained": {"ExitCode": 64, "ExitBySignal": False},
    "the access point did not answer": {"ExitCode": 75, "ExitBySignal": False},
    "checkpointed": {"ExitCode": 85, "ExitBySignal": False},
    "its gang lacks slots": {"ExitCode": 86, "ExitBySignal": False},
    "drained": {"ExitCode": 5, "ExitBySignal": False, "VacateReasonCode": 1014},
    "drained fast": {"ExitBySignal": True, "ExitSignal": 9, "VacateReasonCode": 1014},
    "vacated, removed or held": {"ExitBySignal": True, "ExitSignal": 15, "VacateReasonCode": 1009},
    "startd shut down": {"ExitBySignal": True, "ExitSignal": 15, "VacateReasonCode": 1013},
    "schedd gone": {"ExitBySignal": True, "ExitSignal": 15, "VacateReasonCode": 1017},
}


@pytest.mark.parametrize(("ad", "how"), FAILED.values(), ids=FAILED)
def test_a_job_that_ends_badly_by_itself_has_failed(ad: dict[str, Any], how: str) -> None:
    assert failure_text({"JobStatus": 4} | ad) == how


@pytest.mark.parametrize("ad", INNOCENT.values(), ids=INNOCENT)
def test_a_job_that_was_removed_or_reported_its_result_has_not_failed(ad: dict[str, Any]) -> None:
    assert failure_text({"JobStatus": 4} | ad) is None


def test_failures_are_named_and_sorted_by_time() -> None:
    ads = [
        {"ClusterId": 9, "ProcId": 1, "CompletionDate": 200, "ExitCode": 3},
        {"ClusterId": 8, "ProcId": 0, "CompletionDate": 150, "ExitCode": 0},
        {"ClusterId": 7, "ProcId": 0, "CompletionDate": 100, "ExitCode": 1},
    ]
    assert failures(ads) == (Failure("7.0", 100, "exit code 1"), Failure("9.1", 200, "exit code 3"))


def failures_at(*times: float) -> tuple[Failure, ...]:
    return tuple(Failure(f"{i}.0", time, "exit code 1") for i, time in enumerate(times))


def test_three_failures_within_a_minute_are_a_burst() -> None:
    assert burst(failures_at(100, 130, 160)) == failures_at(100, 130, 160)


def test_three_failures_in_more_than_a_minute_are_no_burst() -> None:
    assert burst(failures_at(100, 130, 161)) is None


def test_a_burst_is_found_among_failures_before_and_after_it() -> None:
    found = failures_at(100, 500, 510, 520, 5000)
    assert burst(found) == found[1:4]


def test_failures_before_the_reset_do_not_count() -> None:
    assert burst(failures_at(10, 20, 30), since=10) is None
    assert burst(failures_at(10, 20, 30, 40), since=10) is not None


def test_a_history_that_cannot_be_read_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history, script = tmp_path / "startd_history", "#!/bin/sh\necho {}\nexit {}\n"
    for name, said, code in (("config_val", history, 0), ("history", "too many files", 1)):
        (tmp_path / f"condor_{name}").write_text(script.format(said, code))
        (tmp_path / f"condor_{name}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    condor = Condor()
    assert condor.failures() == ()
    assert caplog.messages == []  # no job has ended yet
    history.touch()
    assert condor.failures() == condor.failures() == ()
    (line,) = caplog.messages
    assert line.startswith("it can't be read which jobs failed here, so failures don't count: ")
    assert line.endswith("too many files")
