"""`trialfleet fleet …` as a person types it, against moto."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.conftest import MakeRun
from tests.fleet.mock_aws.moto_account import ACCOUNT, IMAGE, Account, candidate, fleet, inputs
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import clients
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.commands import scale
from trialfleet.infra.fleet.commands.status import status
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.scaling.cost_record import current_record
from trialfleet.infra.fleet.scaling.down_note import reason_no_nodes
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool import schedd
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.formatting import usd

FLEET = f"""\
name: f
aws_regions: [eu-west-1]
instance_types: [g4dn.xlarge]
spot: {{share: 0}}
nodes: {{max: 2}}
price_cap: {{hour: 0.7}}
ami: {IMAGE}
"""


@pytest.fixture
def cloud(cloud: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "no-pool"))
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    Path("fleet.yaml").write_text(FLEET)
    return cloud


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """No run is submitted here, so /tmp will do."""
    return tmp_path


def fleet_command(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["fleet", *words])


def raised(cloud: Account) -> str:
    spec = fleet(spot={"share": 0})
    one = candidate(name="g4dn.xlarge", lifecycle="on-demand", price=0.58)
    return up.up(cloud.aws, spec, inputs(), [one]).instances[0].id


def test_plan_shows_prices_resources_and_the_next_command(cloud: Account) -> None:
    result = fleet_command("plan")
    assert result.exit_code == 0, result.output
    assert "g4dn.xlarge" in result.output
    assert f"S3 bucket trialfleet-f-{ACCOUNT}, prefix fleet/f/" in result.output
    assert "maximum 0.70 USD per hour" in result.output
    assert "next: trialfleet fleet up" in result.output
    assert cloud.instances() == []


GANGS = f"""\
name: f
resources: {{nodes: {{min: 2, max: 4}}, gpus: 8, memory: 4GB}}
fleet:
  aws_regions: [eu-west-1]
  instance_types: [g5.48xlarge]
  spot: {{share: 0}}
  nodes: {{max: 3}}
  ami: {IMAGE}
"""


def test_plan_shows_the_nodes_and_resources_of_gangs(cloud: Account) -> None:
    Path("study.yaml").write_text(GANGS)
    result = fleet_command("plan", "study.yaml")
    assert result.exit_code == 0, result.output
    assert "a gang of 2 to 4 jobs takes 2 to 3 nodes of g5.48xlarge on-demand: " in result.output
    plan = json.loads(fleet_command("plan", "study.yaml", "--json").output)
    (gang,) = plan["gangs"]
    price = plan["candidates"][0]["price"]
    assert (gang["min_per_hour"], gang["max_per_hour"]) == (2 * price, 3 * price)
    assert "cluster placement group trialfleet-f in eu-west-1" in plan["makes"]
    assert "an Elastic Fabric Adapter for each node of g5.48xlarge" in plan["makes"]
    assert not {"placement", "Adapter"} & set(" ".join(resources_without_gangs()).split())


def resources_without_gangs() -> list[str]:
    plan = json.loads(fleet_command("plan", "fleet.yaml", "--json").output)
    assert plan["gangs"] == []
    return list(plan["makes"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "min: 2, max: 4",
            "min: 4, max: 4",
            "has room for at most 3: nodes.max is 3, and a node holds 1 of them",
        ),
        ("memory: 4GB", "memory: 4TB", "nodes.max is 3, and a node holds 0 of them"),
        ("spot:", "price_cap: {hour: 30}\n  spot:", "but `price_cap.hour` is 30"),
    ],
)
def test_a_gang_that_could_never_begin_is_an_error_of_plan(
    cloud: Account, old: str, new: str, words: str
) -> None:
    Path("study.yaml").write_text(GANGS.replace(old, new))
    result = fleet_command("plan", "study.yaml")
    assert result.exit_code == 2
    assert words in result.output


def test_plan_can_print_only_json_or_only_the_policies(cloud: Account) -> None:
    plan = json.loads(fleet_command("plan", "--json").output)
    assert plan["candidates"][0]["type"]["name"] == "g4dn.xlarge"
    policies = json.loads(fleet_command("plan", "--policy").output)
    assert policies.keys() == {"caller", "daily", "node", "reap"}
    for name, document in policies.items():
        for words in (["--policy", name], ["fleet.yaml", "--policy", name], [f"--policy={name}"]):
            assert json.loads(fleet_command("plan", *words).output) == document
    for words in (["--policy", "fleet.yaml"], ["fleet.yaml", "--policy"], ["--policy", "all"]):
        assert json.loads(fleet_command("plan", *words).output) == policies


def test_the_policies_need_no_credentials_where_the_account_is_given(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = json.loads(fleet_command("plan", "--policy", "--account", ACCOUNT).output)
    assert given == json.loads(fleet_command("plan", "--policy").output)
    with monkeypatch.context() as environment:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
            environment.delenv(f"AWS_{name}", raising=False)
        refused = fleet_command("plan", "--policy")
        asked = fleet_command("plan", "--policy", "--account", ACCOUNT)
    assert refused.exit_code != 0
    assert "no AWS credentials here" in refused.output
    assert "--account 123456789012" in refused.output
    assert (asked.exit_code, json.loads(asked.output)) == (0, given)


def test_status_shows_a_node_and_says_why_the_pool_is_silent(cloud: Account) -> None:
    name = raised(cloud)
    text = fleet_command("status").output
    assert name in text
    assert "0.58 USD/h" in text
    assert "the pool can't be asked" in text
    content = json.loads(fleet_command("status", "--json").output)
    assert [node["instance"]["id"] for node in content["nodes"]] == [name]


def test_down_removes_all_and_says_so(cloud: Account) -> None:
    raised(cloud)
    result = fleet_command("down", "--now", "fleet.yaml")
    assert result.exit_code == 0, result.output
    assert "everything is deleted; the fleet has cost about 0.0" in result.output
    assert not [holding for holding in cloud.holdings() if "trialfleet" in holding]


def test_after_down_the_cost_is_shown_and_no_longer_grows(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised(cloud)
    out = fleet_command("down", "--now").output
    said = re.findall(r"the fleet has cost about ([0-9.]+) USD", out)
    later, spec = datetime.now(UTC) + timedelta(hours=3), fleet(spot={"share": 0})
    shown = json.loads(fleet_command("status", "--json").output)
    assert shown["nodes"][0]["why"] == "it has ended: `fleet down`"
    spent = [shown["spent"]]
    with monkeypatch.context() as patch:
        patch.setattr(inventory, "list_instances", lambda *_: [])  # AWS has forgotten the instance
        spent += [status(cloud.aws, spec, now=later).spent]
    assert [usd(each) for each in spent] == said * 2
    assert float(said[0]) > 0
    raised(cloud)
    assert current_record(cloud.aws, spec)[0].cost(later) > 0.58 * 2.9 + spent[0]


def test_cost_names_an_aws_region_that_does_not_list_its_nodes(
    cloud: Account, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "Aws", lambda: cloud.aws)
    run = make_run(fleet={"name": "f", "aws_regions": ["eu-west-1", "us-east-1"]}).folder
    cloud.faults.refuse("DescribeInstances", "AuthFailure", "disabled", aws_region="us-east-1")
    done = CliRunner().invoke(main, ["cost", "--json", str(run)])
    assert json.loads(done.output)["notices"] == [
        "the fleet f: the instances in us-east-1: AWS refused: AuthFailure: disabled"
    ]


def test_down_names_the_runs_that_use_the_fleet_and_asks(
    cloud: Account, monkeypatch: pytest.MonkeyPatch, make_run: MakeRun
) -> None:
    raised(cloud)
    own = {"name": "f", "aws_regions": ["eu-west-1"]}
    run, other = make_run(fleet=own).folder, make_run(run="r2", fleet=own | {"name": "g"}).folder
    queued = [{"TrialfleetFolder": str(place)} for place in (run, other, "/gone")]
    monkeypatch.setattr(schedd, "query", lambda *_: queued)
    refused = fleet_command("down", "--now")
    assert refused.exit_code == 2
    assert "in progress on the fleet f: runs/r1\n" in refused.output
    assert "stop the run with `trialfleet stop runs/r1`" in refused.output
    assert cloud.instances()
    assert reason_no_nodes("f") == ""
    done = fleet_command("down", "--now", "--yes")
    assert (done.exit_code, cloud.instances()) == (0, [])
    assert "everything is deleted" in done.output
    assert reason_no_nodes("f").startswith("the fleet was taken down at ")


def test_down_reports_a_bucket_that_it_could_not_delete(cloud: Account) -> None:
    raised(cloud)
    bucket = f"trialfleet-f-{ACCOUNT}"
    cloud.client("s3").put_object(Bucket=bucket, Key="somebodys", Body=b"")
    result = fleet_command("down", "--now", "fleet.yaml")
    assert result.exit_code == 1
    assert result.output.splitlines()[-2:] == [
        f"left: in S3: s3://{bucket} in eu-west-1",
        "to try again: trialfleet fleet down fleet.yaml",
    ]


def test_reap_fails_if_an_aws_region_can_not_be_searched(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, listed = raised(cloud), inventory.list_instances

    def list_instances(aws: Aws, aws_region: str, filters: Any) -> list[Instance]:
        if aws_region == "us-east-1":
            raise FleetError("the instances in us-east-1: AWS refused")
        return listed(aws, aws_region, filters)

    monkeypatch.setattr(inventory, "list_instances", list_instances)
    cloud.client("ec2").create_tags(
        Resources=[name], Tags=[{"Key": "trialfleet:expires", "Value": "2026-01-01T00:00:00Z"}]
    )
    result = fleet_command("reap", "--aws-region", "us-east-1", "--aws-region", "eu-west-1")
    assert (result.exit_code, cloud.instances()) == (1, [])
    assert "1 terminated" in result.output
    assert "the instances in us-east-1: AWS refused" in result.output


def test_scale_fails_if_a_node_stays(cloud: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = "i-1 still runs JFK.l1.t03 after 120 s"
    monkeypatch.setattr(scale, "scale", lambda *_: [stays])
    result = fleet_command("scale", "0")
    assert (result.exit_code, result.output) == (1, f"{stays}\n")


def test_reap_terminates_expired_nodes_unless_it_is_a_dry_run(cloud: Account) -> None:
    name = raised(cloud)
    assert fleet_command("reap", "--aws-region", "eu-west-1", "--dry-run").output == ""
    cloud.client("ec2").create_tags(
        Resources=[name], Tags=[{"Key": "trialfleet:expires", "Value": "2026-01-01T00:00:00Z"}]
    )
    assert name in fleet_command("reap", "--aws-region", "eu-west-1", "--dry-run").output
    assert len(cloud.instances()) == 1
    assert "1 terminated" in fleet_command("reap", "--aws-region", "eu-west-1").output
    assert cloud.instances() == []


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["plan", "nothing.yaml"], 2, "nothing.yaml: the file does not exist"),
        (["scale", "9"], 2, "the fleet may have 0 to 2 nodes (nodes.max), not 9"),
        (["scale", "many"], 2, "many"),
        (["up"], 2, "or the instance's metadata service does not answer: set `manager:`"),
        (["bake"], 2, "set `manager:`"),
        (["bake", "--architecture", "arm64"], 2, "--architecture requires --format image-builder"),
        (["reap"], 2, "--aws-region"),
        (["plan", "--account", "123456789012"], 2, "--account requires --policy"),
        (
            ["plan", "--policy", "dialy"],
            2,
            "caller, daily, node, reap, or a fleet's file (did you mean",
        ),
        (["plan", "--policy", "nothing.yaml"], 2, "caller, daily, node, reap, or a fleet's file"),
        (["plan", "--policy", "--account", "my-account"], 2, "12-digit number"),
        (["reap", "--aws-region", "mars"], 2, "'mars' is not an AWS region; write one such as"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(
    cloud: Account, words: list[str], code: int, expected: str
) -> None:
    result = fleet_command(*words)
    assert result.exit_code == code, result.output
    assert expected in result.output
    assert "Traceback" not in result.output
    assert cloud.instances() == []


def test_a_missing_fleet_file_is_reported(cloud: Account) -> None:
    Path("fleet.yaml").unlink()
    result = fleet_command("status")
    assert result.exit_code == 2
    assert "neither study.yaml nor fleet.yaml" in result.output
