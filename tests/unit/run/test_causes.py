"""Causes of failed attempts: the cause shown, the number of attempts, and where to look."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from trialfleet.optimizer.stored_trials import FAILURES
from trialfleet.workflows.facts.run_folder.folder import RegionFolder
from trialfleet.workflows.facts.runs.failed_attempts import (
    failed_attempts,
    find_cause,
)
from trialfleet.workflows.rules.useless_resume import all_alike
from trialfleet.workflows.status.attempts.trainer_fails_everywhere import reason_all_fail

NO_MODULE = "exit code 1: ModuleNotFoundError: No module named 'x'"
IMPORT = "exit code 1: ImportError: libx.so.3: cannot open"


def trial(node: str, *errors: str, begun: int = 0, state: str = "FAIL") -> FrozenTrial:
    failures = {
        str(i + 1): {"time": f"2026-11-20T10:00:{begun + i:02}", "error": error}
        for i, error in enumerate(errors)
    }
    attributes: dict[str, Any] = {"node": node, **({FAILURES: failures} if errors else {})}
    return optuna.trial.create_trial(
        state=TrialState[state],
        value=1.0 if state == "COMPLETE" else None,
        user_attrs=attributes,
    )


@pytest.fixture
def region(tmp_path: Path) -> RegionFolder:
    folder = RegionFolder(tmp_path)
    for node in ("a", "b", "c"):
        folder.trial(node).root.mkdir(parents=True)
        folder.trial(node).err.write_text("a traceback\n")
    return folder


def test_a_failed_region_shows_the_cause_of_most_attempts(region: RegionFolder) -> None:
    trials = [trial("a", *[NO_MODULE] * 3), trial("b", NO_MODULE, NO_MODULE, IMPORT, begun=10)]
    cause = find_cause(trials, region, failed=True)
    assert str(cause) == f"5 of 6 failed attempts: {NO_MODULE}; see {region.trial('b').err}"


def test_the_path_of_a_log_is_quoted_for_a_shell(tmp_path: Path) -> None:
    folder = RegionFolder(tmp_path / "my work")
    folder.trial("a").root.mkdir(parents=True)
    folder.trial("a").err.write_text("a traceback\n")
    cause = find_cause([trial("a", NO_MODULE)], folder, failed=True)
    assert shlex.split(str(cause).partition("; see ")[2]) == [str(folder.trial("a").err)]


def test_a_region_under_way_shows_the_latest_cause(region: RegionFolder) -> None:
    trials = [
        trial("a", NO_MODULE, NO_MODULE, state="COMPLETE"),
        trial("b", IMPORT, begun=10, state="RUNNING"),
    ]
    cause = find_cause(trials, region)
    assert str(cause) == f"1 of 3 failed attempts: {IMPORT}; see {region.trial('b').err}"


def test_errors_that_differ_only_in_numbers_are_one_cause(region: RegionFolder) -> None:
    first, second = (
        "exit code 1: lr 0.013 at 0x7ff in dir_42",
        "exit code 1: lr 2e-5 at 0x1 in dir_7",
    )
    cause = find_cause([trial("a", first), trial("b", second, begun=1)], region, failed=True)
    assert cause is not None
    assert (cause.error, cause.attempts, cause.of) == (second, 2, 2)


def test_errors_that_differ_in_the_exit_code_are_two_causes(region: RegionFolder) -> None:
    cause = find_cause([trial("a", "exit code 1", "exit code 127", "exit code 127")], region)
    assert cause is not None
    assert (cause.error, cause.attempts) == ("exit code 127", 2)


def test_the_output_is_named_if_standard_error_is_empty_and_otherwise_the_jobs_log(
    region: RegionFolder,
) -> None:
    place = region.trial("a")
    place.err.write_text("")
    for printed, log in (("the rate is negative", place.out), ("", place.log)):
        place.out.write_text(printed)
        cause = find_cause([trial("a", "exit code 1")], region)
        assert str(cause) == f"an attempt failed: exit code 1; see {log}"


def test_without_failures_there_is_no_cause(region: RegionFolder) -> None:
    assert find_cause([trial("a", state="COMPLETE"), trial("b", state="RUNNING")], region) is None


@pytest.mark.parametrize(
    ("errors", "alike"),
    [([NO_MODULE] * 2, False), ([NO_MODULE] * 3, True), ([NO_MODULE, NO_MODULE, IMPORT], False)],
)
def test_attempts_are_alike_if_at_least_three_failed_with_the_same_error(
    errors: list[str], alike: bool
) -> None:
    assert all_alike(failed_attempts([trial("a", *errors)])) is alike


def test_a_run_whose_attempts_all_failed_alike_shows_their_error(region: RegionFolder) -> None:
    alike = ([trial("a", NO_MODULE, NO_MODULE)], region), ([trial("b", NO_MODULE)], region)
    output = reason_all_fail(alike)
    assert output is not None
    log = region.trial("a").err
    words = f"no trial has completed: all attempts so far failed alike: {NO_MODULE}; see {log}"
    assert output == words
    later = [*alike, ([trial("c", NO_MODULE, begun=20)], region)]
    assert reason_all_fail(later) == words, "a line that grows would be told again and again"
    other = ([trial("c", IMPORT)], region)
    assert reason_all_fail([*alike, other]) is None
    assert reason_all_fail([*alike, ([trial("c", state="COMPLETE")], region)]) is None
