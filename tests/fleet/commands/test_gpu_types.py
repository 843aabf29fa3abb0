"""`fleet gpus`: hardware and prices of a fleet's types, or of all, with AWS and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.fleet.mock_aws.moto_account import AWAY, HOME, IMAGE, Account
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import InstanceType
from trialfleet.workflows.cli.main import main

FLEET = f"name: f\naws_regions: [{HOME}]\nami: {IMAGE}\n"


@pytest.fixture
def cloud(cloud: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    monkeypatch.chdir(tmp_path)
    return cloud


def gpus(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["fleet", "gpus", *words])


def listed(*words: str) -> dict[str, dict[str, Any]]:
    result = gpus(*words, "--json")
    assert result.exit_code == 0, result.output
    return {one["name"]: one for one in json.loads(result.stdout)["types"]}


def test_a_fleets_types_are_listed_with_what_they_have_and_cost(cloud: Account) -> None:
    Path("fleet.yaml").write_text(f"{FLEET}instance_types: [g5.xlarge, g4dn.xlarge, m5.large]\n")
    found = listed()
    assert found.keys() == {"g5.xlarge", "g4dn.xlarge"}
    one = found["g5.xlarge"]
    assert one["type"]["gpu"] == "A10G"
    assert (one["type"]["gpus"], one["type"]["vcpus"]) == (1, 4)
    assert one["on_demand"] == {HOME: 1.123}
    assert one["spot"] > 0
    assert one["zone"].startswith(HOME)
    assert one["aws_regions"] == [HOME]
    lines = gpus("fleet.yaml").output.splitlines()
    (line,) = [line for line in lines if "g5.xlarge" in line]
    assert line.split()[:7] == ["g5.xlarge", "1", "A10G", "22", "GB", "4", "16"]
    assert "1.123" in line


def test_types_that_meet_the_needs_are_ordered_by_price_per_gpu(cloud: Account) -> None:
    Path("fleet.yaml").write_text(f"{FLEET}needs: {{gpus: 4}}\n")
    found = listed()
    assert {one["type"]["gpus"] for one in found.values()} == {4}
    known = [
        min([*one["on_demand"].values(), *([one["spot"]] if one["spot"] else [])]) / 4
        for one in found.values()
        if one["on_demand"] or one["spot"]
    ]
    assert len(known) > 2
    assert known == sorted(known)


@pytest.mark.thorough  # AWS's whole list, as moto gives it, takes twelve seconds
def test_the_option_aws_region_lists_all_gpu_types_of_the_regions(cloud: Account) -> None:
    Path("fleet.yaml").write_text(f"{FLEET}instance_types: [g5.xlarge]\n")
    found = listed("--aws-region", HOME, "--aws-region", AWAY)
    assert len(found) > 20
    assert all(one["type"]["gpus"] for one in found.values())
    (only_away,) = [one for one in found.values() if one["name"] == "p4de.24xlarge"]
    assert only_away["aws_regions"] == [AWAY]


def test_a_fleets_types_are_looked_up_in_other_regions_than_the_fleets(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = instance_types.resolve

    def sold(aws: Aws, fleet: Fleet, at: str) -> list[InstanceType]:
        return [one for one in resolve(aws, fleet, at) if at == AWAY or one.gpu != "A100"]

    monkeypatch.setattr(instance_types, "resolve", sold)
    Path("fleet.yaml").write_text(f"{FLEET}instance_types: [g5.xlarge, p4de.24xlarge]\n")
    found = listed("fleet.yaml", "--aws-region", AWAY)
    assert found["p4de.24xlarge"]["aws_regions"] == [AWAY]
    assert found["g5.xlarge"]["zone"].startswith(AWAY)


def test_the_shipped_prices_are_shown_with_a_notice_without_credentials(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as environment:  # moto takes its own keys away itself
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
            environment.delenv(f"AWS_{name}", raising=False)
        result = gpus("--aws-region", AWAY)
        both = listed("--aws-region", AWAY, "--aws-region", HOME)["p5.48xlarge"]
        Path("fleet.yaml").write_text(f"{FLEET}instance_types: [g5.xlarge]\n")
        named = listed()
        Path("fleet.yaml").write_text(f"{FLEET}needs: {{gpus: 4}}\n")
        needing = gpus().output
    assert result.exit_code == 0, result.output
    assert "p5.48xlarge" in result.output
    assert "no AWS credentials here: names and on-demand prices come from" in result.output
    assert (both["aws_regions"], both["type"]) == ([AWAY], None)
    assert named.keys() == {"g5.xlarge"}
    assert "`needs:` is not applied" in needing


def test_a_missing_file_or_an_unknown_region_is_reported(cloud: Account) -> None:
    result = gpus("--aws-region", "mars")
    assert result.exit_code == 2
    assert "'mars' is not an AWS region" in result.output
    nothing = gpus()
    assert nothing.exit_code == 2
    assert "name the file" in nothing.output
