"""Warnings and notes of `fleet plan`: errors and surprises in the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.fleet.mock_aws import moto_account
from tests.fleet.mock_aws.moto_account import AWAY, HOME, IMAGE, Account
from trialfleet.infra.fleet.aws import bucket, own_instance
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.commands import manager_checks
from trialfleet.infra.fleet.commands.plan import FleetPlan, fleet_plan
from trialfleet.infra.fleet.scaling import cost_record
from trialfleet.infra.fleet.scaling.instance_costs import Ledger, Lifetime
from trialfleet.infra.fleet.scaling.suitable_types import GangNeed
from trialfleet.infra.pool.machines import Resources
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.fleet_tables import plan_view
from trialfleet.workflows.study.loading import load_fleet

IMAGES = {HOME: IMAGE, AWAY: IMAGE}
BOTH: dict[str, Any] = {"aws_regions": [HOME, AWAY], "ami": IMAGES}
MANAGER = OwnInstance(id="i-1", aws_region=HOME, address="10.0.0.5")


def planned(cloud: Account, own: OwnInstance | None = None, **changes: Any) -> FleetPlan:
    fleet = moto_account.fleet(**{"instance_types": ["g5.xlarge"], **changes})
    with mock.patch.object(own_instance, "find", return_value=own):
        return fleet_plan(cloud.aws, fleet)


def command(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["fleet", "plan", *words])


@pytest.fixture
def file(cloud: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fleet.yaml"
    path.write_text(f"name: f\naws_regions: [{HOME}]\ninstance_types: [g5.xlarge]\nami: {IMAGE}\n")
    return path


@pytest.mark.parametrize(
    ("own", "changes", "words"),
    [
        (MANAGER, {}, ""),
        (None, {}, ""),
        (MANAGER, BOTH, f"nodes in {AWAY} can't reach the manager: without `manager:`"),
        (None, BOTH, "several AWS regions and no `manager:`"),
        (MANAGER, {**BOTH, "manager": "pool.example"}, ""),
        (
            OwnInstance(id="i-1", aws_region=AWAY, address="10.0.0.5"),
            {},
            (
                f"nodes in {HOME} can't reach the manager: without `manager:` they get its "
                f"private address in {AWAY}, 10.0.0.5"
            ),
        ),
    ],
)
def test_a_manager_that_another_regions_nodes_do_not_reach_is_reported(
    cloud: Account, own: OwnInstance | None, changes: dict[str, Any], words: str
) -> None:
    warnings = planned(cloud, own, **changes).warnings
    found = [one for one in warnings if "manager" in one]
    assert len(found) == bool(words)
    assert words in "".join(found)
    fleet = moto_account.fleet(**changes)
    with mock.patch.object(own_instance, "find", return_value=own):
        findings = {one.check: one for one in manager_checks.examine(fleet)}
    assert ("manager, from its nodes" in findings) == bool(words)
    if words:
        finding = findings["manager, from its nodes"]
        assert words in finding.found
        assert "set `manager:`" in finding.advice


def test_a_manager_that_only_some_nodes_can_reach_is_a_warning_not_an_error() -> None:
    def found(**changes: Any) -> bool | None:
        with mock.patch.object(own_instance, "find", return_value=MANAGER):
            findings = manager_checks.examine(moto_account.fleet(**changes))
        return next(one.ok for one in findings if one.check == "manager, from its nodes")

    assert found(**BOTH) is None
    assert found(aws_regions=[AWAY]) is False


def test_a_pool_with_many_interruptions_is_not_the_first_candidate(cloud: Account) -> None:
    zone = planned(cloud).candidates[0].zone
    then = datetime.now(UTC) - timedelta(hours=2)
    one = Lifetime(type="g5.xlarge", price=1.0, launched=then, ended=then, zone=zone)
    shaky = replace(one, lifecycle="spot", taken_back=then)
    spec, account = moto_account.fleet(), cloud.aws.account(HOME)
    bucket.ensure(cloud.aws, spec, account)
    cost_record.save(cloud.aws, spec, Ledger(lifetimes={f"i-{n}": shaky for n in range(99)}))
    assert planned(cloud).candidates[0].zone != zone


def test_an_image_that_is_not_there_is_an_error_and_the_plan_is_shown(
    cloud: Account, file: Path
) -> None:
    assert command("fleet.yaml").exit_code == 0
    file.write_text(file.read_text().replace(IMAGE, "ami-00000000000000000"))
    result = command("fleet.yaml")
    assert result.exit_code == 1
    reason = f"ami: {HOME} has no image ami-00000000000000000 that this account may use"
    assert reason in result.output
    assert "IAM role and instance profile trialfleet-f" in result.output
    assert "next:" not in result.output
    as_json = command("fleet.yaml", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["problems"] == [reason]


def test_on_demand_prices_are_shown_next_to_spot_prices(cloud: Account, file: Path) -> None:
    text = command("fleet.yaml").output
    (line,) = [one for one in text.splitlines() if "g5.xlarge" in one and "eu-west-1a" in one]
    assert "on-demand" in text.splitlines()[2]
    assert line.split()[-2:] == ["1.123", "1.00"]
    assert planned(cloud).on_demand == {HOME: {"g5.xlarge": 1.123}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"price_cap": {"hour": 4}}, ""),
        ({"price_cap": {"hour": 4}, "nodes": {"min": 3, "max": 4}}, ""),
        (
            {"price_cap": {"hour": 3}, "nodes": {"min": 3, "max": 4}},
            (
                "`price_cap.hour` (3) pays for 2 nodes at 1.123 USD per hour, fewer than "
                "`nodes.min` (3): raise the cap"
            ),
        ),
        (
            {"price_cap": {"run": 0.3}},
            (
                "`price_cap.run` (0.3) pays for 16 minutes of one node at 1.123 USD per hour, "
                "but a node may take 20 minutes to join: raise the cap"
            ),
        ),
        ({"price_cap": {"run": 4}}, ""),
    ],
)
def test_a_cap_that_pays_for_too_little_is_reported(
    cloud: Account, changes: dict[str, Any], words: str
) -> None:
    plan = planned(cloud, spot={"share": 0}, **changes)
    assert [words] * bool(words) == list(plan.warnings)


def test_trials_that_want_gpus_on_a_type_without_gpus_are_reported(
    cloud: Account, file: Path
) -> None:
    study = {
        "name": "f",
        "accelerator": "gpu",
        "fleet": {
            "aws_regions": [HOME],
            "instance_types": ["m5.large", "g5.xlarge"],
            "ami": IMAGE,
        },
    }
    file.write_text(json.dumps(study))
    words = "m5.large has no GPU, but the study's trials need one (accelerator: gpu)"
    assert words in command("fleet.yaml").output
    file.write_text(json.dumps(study | {"accelerator": "cpu"}))
    assert words not in command("fleet.yaml").output


def test_the_json_plan_has_the_fleets_settings_and_warnings(cloud: Account, file: Path) -> None:
    file.write_text(
        file.read_text() + "spot: {ceiling: 0.9}\nidle_minutes: 7\nmanager: pool.example\n"
    )
    plan = json.loads(command("fleet.yaml", "--json").stdout)
    assert {key: plan[key] for key in ("spot_ceiling", "idle_minutes", "manager", "currency")} == {
        "spot_ceiling": 0.9,
        "idle_minutes": 7,
        "manager": "pool.example",
        "currency": "USD",
    }
    assert (plan["problems"], plan["warnings"]) == ([], [])


def test_a_plan_without_the_record_of_interruptions_says_so(cloud: Account) -> None:
    cloud.faults.refuse("GetObject", "AccessDenied")
    (line,) = planned(cloud).warnings
    assert line.startswith(
        "past interruptions are unknown, so they don't count in the choice of nodes: the record of "
        "costs s3://trialfleet-f-"
    )


# --- Pools ----------------------------------------------------------------------------------------

TYPES = ["g5.xlarge", "g5.2xlarge", "g5.4xlarge"]


def pools_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith("g5.")]


def test_the_plan_shows_past_interruptions_of_each_pool(cloud: Account, file: Path) -> None:
    ended = datetime.now(UTC) - timedelta(days=1)
    life = Lifetime(
        type="g5.xlarge",
        price=0.4,
        launched=ended - timedelta(hours=4),
        ended=ended,
        zone=f"{HOME}a",
        lifecycle="spot",
        taken_back=ended,
    )
    spec = load_fleet(file)
    bucket.ensure(cloud.aws, spec, "123456789012")
    cost_record.save(cloud.aws, spec, Ledger(lifetimes={"i-1": life}))
    plan = planned(cloud)
    (seen,) = [seen for seen in plan.seen if seen.hours]
    assert seen.interruptions == pytest.approx(0.87, abs=0.01)  # half of it in five days
    [*others, shaky] = pools_of(command("fleet.yaml").output)
    assert shaky[1] == f"{HOME}a"
    assert "0.9 in 3.5 h" in " ".join(shaky)
    assert float(shaky[-1]) < float(others[0][-1]) == 1.0


def test_the_plan_says_how_many_nodes_are_spot(cloud: Account, file: Path) -> None:
    text = file.read_text() + "\nspot: {share: 0.5, base: 1}\nnodes: {max: 4}\n"
    file.write_text(text.replace("[g5.xlarge]", str(TYPES)))
    output = command("fleet.yaml").output
    assert "of 4 nodes, 2 are spot: 50% of the nodes beyond spot.base (1), rounded up" in output


def test_the_plan_shows_that_spot_nodes_are_rounded_to_complete_gangs(cloud: Account) -> None:
    room = Resources(cpus=1, gpus=1, memory_mb=1_000)
    mixed = moto_account.fleet(instance_types=["g5.xlarge"], spot={"share": 0.5}, gangs={})
    plan = fleet_plan(cloud.aws, mixed, [GangNeed(min=2, max=2, need=room)])
    console = Console(width=200)
    with console.capture() as shown:
        console.print(plan_view(plan))
    text = "of 4 nodes, 2 are spot: 50%, rounded to whole gangs"
    assert text in shown.get()
