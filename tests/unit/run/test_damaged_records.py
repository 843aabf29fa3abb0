"""Damaged files of a run: the commands name the file, and show no traceback."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import MakeRun
from tests.stored_runs import stored
from trialfleet import Run
from trialfleet.errors import OptimizerError
from trialfleet.files import write_json
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.scripts.script_requests import ScriptRequests
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.status_reader import StatusReader

pytestmark = pytest.mark.slow


DAMAGES = [b"", b"[]", b"{}", b"\xff\xfe\x00"]
COMMANDS = ["status", "best", "trials", "report", "why", "cost", "runs", "promote"]


@pytest.fixture
def ended(make_run: MakeRun, work: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose only region has published a model."""
    monkeypatch.chdir(work)
    run = make_run(out=work / "runs" / "demo" / "r1", publish="models", gate={})
    with stored(run) as study:
        study.fill("A", 3, datetime(2026, 11, 20, tzinfo=UTC))
    files = RunFolder(run.folder).region("A")
    model = Path(run.study.publish) / "demo" / "A" / "r1"
    model.mkdir(parents=True)
    provenance = {"study": "demo", "run": "r1", "region": "A", "created": "2026-11-20T10:00:00Z"}
    for path, content in {
        files.best.trial_json: {"region": "A", "trial": 0},
        files.best.result: {"status": "complete", "metrics": {"loss": 0.25}},
        files.best.job: {"usd": 0.5, "stays": []},
        files.best.failures: {},
        files.published: {"path": str(model)},
        model / "provenance.json": provenance,
        model / "metrics.json": {"metrics": {"loss": 0.25}},
    }.items():
        write_json(path, content)
    (model.parent / "latest").symlink_to("r1")
    assert call("report", run).exit_code == 0
    return run


def call(command: str, run: Run) -> Any:
    given = {"cost": [], "runs": [], "promote": ["r1"]}.get(command, [str(run.folder)])
    result = CliRunner().invoke(main, [command, *given])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


RECORDS = [
    "report.json", "regions/A/published.json", "regions/A/best/result.json",
    "regions/A/best/job.json", "regions/A/best/failures.json",
]  # fmt: skip


@pytest.fixture
def alarm() -> Iterator[None]:
    """Let the test fail after half a minute, in which a command waits for a pipe's writer."""

    def ring(*_: object) -> None:
        raise AssertionError("the command waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("record", [*RECORDS, "regions/A/stopped.json", "submission.json"])
def test_no_command_waits_for_a_pipe_in_place_of_a_record(ended: Run, record: str) -> None:
    path = ended.folder / record
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for command in COMMANDS:
        result = call(command, ended)
        assert result.exit_code in {0, 1} or path.name in result.stderr, (command, result.stderr)


@pytest.mark.parametrize("record", [*RECORDS, "study.json", "regions/A/failures.json"])
@pytest.mark.parametrize("content", ["[" * 50_000, '{"a":' * 50_000])
def test_no_command_fails_because_a_record_is_nested_too_deeply(
    ended: Run, record: str, content: str
) -> None:
    (ended.folder / record).write_text(content)
    for command in COMMANDS:
        result = call(command, ended)
        name = Path(record).name
        assert result.exit_code in {0, 1} or name in result.stderr, (command, result.stderr)


@pytest.mark.parametrize("record", RECORDS)
def test_each_command_succeeds_or_names_the_damaged_record(ended: Run, record: str) -> None:
    path = ended.folder / record
    for damage in DAMAGES:
        for command in COMMANDS:
            path.write_bytes(damage)
            result = call(command, ended)
            assert result.exit_code == 0 or str(path) in result.output, (damage, command)


def wrongly_typed(content: Any) -> Iterator[Any]:
    """Yield the same with a value of another type in each place in turn."""
    others: tuple[Any, ...] = (None, 5, "x", [1], {"a": []})
    for wrong in others:
        if type(wrong) is not type(content):
            yield wrong
    if isinstance(content, dict | list):
        keys = list(content) if isinstance(content, dict) else range(len(content))
        for key in keys:
            for wrong in wrongly_typed(content[key]):
                changed = copy.deepcopy(content)
                changed[key] = wrong
                yield changed


JOB = {"usd": 0.5, "stays": [{"machine": "m", "instance": None, "began": 1.0, "ended": 2.0,
       "end": "done", "usd": 0.1}], "attempts": 1, "machine": "m", "started": 1.0}  # fmt: skip
FAILURE = {"time": "2026-11-20", "node": "A.best", "error": "no"}
SIDES = {side: {"run": side, "metrics": {"loss": 1.0}} for side in ("champion", "challenger")}
VERDICT = {"verdict": "promoted", "why": "so", "metric": "loss", **SIDES,
           "baseline": {"metrics": {"loss": 2.0}}, "interval": [0.0, 1.0]}  # fmt: skip
WHOLE: dict[str, dict[str, Any]] = {
    "regions/A/best/job.json": JOB,
    "regions/A/best/failures.json": {"1": FAILURE},
    "regions/A/best/result.json": {"status": "complete", "metrics": {"loss": 0.25}},
    "regions/A/stopped.json": {"reason": "no trial can succeed", "removed": False},
    "regions/A/gate.json": VERDICT,
    "out-of-money.json": {"tune": "no money"},
    "report.json": {"finished": "2026-11-20T10:00:00+00:00"},
    "regions/A/published.json": {"path": "", "not_latest": "because", "drift": "so"},
}


@pytest.mark.slow
@pytest.mark.parametrize("record", WHOLE)
def test_wrong_types_in_a_record_cause_no_traceback(ended: Run, record: str) -> None:
    path = ended.folder / record
    whole = copy.deepcopy(WHOLE[record])
    if "path" in whole:
        whole["path"] = json.loads(path.read_text())["path"]
    for damaged in wrongly_typed(whole):
        for command in ("status", "best", "report", "why", "cost", "runs", "promote"):
            write_json(path, damaged)
            result = call(command, ended)
            assert result.exit_code in {0, 1} or str(path) in result.output, (damaged, command)


@pytest.mark.parametrize(
    ("record", "damage", "words"),
    [
        ("published.json", '{"path": 5}', "is damaged: path: Input should be a valid string"),
        (
            "best/result.json",
            '{"metrics": "low"}',
            "is damaged: result.json has the wrong form: {",
        ),
        ("published.json", "", "is damaged: it is empty"),
        ("published.json", "[1]", "is damaged: it is not a JSON object"),
        ("published.json", "{}", "is damaged: it lacks path"),
        (
            "best/result.json",
            '{"status": "comp',
            "is damaged: result.json is not JSON (Unterminated string",
        ),
    ],
)
def test_the_fault_of_a_damaged_record_is_named(
    ended: Run, record: str, damage: str, words: str
) -> None:
    path = ended.folder / "regions" / "A" / record
    path.write_text(damage)
    result = call("best", ended)
    assert result.exit_code == 2
    assert f"{str(path)!r} {words}" in result.output


@pytest.mark.parametrize("other", ['"5"', "null", "true", "NaN", "-Infinity", "[1]", '{"a": 1}'])
def test_a_full_training_may_report_more_than_numbers(ended: Run, other: str) -> None:
    """As a trial may: only the numbers are shown."""
    path = ended.folder / "regions" / "A" / "best" / "result.json"
    path.write_text(f'{{"metrics": {{"loss": 0.25, "n": {other}, "\\ud800": 1, "auc": 0.75}}}}')
    for command in ("best", "report", "status", "why"):
        assert call(command, ended).exit_code in {0, 1}, call(command, ended).output
    (region,) = json.loads((ended.folder / "report.json").read_text())["regions"]
    assert region["final"] == {"loss": 0.25, "\ufffd": 1.0, "auc": 0.75}


def test_a_run_with_a_damaged_record_hides_no_other_run(ended: Run, make_run: MakeRun) -> None:
    make_run(run="r2", out=ended.folder.with_name("r2"), publish="models", gate={})
    (ended.folder / "regions" / "A" / "published.json").write_text("")
    result = call("runs", ended)
    assert result.exit_code == 0
    assert "r2" in result.output
    assert "is damaged: it is empty" in " ".join(result.output.split())


def test_a_report_that_was_damaged_is_written_again(ended: Run) -> None:
    report = ended.folder / "report.json"
    report.write_text("")
    assert call("report", ended).exit_code == 0
    assert json.loads(report.read_text())["run"] == "r1"


@pytest.mark.parametrize(
    ("damage", "words"), [("", "it is empty"), ("[1]\n", "it is not a JSON object")]
)
def test_a_damaged_frozen_study_is_reported(ended: Run, damage: str, words: str) -> None:
    (ended.folder / "study.json").write_text(damage)
    result = CliRunner().invoke(main, ["status", str(ended.folder)])
    assert result.exit_code == 2
    assert f"study.json' is damaged: {words}" in result.output
    assert "trialfleet init" not in result.output


def test_an_emptied_storage_is_an_error(ended: Run) -> None:
    files = RunFolder(ended.folder)
    files.region("A").trial("A.l1.t01").root.mkdir(parents=True, exist_ok=True)
    write_json(files.region("A").trial("A.l1.t01").trial_json, {})
    page = files.report_page.read_text()
    reader = StatusReader(files)
    assert not reader.snapshot().storage_away
    files.database.write_bytes(b"")
    assert "is empty" in reader.snapshot().storage_away
    for command in ("report", "best", "trials"):
        result = call(command, ended)
        assert result.exit_code != 0, command
        assert f"trials are lost: {str(files.database)!r} is empty" in result.output
    assert "records of the run's trials are lost" in call("status", ended).output
    assert files.report_page.read_text() == page
    assert files.database.stat().st_size == 0
    with pytest.raises(OptimizerError, match="is empty"):
        ScriptRequests(files)
    with pytest.raises(OptimizerError, match="is empty"):
        ended.resume()


def test_a_deleted_storage_is_an_error(ended: Run) -> None:
    files = RunFolder(ended.folder)
    write_json(files.region("A").trial("A.l1.t01").trial_json, {})
    files.database.unlink()
    for command in ("status", "report", "best", "trials"):
        assert f"{str(files.database)!r} is missing" in call(command, ended).output, command
    with pytest.raises(OptimizerError, match="is missing"):
        ScriptRequests(files)
    with pytest.raises(OptimizerError, match="is missing"):
        ended.resume()
    assert not files.database.exists()


def test_the_empty_storage_of_a_new_run_has_no_trials(make_run: MakeRun) -> None:
    run = make_run()
    RunFolder(run.folder).database.write_bytes(b"")
    assert run.trials() == []
