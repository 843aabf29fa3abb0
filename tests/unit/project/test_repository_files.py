"""Files that the repository's host reads: the workflow, the issue forms, the citation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from trialfleet.workflows.cli.main import main

ROOT = Path(__file__).parents[3]
FORMS = ["bug", "feature"]


def loaded(name: str) -> Any:
    return YAML(typ="safe").load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_calls_ci_run_on_every_python_and_the_thorough_tests_once() -> None:
    jobs = loaded(".github/workflows/ci.yml")["jobs"]
    commands = {name: job["steps"][-1]["run"] for name, job in jobs.items()}
    assert commands == {"test": ".ci/run", "thorough": ".ci/run test-all"}
    pythons = jobs["test"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert [int(each.split(".")[1]) for each in pythons] == [11 + at for at in range(len(pythons))]


@pytest.mark.parametrize("name", FORMS)
def test_an_issue_form_is_complete(name: str) -> None:
    form = loaded(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert all(each["attributes"]["label"] for each in fields)
    assert len({each["id"] for each in fields}) == len(fields) > 2
    assert any(each["validations"]["required"] for each in fields if "validations" in each)


def test_the_bug_form_asks_for_the_output_of_existing_commands() -> None:
    text = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    asked = re.findall(r"`trialfleet (\w+) ?([^`]*)`", text)
    assert "why" in {name for name, _ in asked}
    for name, arguments in asked:
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        options = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--\w+", arguments)) <= options


def test_the_citation_has_what_its_format_requires() -> None:
    citation = loaded("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "trialfleet"
    assert citation["message"]
    assert citation["type"] == "software"
    assert all(author["name"] for author in citation["authors"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"].split()[0] == citation["license"]
    assert project["description"].startswith(citation["abstract"].partition(",")[0])
    assert "version" not in citation  # pyproject.toml is its only place
