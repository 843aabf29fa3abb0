"""Failing scripts of a run's nodes are noted at once and retried, and then fail their region."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import Run
from trialfleet.errors import OptimizerError
from trialfleet.optimizer.service import Reply
from trialfleet.optimizer.service_client import TROUBLE
from trialfleet.workflows.control.scripts import publish_program, report_program
from trialfleet.workflows.control.scripts.script_requests import TRIES, ScriptRequests
from trialfleet.workflows.facts.dagman.failing_scripts import (
    failing_scripts,
    note_failure,
    service_trouble,
)
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS, PUBLISH_RETRIES
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.status.status_reader import StatusReader

pytestmark = pytest.mark.slow

OPERATIONS = {
    "attend": ("A",),
    "begin": ("A",),
    "end": ("A", "1"),
    "ask": ("A", "A.l1.t01"),
    "tell": ("A", "A.l1.t01", "0", "0", "1", "0"),
    "ask-best": ("A", "A.best"),
    "tell-best": ("A", "A.best", "0", "0", "1", "0"),
    "ask-gate": ("A", "A.gate"),
    "tell-gate": ("A", "A.gate", "0", "0", "1", "0"),
    "conclude": ("A", "A.tuned"),
}


@pytest.fixture
def folder(make_run: MakeRun) -> RunFolder:
    return RunFolder(make_run(budget={"trials": 2, "lanes": 1}).folder)


def troubles(folder: RunFolder) -> tuple[str, ...]:
    """Return `status`'s troubles of a run under way; HTCondor is out of reach here."""
    folder.dag_files.submit.touch()
    return StatusReader(folder).read().troubles


def stopped(files: RegionFolder) -> Any:
    return json.loads(files.stopped.read_text()) if files.stopped.exists() else None


def test_waits_for_the_storage_do_not_count_as_errors(tmp_path: Path) -> None:
    file = tmp_path / "failing.json"
    for _ in range(TRIES):
        note_failure(file, "A.l1", "ask", "the database is away", "storage")
    assert note_failure(file, "A.l1", "ask", "a bug") == 1
    assert note_failure(file, "A.l1", "ask", "a bug") == 2


def test_an_error_of_any_script_is_noted_and_fails_the_region_after_retries(
    folder: RunFolder,
) -> None:
    def fails(*_: str) -> Reply:
        raise PermissionError(13, "Permission denied", "/d/x")

    files, handler = folder.region("A"), ScriptRequests(folder)
    assert set(OPERATIONS) == set(handler._operations)
    handler._operations = dict.fromkeys(OPERATIONS, fails)
    for operation, words in OPERATIONS.items():
        assert handler.handle([operation, *words]).exit_code == EXITS["defer"]
        (noted,) = failing_scripts(files.failing)
        assert (noted.script, noted.times) == (operation, 1)
        said = f"{operation} of {noted.node} fails: /d/x: Permission denied"
        assert troubles(folder) == (f"A: {said}; it will be retried",)
        for _ in range(TRIES - 2):
            assert handler.handle([operation, *words]).exit_code == EXITS["defer"]
        assert stopped(files) is None
        ended = handler.handle([operation, *words])
        assert ended.exit_code == EXITS["done" if operation == "end" else "stop"]
        assert stopped(files) == {"reason": "/d/x: Permission denied", "script": operation}
        files.stopped.unlink()
        files.failing.unlink()


def test_the_counts_of_errors_are_reset_when_the_region_begins_again(
    folder: RunFolder,
) -> None:
    files = folder.region("A")
    for _ in range(TRIES - 1):
        note_failure(files.failing, "A.best", "ask-best", "an error")
        note_failure(files.failing, "A", "begin", "an error")
    handler = ScriptRequests(folder)
    assert handler.handle(["begin", "A"]).exit_code == EXITS["done"]
    assert failing_scripts(files.failing) == ()
    assert troubles(folder) == ()


def test_a_script_that_succeeds_ends_its_trouble(folder: RunFolder) -> None:
    files, handler = folder.region("A"), ScriptRequests(folder)
    files.trials.mkdir(parents=True, exist_ok=True)
    place = files.trial("A.l1.t01").root
    place.rmdir() if place.exists() else None
    place.write_text("a file where the trial's folder is to be")
    words = ["ask", "A", "A.l1.t01"]
    assert handler.handle(words).exit_code == EXITS["defer"]
    (trouble,) = troubles(folder)
    assert trouble.startswith(f"A: ask of A.l1.t01 fails: {place}/trial.sub: ")
    place.unlink()
    assert handler.handle(words).exit_code == EXITS["done"]
    assert troubles(folder) == ()


def test_scripts_wait_without_limit_for_an_unreachable_storage(folder: RunFolder) -> None:
    handler, files = ScriptRequests(folder), folder.region("A")

    def away(*_: str) -> Reply:
        raise OptimizerError("the storage is locked")

    handler._operations["ask"] = away
    for _ in range(TRIES + 2):
        assert handler.handle(["ask", "A", "A.l1.t01"]).exit_code == EXITS["defer"]
    assert stopped(files) is None
    assert [each.cause for each in failing_scripts(files.failing)] == ["storage"]
    found = StatusReader(folder).read()
    assert found.failing == ()  # it may pass: an alert follows once it has lasted


def test_a_job_that_htcondor_refused_is_reported(folder: RunFolder) -> None:
    handler = ScriptRequests(folder)
    handler.handle(["ask", "A", "A.l1.t01"])
    reply = handler.handle(["tell", "A", "A.l1.t01", "-1001", "0", "1", "0"])
    assert reply.exit_code == EXITS["retry"]
    assert "HTCondor did not take its job" in troubles(folder)[0]


def test_a_region_whose_dagman_htcondor_refused_has_not_failed(folder: RunFolder) -> None:
    """DAGMan says that this was the last attempt, though it made no other."""
    reply = ScriptRequests(folder).handle(["end", "A", "-1001", "10", "10"])
    assert reply.exit_code == EXITS["retry"]
    assert stopped(folder.region("A")) is None
    assert "HTCondor did not take its DAGMan" in troubles(folder)[0]


def test_the_reason_of_a_region_names_its_last_dagman_and_its_last_error(folder: RunFolder) -> None:
    handler, files = ScriptRequests(folder), folder.region("A")
    assert handler.handle(["end", "A", "1", "9", "10"]).exit_code == EXITS["retry"]
    note_failure(files.failing, "A.l1.t01", "tell", "HTCondor did not take its job")
    assert handler.handle(["end", "A", "1", "10", "10"]).exit_code == EXITS["done"]
    reason = stopped(files)["reason"]
    assert reason.startswith(
        "its DAGMan ended (1), as did 10 before it: HTCondor did not take its job"
    )
    assert str(files.scripts_log) in reason


def test_a_run_of_an_earlier_release_without_counts_of_restarts_continues(
    folder: RunFolder,
) -> None:
    assert ScriptRequests(folder).handle(["end", "A", "1"]).exit_code == EXITS["retry"]


def test_a_publication_that_fails_again_and_again_fails_its_region(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("weights")

    monkeypatch.setattr(publish_program, "publish", fails)
    monkeypatch.setattr(sys, "argv", ["publish", str(folder.root), "A"])
    for _ in range(PUBLISH_RETRIES):
        with pytest.raises(KeyError):
            publish_program.main()
        assert "publish of A.publish fails: KeyError: 'weights'" in troubles(folder)[0]
    with pytest.raises(SystemExit) as end:
        publish_program.main()
    assert end.value.code == EXITS["stop"]
    reason = stopped(folder.region("A"))["reason"]
    assert reason == "the model can't be published: KeyError: 'weights'"


def test_a_report_that_cant_be_written_is_a_trouble(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["report", str(folder.root)])
    folder.report_page.mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        report_program.main()
    assert any("report fails: " in trouble for trouble in troubles(folder))
    folder.report_page.rmdir()
    with pytest.raises(SystemExit):
        report_program.main()
    assert failing_scripts(folder.failing) == ()


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"A.l1.t01": {"node": 1}}'])
def test_a_damaged_record_is_ignored_and_rewritten(folder: RunFolder, damage: str) -> None:
    file = folder.region("A").failing
    file.write_text(damage)
    (folder.root / TROUBLE).write_text(damage)
    assert failing_scripts(file) == ()
    assert service_trouble(folder) == ""
    assert note_failure(file, "A.l1.t01", "ask", "an error") == 1


def test_a_service_that_does_not_answer_is_reported_until_it_answers(folder: RunFolder) -> None:
    trouble = "the service (process 7) has not answered ask A for 20 s"
    folder.service_log.touch()
    last = folder.service_log.stat().st_mtime
    noted = {"error": trouble, "waiting": True}
    (folder.root / TROUBLE).write_text(json.dumps(noted | {"time": last + 20}))
    assert troubles(folder) == (f"{trouble}; it will be retried",)
    (folder.root / TROUBLE).write_text(json.dumps(noted | {"time": last - 20}))
    assert troubles(folder) == ()


def test_the_json_of_the_status_has_the_failing_scripts_of_a_region(folder: RunFolder) -> None:
    note_failure(folder.region("A").failing, "A.l1.t01", "ask", "an error")
    content = Run(folder.root).status().to_json()
    assert content["regions"][0]["failing"][0]["error"] == "an error"
    assert Path(content["folder"]) == folder.root
