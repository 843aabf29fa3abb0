"""Stable names of the programs that a run, a unit or a pool starts after it is written."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trialfleet
from tests.unit.plan.test_plan import make_study
from trialfleet import programs
from trialfleet.workflows.control.daily.start_script import write_start
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.facts.journal.folder import DailyFolder

ROOT = Path(__file__).parents[3]
PACKAGE = Path(trialfleet.__file__).parent
# A module, or a file of one; nodes have a bundle of their own.
MODULE = re.compile(r"trialfleet[./](?:workflows|optimizer|infra)\b")
STARTED = re.compile(r"(?:-m trialfleet\.programs|/trialfleet/programs\.py) ([\w-]+)")
STUDY = {
    "resources": {"nodes": {"min": 1, "max": 2}},
    "fleet": {"aws_regions": ["eu-west-1"], "autoscale": "service"},
    "notify": [{"command": ["true"]}],
    "export": {"s3": "s3://ours/models"},
}


def texts_below(folder: Path) -> dict[str, str]:
    """Return all files except those that travel with the jobs, which no update reaches."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "code")
    return {str(path.relative_to(folder)): path.read_text(errors="replace") for path in files}


def test_a_planned_run_and_a_daily_start_name_programs_and_no_modules(tmp_path: Path) -> None:
    run = write_plan(make_study(tmp_path, **STUDY), run="r1", out=tmp_path / "run")
    write_start(DailyFolder(tmp_path / "daily"), "demo", tmp_path / "study.yaml")
    texts = texts_below(tmp_path)
    assert {"client", "gang.sub", "fleet.sub"} <= {Path(name).name for name in texts}
    assert [name for name, text in texts.items() if MODULE.search(text)] == []
    started = {name for text in texts.values() for name in STARTED.findall(text)}
    assert started == {"ask-service", "serve"}
    (own,) = re.findall(r"^case .*^esac", run.client.read_text(), re.DOTALL | re.MULTILINE)
    assert {*re.findall(r"^([a-z-]+)\)", own, re.MULTILINE)} <= {*programs.PROGRAMS}


def test_no_template_and_no_text_of_the_code_names_a_module() -> None:
    files = [path for path in (ROOT / "templates").rglob("*") if path.is_file()]
    assert len(files) > 50
    assert [path for path in files if MODULE.search(path.read_text(errors="replace"))] == []
    texts = {
        node.value
        for top in ("workflows", "infra", "optimizer")
        for path in (ROOT / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert [text for text in texts if re.fullmatch(rf"{MODULE.pattern}\S*", text)] == []


def test_names_stay_for_ever() -> None:
    assert {*programs.PROGRAMS} >= {
        *("ask-service", "serve", "publish", "report", "keep-gangs", "autoscale"),
        *("supervise", "notify", "export", "schedule-alerts"),
    }


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_each_name_is_a_module_with_a_main(name: str) -> None:
    assert callable(import_module(programs.PROGRAMS[name]).main)


@pytest.mark.parametrize("name", sorted({*programs.PROGRAMS} - {"ask-service"}))
@pytest.mark.slow
def test_each_program_shows_its_usage_with_its_name(name: str) -> None:
    done = subprocess.run(programs.command(name, "--help"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: trialfleet.programs {name} ")


@pytest.mark.parametrize("how", [["-m", "trialfleet.programs"], ["-S", str(programs.__file__)]])
@pytest.mark.parametrize("words", [[], ["tidy", "--now"]])
def test_an_unknown_name_is_answered_with_the_known_ones(how: list[str], words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-I", *how, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    known = ", ".join(programs.PROGRAMS)
    given = words[0] if words else ""
    assert done.stderr == f"trialfleet has no program {given!r}; its programs are {known}\n"
