"""The JSON Schema of a study file, read by a validator of its own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from trialfleet.workflows.study.spec import Study

pytestmark = pytest.mark.slow


def plain(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


PACKAGE = Path(str(resources.files("trialfleet.workflows"))).parent
SHIPPED = [
    PACKAGE / "templates/init/study.yaml",
    *sorted((PACKAGE / "workflows/examples/flights").glob("*.yaml")),
]


def faults(study: Any) -> list[str]:
    """Return the places at which the exported schema finds a study wrong."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = Study.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(schema).iter_errors(study)
    return sorted(".".join(map(str, error.absolute_path)) for error in found)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name + "/" + path.name)
def test_the_schema_accepts_the_studies_that_are_shipped(path: Path) -> None:
    assert faults(plain(path)) == []


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"acelerator": "cpu"}, ""),
        ({"accelerator": "tpu"}, "accelerator"),
        ({"regions": []}, "regions"),
        ({"regions": {"A": {"budgt": {}}}}, "regions"),
        ({"data": 3}, "data"),
        ({"resources": {"memory": "2gb"}}, "resources.memory"),
        ({"resources": {"disk": "0GB"}}, "resources.disk"),
        ({"resources": {"gpus": 0}}, "resources.gpus"),
        ({"resources": {"gpus": 1.5}}, "resources.gpus"),
        ({"fleet": {"aws_regions": ["eu-west-1"], "probe": {"pool_share": 2}}}, "fleet"),
        ({"trainer": {"command": 3}}, "trainer"),
        ({"trainer": {"command": "sh go.sh", "minutes": 0.001}}, "trainer"),
        ({"search_space": {"x": {"type": "floaty"}}}, "search_space.x"),
    ],
)
def test_the_schema_finds_what_is_wrong(changes: dict[str, Any], place: str) -> None:
    assert faults({**plain(SHIPPED[0]), **changes}) == [place]


def test_the_time_limit_is_documented_as_not_retried() -> None:
    """Holds of codes 46 and 47 are final in `outcome`."""
    described = Study.model_json_schema()["$defs"]["Trainer"]["properties"]["minutes"]
    example = SHIPPED[0].read_text(encoding="utf-8")
    assert "not retried" in described["description"]
    assert "not retried" in example


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": {"command": "sh go.sh", "files": "go.sh", "minutes": None}},
        {"regions": {"A": None, "B": {"data": "x", "budget": {"trials": None}}}},
        {"regions": {"glob": "*.csv"}},
        {"data": ["a", "b"], "storage": "sqlite:///x.db"},
        {"search_space": {"x": {"type": "int", "low": 0, "high": 9, "when": {"y": 3}}}},
        {"search_space": {"x": {"type": "int", "low": 0, "high": 9, "when": {"y": ["a"]}}}},
        {"resources": {"gpus": 2}},
        {"resources": {"gpus": 0.25}},
        {"resources": {"gpus": "1/3"}},
        {"notify": [{"mail": {"to": "a@example.org"}, "events": "day-done"}]},
        {"fleet": {"aws_regions": ["eu-west-1"], "trials_per_gpu": 2, "probe": {"launch_rate": 1}}},
    ],
)
def test_the_schema_accepts_every_form(changes: dict[str, Any]) -> None:
    assert faults({**plain(SHIPPED[0]), **changes}) == []
