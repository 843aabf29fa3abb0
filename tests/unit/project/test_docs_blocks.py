"""The code blocks of README and docs/ are right: studies are valid, commands exist and run."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

import trialfleet
from tests.docs.blocks import LANGUAGES, SUBSTITUTED, Block, blocks, commands, every_block, pages
from tests.docs.site import ROOT
from tests.stored_runs import write_days_and_models
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.study import export
from trialfleet.workflows.study.spec import Study

# Other words that a page may call; each is a word of every shell, of Debian, of git or of HTCondor.
OTHERS = {
    ".", "apt-get", "cat", "cd", "condor_config_val", "condor_q", "condor_rm", "condor_status",
    "condor_submit_dag", "echo", "eval", "export", "git", "loginctl", "ls", "mlflow", "tail", "uv",
}  # fmt: skip
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SHELL = blocks("shell")


def parametrized_blocks(*languages: str) -> pytest.MarkDecorator:
    """Return a test for each block of these languages, called by its place."""
    found = blocks(*languages)
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


def test_every_code_block_names_its_language() -> None:
    every = [block for page in pages() for block in every_block(page)]
    assert len(every) > 70
    wrong = {block.place: block.language for block in every if block.language not in LANGUAGES}
    assert not wrong, f"write one of {', '.join(sorted(LANGUAGES))} behind the ```"
    fences = {page: page.read_text(encoding="utf-8").count("\n```") for page in pages()}
    assert all(2 * len(list(every_block(page))) == count for page, count in fences.items()), (
        "a block is indented or not closed"
    )


def test_a_block_with_a_reason_is_not_checked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not checked: it is a dream -->\n```shell\ntrialfleet fly\n```\n")
    [block] = every_block(page)
    assert (block.language, block.excuse) == ("shell", "it is a dream")


@parametrized_blocks("json")
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


# -- studies ---------------------------------------------------------------------------------------

SMALLEST: dict[str, Any] = {
    "name": "smallest",
    "regions": ["north"],
    "objective": {"metric": "val_error", "direction": "minimize"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "trainer": {"command": ["python3", "train.py"], "files": ["train.py"]},
    "accelerator": "cpu",
}


def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return a study with what a page shows of one in it."""
    both = {key: key in part and isinstance(base[key], dict) for key in base}
    return {**base, **part} | {
        key: {**base[key], **part[key]} for key in base if both[key] and isinstance(part[key], dict)
    }


def study_of(part: dict[str, Any]) -> Study:
    """Return the smallest study with a part of one in it, checked."""
    base = dict(SMALLEST)
    if {"target", "table"} & part.keys():
        base |= {"trainer": "tabular", "target": "late"}
    if "fleet" in part:
        base["fleet"] = {"aws_regions": ["eu-west-1"]}
    return Study.model_validate(merged(base, part))


@parametrized_blocks("yaml")
def test_a_study_is_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "NEEDED", "json")  # mlflow needn't be installed
    study, _ = study_of(YAML(typ="safe").load(block.text)).fill_date(date(2026, 11, 22))
    files = [] if isinstance(study.trainer, str) else study.trainer.files
    names = list(study.listed_regions)
    own = study.listed_regions.values()
    data = [*study.data, *(place for region in own for place in region.data or [])]
    secrets = [
        place
        for each in study.notify
        for place in (each.webhook and each.webhook.url_file, each.mail and each.mail.password_file)
        if place
    ]
    if study.export and study.export.mlflow and study.export.mlflow.password_file:
        secrets.append(study.export.mlflow.password_file)
    programs = [each.command[0] for each in study.notify if each.command]
    read = [*files, *secrets, *(place.format(region=name) for place in data for name in names)]
    for place in [*read, *programs]:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if place.endswith("/"):
            path.mkdir()
        else:
            path.touch(mode=0o755 if place in programs else 0o644)
    study.resolve(tmp_path)


# -- shell -----------------------------------------------------------------------------------------


def check_trialfleet(words: list[str]) -> None:
    """Parse as `trialfleet` would; a wrong command, option or number of arguments is an error."""
    context = click.Context(main, info_name="trialfleet")
    command: click.Command = main
    while isinstance(command, click.Group):
        try:
            name, found, words = command.resolve_command(context, words)
        except click.UsageError as error:
            pytest.fail(error.format_message())
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    try:
        command.make_context(command.name, words, parent=context.parent)
    except click.UsageError as error:
        pytest.fail(f"{context.command_path}: {error.format_message()}")


def check_make(words: list[str]) -> None:
    for word in words:
        variable, assigns, _ = word.partition("=")
        if assigns:
            assert re.search(rf"\$\(({variable}\)|if \$\({variable}\))", MAKEFILE), word
        else:
            target = word.replace(".venv", "$(VENV)")
            assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), f"make {word}"


def check_python(words: list[str], page: Path) -> None:
    if words[:1] == ["-c"]:
        compile(words[1], "-c", "exec")
    elif words[:1] == ["-m"]:
        assert importlib.util.find_spec(words[1]), words[1]
        check_options(words[1], words[2:])
    else:
        folders = [page.parent, ROOT, ROOT / "workflows/examples/sklearn"]
        assert any((folder / words[0]).exists() for folder in folders), words[0]


def check_options(module: str, words: list[str]) -> None:
    """Check the options of one of our modules, by its own help."""
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    if options:
        asked = [sys.executable, "-m", module, "--help"]
        text = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert not [option for option in options if option not in text], text


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"trialfleet\[(\w+)\]", " ".join(words)):
        assert extra in extras["optional-dependencies"], extra


def check(words: list[str], page: Path) -> None:
    """Check that a command of a page can be typed."""
    program, rest = Path(words[0]).name if "/" in words[0] else words[0], words[1:]
    if program == "trialfleet":
        check_trialfleet(rest)
    elif program == "make":
        check_make(rest)
    elif program in {"python", "python3", SUBSTITUTED}:
        check_python(rest, page)
    elif program == "pip":
        check_pip(rest)
    elif program == "pytest":
        assert (ROOT / rest[0]).exists(), rest[0]
    elif program != "pre-commit":
        assert program in OTHERS, f"{program}: is it meant so? then OTHERS names it"


def check_all(script: str, page: Path) -> None:
    found = commands(script)
    assert found
    for words in found:
        check(words, page)


@pytest.mark.slow
@pytest.mark.parametrize("block", SHELL, ids=[block.place for block in SHELL])
def test_commands_exist_with_their_options(block: Block) -> None:
    check_all(block.text, block.page)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("trialfleet stauts", "No such command"),
        ("trialfleet run", "Missing argument 'STUDY'"),
        ("trialfleet fleet up --node 2", "No such option"),
        ("make demos", "make demos"),
        ("make demo DEMOS=x", "DEMOS"),
        ("python -m trialfleet.nodes.prob", "trialfleet.nodes.prob"),
        ("python -m tests.storm --kill-all", "--kill-all"),
        ("echo $(trialfleet pool environment)", "No such command"),
        ("cd x && trialfeet status  # as always", "trialfeet"),
        ("pip install 'trialfleet[dashbord]'", "dashbord"),
    ],
)
def test_a_wrong_command_is_noticed(script: str, expected: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(expected)):
        check_all(script, ROOT / "README.md")


# Commands that answer within a second without a pool, unless one of these options is given.
QUICK = {"init", "plan", "runs", "status", "best", "trials", "report", "schema", "completion"}
SLOW = {"--check", "--watch"}


def quick(block: Block) -> list[list[str]]:
    """Return the commands of a block that can be run here."""
    ours = [words[1:] for words in commands(block.text) if words[0] == "trialfleet"]
    return [words for words in ours if words[0] in QUICK and not SLOW & set(words)]


RUN = [block for block in SHELL if quick(block)]


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=[block.place for block in RUN])
def test_commands_that_need_no_pool_succeed(block: Block, work: Path, monkeypatch: Any) -> None:
    """The page's reader is then in the example's folder, or next to a study that is planned."""
    words = quick(block)
    example = block.page.parent.name if "examples" in block.page.parts else None
    first = ["init", "first"]
    if example:
        before = [["init", str(work / "it"), "--example", example]]
    elif first in words:
        before, words = [first], [each for each in words if each != first]
    else:
        before = [first]
    before += [] if example else [["plan", "first/study.yaml", "--run-id", "prepared"]]
    monkeypatch.chdir(work)
    for command in before:
        assert CliRunner().invoke(main, command).exit_code == 0
    monkeypatch.chdir(work / "it" if example else work)
    for command in words:
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, (command, done.output)


@pytest.mark.slow
def test_a_trainer_is_tried_by_hand(work: Path) -> None:
    [block] = [one for one in blocks("shell", of="docs/trainers.md") if "trial.json" in one.text]
    made = CliRunner().invoke(main, ["init", str(work / "mine"), "--example", "sklearn"])
    assert made.exit_code == 0, made.output
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", block.text],
        cwd=work,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"status": "complete"' in done.stdout


# -- Python ----------------------------------------------------------------------------------------


@parametrized_blocks("python")
def test_python_blocks_parse_and_import_existing_names(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trialfleet"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "trialfleet" or hasattr(trialfleet, node.attr), node.attr


def test_the_python_page_reads_days_and_costs_and_moves_models(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [one for one in blocks("python", of="docs/python.md") if "churn" in one.text]
    found = [one for one in found if "predict" not in one.text]
    assert len(found) == 2
    monkeypatch.chdir(work)
    write_days_and_models(work)
    for block in found:
        exec(block.text, {})  # noqa: S102  the page's own code
    output = capsys.readouterr().out
    assert "2026-11-22 ('2026-11-22',) {'north': 'no such file'}" in output
    assert output.endswith("r1 replaces r2 as the current model\n")


def test_a_study_without_a_file_is_planned(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = [one for one in blocks("python", of="docs/python.md") if "load_study(" in one.text]
    monkeypatch.chdir(work)
    assert CliRunner().invoke(main, ["init", "first"]).exit_code == 0
    names: dict[str, Any] = {}
    exec(block.text, names)  # noqa: S102  the page's own code
    assert (names["run"].folder / "study.dag").exists()
