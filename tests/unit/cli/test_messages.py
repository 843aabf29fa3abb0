"""Messages of the command line on unusable input: one message, exit code 2, safe to show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.conftest import MakeRun
from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.errors import InputError, PoolError, join_names
from trialfleet.optimizer.region_types import Failed
from trialfleet.workflows.cleaning import clean
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.run_commands import _resumed_text
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.names import check_region_name
from trialfleet.workflows.status.attempts.outcome import read_outcome


def result_of(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_long_list_of_names_is_cut_after_the_first_few() -> None:
    assert join_names(["a", "b", "c"], 3) == "a, b, c"
    assert join_names(["a", "b", "c", "d", "e"], 3) == "a, b, c and 2 more"
    assert join_names([], 3) == ""


@pytest.mark.parametrize("command", ["best", "status", "trials", "report", "submit"])
def test_a_studys_folder_is_not_taken_for_a_run(tmp_path: Path, command: str) -> None:
    (tmp_path / "go.sh").touch()
    write(tmp_path, MINIMAL)
    result = result_of(command, tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: '{tmp_path}' is not a run's folder (it has no study.json); "
        "make one with: trialfleet plan STUDY, or list runs with: trialfleet runs\n"
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_watch_of_a_run_that_does_not_end_as_done_exits_with_1(
    make_run: MakeRun, more: list[str]
) -> None:
    run = make_run()  # planned only, so that nothing happens
    assert result_of("status", run.folder, *more).exit_code == 0
    assert result_of("status", run.folder, "--watch", *more).exit_code == 1


@pytest.mark.parametrize("text", ['{"run": 1}', "a: [", "", "[1]", '{"run": "a", "folder": "b"}'])
def test_a_folder_with_an_invalid_study_file_is_not_taken_for_a_run(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "study.json").write_text(text)
    result = result_of("best", tmp_path)
    assert result.exit_code == 2
    assert "study.json" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["\u202eplan"],
        ["plan", "--\u202e"],
        ["plan", "\u202e\x1b[31mnowhere.yaml"],
        ["plan", "study.yaml", "\u202e"],
        ["init", "x", "--example", "\u202e"],
        ["--\u202e"],
        ["best", "\u202e"],
        ["pool", "\u202e"],
    ],
)
def test_messages_escape_control_characters_of_arguments(arguments: list[str]) -> None:
    result = result_of(*arguments)
    assert result.exit_code == 2
    assert "\\u202e" in result.stderr
    assert all(line.isprintable() for line in result.output.splitlines())


def test_an_error_of_any_kind_is_safe_to_show() -> None:
    assert str(PoolError("a\u202eb\x1b[31m\nnext\ud800")) == "a\\u202eb\\x1b[31m\nnext\\ud800"
    assert str(InputError("São Paulo, 北京")) == "São Paulo, 北京"


@pytest.mark.parametrize("mark", ["\u202a", "\u202e", "\u2066", "\u2069"])
def test_region_names_may_not_contain_direction_marks_and_clean_replaces_them(mark: str) -> None:
    with pytest.raises(ValueError, match="does not print"):
        check_region_name(f"a{mark}b")
    assert clean(f"a{mark}b") == "a\N{REPLACEMENT CHARACTER}b"
    assert check_region_name("a\u200db") == "a\u200db"  # a joiner is part of many a word


def test_init_escapes_an_unprintable_folder_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = result_of("init", "\u202eodd")
    assert result.exit_code == 0
    assert all(line.isprintable() for line in result.output.splitlines())


@pytest.mark.parametrize("place", ["/dev/zero", "."])
def test_predict_refuses_a_device_or_folder_as_rows(tmp_path: Path, place: str) -> None:
    result = result_of("predict", tmp_path, place)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {place} is a ")


SHAPE = 'result.json must be like {"status": "complete", "metrics": {"auc": 0.5}}'


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"auc": 1.5}, ["has no status", "'auc' is beside \"metrics\" instead of in it", SHAPE]),
        ({"loss": 1.5}, ["has no status", SHAPE]),
        ({"metrics": {"auc": 1}}, ["has no status", SHAPE]),
        ({"status": "complete", "auc": 1.5}, ["'auc' is beside \"metrics\"", SHAPE]),
        ({"status": "done", "metrics": {"auc": 1}}, ["has status 'done'", SHAPE]),
        ({"status": None}, ["has status None", SHAPE]),
        ({"status": "complete", "metrics": [1]}, ["has the wrong form", SHAPE]),
        (["auc", 1], ["has the wrong form", SHAPE]),
    ],
)
def test_a_malformed_result_is_reported_with_the_right_shape(
    tmp_path: Path, result: object, words: list[str]
) -> None:
    folder = TrialFolder(tmp_path)
    folder.result.write_text(json.dumps(result))
    outcome = read_outcome(folder, 0, "auc", {})
    assert isinstance(outcome, Failed)
    for word in words:
        assert word in outcome.error


def test_a_run_whose_study_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "study.json")
    assert result_of("status", tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("best", "is not a run's folder"),
        ("plan", "File name too long"),
        ("init", "File name too long"),
    ],
)
def test_a_name_that_is_too_long_is_reported_without_a_traceback(command: str, words: str) -> None:
    result = result_of(command, "x" * 5000)
    assert result.exit_code in {1, 2}
    assert words in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "publish: postgresql+psycopg://u:geheim@h/d\x07",
        "storag: postgresql+psycopg://u:geheim@h/d",
        "'postgresql+psycopg://u:geheim@h/d?x=geheim': 1",
        "data: [http://u:ge@heim@h/d?password=geheim]",
        "storage: 'postgresql+psycopg://u:geheim'",
        "storage:postgresql+psycopg://u:geheim@h/d",
        "storage: |\n  postgresql+psycopg://u:geheim@h/d\n  x",
        "storage: *postgresql+psycopg://u:geheim@h/d",
        "storage: &postgresql+psycopg://u:geheim@h/d x: y",
        "storage: !postgresql+psycopg://u:geheim@h/d x",
    ],
)
def test_a_password_is_in_no_message_wherever_it_was_written(tmp_path: Path, text: str) -> None:
    (tmp_path / "go.sh").touch()
    result = result_of("plan", write(tmp_path, MINIMAL + text + "\n"))
    assert result.exit_code == 2
    assert "study.yaml" in result.stderr
    assert "geheim" not in result.stderr
    assert "heim" not in result.stderr


def test_a_url_taken_for_a_path_shows_no_password() -> None:
    result = result_of("best", "mysql://u:geheim@h/d")
    assert (result.exit_code, "geheim" in result.stderr) == (2, False)


def test_a_url_without_a_password_is_shown() -> None:
    for url in ("s3://bucket/a@b", "https://docs.aws.amazon.com/x?y=1", "sqlite:///a b"):
        assert str(InputError(f"{url!r} is wrong")) == f"{url!r} is wrong"


def test_a_character_that_yaml_forbids_is_reported_in_one_line(tmp_path: Path) -> None:
    result = result_of("plan", write(tmp_path, "name: a\nregions: [A\x07]\n"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path}/study.yaml:2: not YAML: the character '\\x07' is not allowed\n"
    )


def test_promote_escapes_unprintable_folder_names(tmp_path: Path) -> None:
    model = tmp_path / "north\u202e" / "r1"
    model.mkdir(parents=True)
    (model / "provenance.json").write_text(json.dumps({"run": "r1"}))
    result = result_of("promote", model)
    assert result.exit_code == 0
    assert "north\\u202e: latest is r1" in result.output
    assert all(line.isprintable() for line in result.output.splitlines())


def test_resuming_a_running_run_resumes_nothing() -> None:
    assert _resumed_text("519.0", "519.0") == (
        "the run is already running as job 519.0: nothing was resumed"
    )
    assert _resumed_text("519.0", "520.0") == _resumed_text(None, "520.0") == "resumed as job 520.0"


@pytest.mark.slow
def test_a_path_that_is_not_utf8_is_printed_with_escapes(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/a\xff"
    os.mkdir(folder)  # noqa: PTH102 - bytes
    program = Path(sys.executable).with_name("trialfleet")
    command = [str(program), "pool", "status", "--folder", os.fsdecode(folder)]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"down  {tmp_path}/a\\udcff\n"
