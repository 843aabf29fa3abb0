"""The recipe of a node image: the first steps of a node's boot, packed as a shell script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fleet.mock_aws.moto_account import ACCOUNT, IMAGE, Account, fleet, inputs
from trialfleet.infra.fleet.commands import bake
from trialfleet.infra.fleet.lifecycle.up import NodeInputs, node_settings
from trialfleet.infra.fleet.nodes import user_data


@pytest.fixture
def given() -> NodeInputs:
    return inputs()


def unpacked(program: str, folder: Path) -> str:
    """Return the program that the shell would give to Python."""
    script = program.replace("/root/", f"{folder}/").replace("python3 ", "cat ")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("aws_region", "partition"), [("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn")]
)
def test_image_builders_names_are_of_the_regions_partition(
    cloud: Account, given: NodeInputs, aws_region: str, partition: str
) -> None:
    there = fleet(aws_regions=[aws_region], ami={aws_region: IMAGE})
    calls = bake.image_builder(cloud.aws, there, given, "x86_64")
    arns = [
        calls["create-image-recipe"]["components"][0]["componentArn"],
        *calls["create-image"].values(),
    ]
    assert {arn.split(":")[1] for arn in arns} == {partition}


def test_the_script_is_the_user_data_of_an_image_without_the_token(
    cloud: Account, given: NodeInputs, tmp_path: Path
) -> None:
    text = unpacked(bake.script(cloud.aws, fleet(), given), tmp_path)
    node_values = node_settings(fleet(), given, f"trialfleet-f-{ACCOUNT}")
    expected = {**node_values, "run": "", "image": True, "boot_minutes": bake.BUILD_MINUTES}
    assert text == user_data.render(expected)
    assert list(tmp_path.iterdir()) == []
    assert given.token not in text


def test_image_builder_gets_the_script_as_a_valid_component(
    cloud: Account, given: NodeInputs, tmp_path: Path
) -> None:
    calls = bake.image_builder(cloud.aws, fleet(), given, "x86_64")
    assert json.loads(json.dumps(calls)) == calls
    data = calls["create-component"]["data"]
    assert len(data) <= 14_000  # of 16,000, with room for longer names
    (step,) = YAML(typ="safe", pure=True).load(data)["phases"][0]["steps"]
    (command,) = step["inputs"]["commands"]
    own = bake.script(cloud.aws, fleet(), given)
    assert unpacked(command, tmp_path) == unpacked(own, tmp_path)
    assert calls["create-image-recipe"]["parentImage"] == IMAGE
    arn = calls["create-image-recipe"]["components"][0]["componentArn"]
    assert arn == f"arn:aws:imagebuilder:eu-west-1:{ACCOUNT}:component/trialfleet-f/1.0.0"
