"""`fleet doctor`: each check reports what it found, whether that is sufficient, and advice."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.fleet.mock_aws import moto_account, moto_iam
from tests.fleet.mock_aws.moto_account import ACCOUNT, HOME, Account
from trialfleet.errors import PoolError
from trialfleet.infra.fleet.aws import policy
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import candidates as choice
from trialfleet.infra.fleet.choice import prices, quotas
from trialfleet.infra.fleet.commands import doctor, manager_checks
from trialfleet.infra.fleet.commands.permissions import Finding
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool import htcondor_installation

MINE = moto_account.fleet(instance_types=["g5.xlarge"], spot={"share": 0.5}, nodes={"max": 4})


@pytest.fixture(autouse=True)
def here(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine be no EC2 instance and no manager, whatever pool other tests have used."""
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TRIALFLEET_NODE_TOKEN", str(tmp_path / "token"))


@pytest.fixture
def port() -> Iterator[int]:
    """A port where something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def findings(aws: Aws, fleet: Fleet = MINE) -> dict[str, Finding]:
    return {one.check: one for one in doctor.examine(aws, fleet)}


def quota_findings(vcpus: int | None, fleet: Fleet = MINE) -> dict[str, Finding]:
    """Return the findings of an account whose every quota is so large."""
    with (
        moto_account.account() as account,
        mock.patch.object(quotas, "vcpus", return_value=vcpus),
    ):
        found = findings(account.aws, fleet)
    return {check: one for check, one in found.items() if check.startswith("quota")}


def token(lasts: timedelta) -> str:
    ends = int((datetime.now(UTC) + lasts).timestamp())
    payload = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).decode().rstrip("=")
    return f"e30.{payload}.x"


def token_finding(folder: Path, lasts: timedelta) -> Finding:
    (folder / "token").write_text(token(lasts))
    return manager_checks.examine(MINE)[3]


def test_a_healthy_account_passes(cloud: Account) -> None:
    found = findings(cloud.aws)
    well = [check for check, one in found.items() if one.ok]
    assert well == [
        "credentials",
        "clock",
        "instance types and prices",
        "image for x86_64 in eu-west-1",
        "permission to see the role",
        "permission to see the instance profile",
        "permission to see the bucket",
        "permission to see the token's parameter",
        "permission to see instances",
        "permission to make a security group in eu-west-1",
        "permission to make a launch template in eu-west-1",
        "trialfleet",
    ]
    assert ACCOUNT in found["credentials"].found
    assert "g5.xlarge spot in eu-west-1a" in found["instance types and prices"].found


def test_the_doctor_changes_nothing_in_the_account(cloud: Account) -> None:
    before = cloud.holdings()
    findings(cloud.aws)
    assert cloud.holdings() == before
    assert cloud.faults.calls.count("sts:GetCallerIdentity") == 1


def test_only_this_machine_is_checked_without_credentials() -> None:
    nobody = mock.Mock(spec=boto3.Session, wraps=boto3.Session("x", "x"))
    nobody.client.side_effect = _unsigned
    found = findings(Aws(nobody))
    assert found["credentials"].ok is False
    assert "no AWS credentials" in found["credentials"].found
    assert found["clock"].ok is None
    assert set(found) == {
        *("credentials", "clock", "manager", "HTCondor", "trialfleet", "token of the nodes")
    }


def _unsigned(name: str, **settings: Any) -> Any:
    session = boto3.Session()
    with mock.patch.object(session._session, "get_credentials", return_value=None):
        return session.client(name, **settings)  # type: ignore[call-overload]


@pytest.mark.parametrize(("seconds", "ok"), [(5, True), (-5, True), (90, False), (-90, False)])
def test_a_wrong_clock_is_reported(cloud: Account, seconds: int, ok: bool) -> None:
    away = datetime.now(UTC) - timedelta(seconds=seconds)
    with mock.patch.object(doctor, "response_time", return_value=away):
        clock = findings(cloud.aws)["clock"]
    assert clock.ok is ok
    assert ("ahead of AWS" in clock.found) == (seconds > 0)
    assert ("set-ntp" in clock.advice) == (not ok)


def test_the_clock_check_uses_the_time_in_a_refusal_of_aws(cloud: Account) -> None:
    now = datetime.now(UTC)
    answer: Any = cloud.aws.caller(HOME)
    aws_time = doctor.response_time(answer)
    assert aws_time is not None
    assert abs(aws_time - now) < timedelta(seconds=5)
    refusal = ClientError(answer, "GetCallerIdentity")
    with mock.patch.object(cloud.aws.sts(HOME), "get_caller_identity", side_effect=refusal):
        found = findings(cloud.aws)
    assert (found["credentials"].ok, found["clock"].ok) == (False, True)


def test_a_quota_for_all_nodes_passes() -> None:
    spot, on_demand = quota_findings(8).values()  # of four nodes of 4 vCPUs, two are spot
    assert spot.ok is on_demand.ok is True
    enough = "8 vCPUs: enough for 2 of the smallest nodes; the fleet has up to 2"
    assert spot.found == f"{enough} spot nodes"
    assert on_demand.found == f"{enough} on-demand nodes"


def test_a_quota_must_suffice_for_the_on_demand_base_too() -> None:
    fleet = MINE.model_copy(update={"spot": MINE.spot.model_copy(update={"base": 2})})
    spot, on_demand = quota_findings(8, fleet).values()  # one of four nodes is spot
    assert (spot.ok, on_demand.ok) == (True, None)
    assert on_demand.advice.startswith("ask AWS for 12 vCPUs: ")


def test_a_quota_for_some_nodes_is_reported() -> None:
    for one in quota_findings(4).values():
        assert one.ok is None
        assert one.advice.startswith("ask AWS for 8 vCPUs: https://")


def test_a_quota_for_no_node_is_wrong() -> None:
    found = quota_findings(0)
    assert [one.ok for one in found.values()] == [False, False]
    assert set(found) == {
        "quota in eu-west-1: All G and VT Spot Instance Requests",
        "quota in eu-west-1: Running On-Demand G and VT instances",
    }


def test_an_unknown_quota_neither_passes_nor_fails() -> None:
    assert [one.ok for one in quota_findings(None).values()] == [None, None]


@pytest.mark.parametrize(
    ("instance_type", "lifecycle", "code"),
    [
        ("g5.xlarge", "spot", "L-3819A6DF"),
        ("g6e.xlarge", "on-demand", "L-DB2E81BA"),
        ("gr6.4xlarge", "on-demand", "L-DB2E81BA"),
        ("p3.2xlarge", "spot", "L-7212CCBC"),
        ("p4d.24xlarge", "on-demand", "L-417A185B"),
        ("p5en.48xlarge", "spot", "L-C4BD4855"),
        ("p6-b200.48xlarge", "on-demand", "L-417A185B"),
        ("p6-b200.48xlarge", "spot", None),
        ("m5.large", "spot", "L-34B43A08"),
        ("t3.small", "on-demand", "L-1216C47A"),
        ("inf2.xlarge", "spot", None),
        ("mac2.metal", "on-demand", None),
    ],
)
def test_each_type_counts_against_its_familys_quota(
    instance_type: str, lifecycle: Any, code: str | None
) -> None:
    quota = quotas.find_quota(instance_type, lifecycle)
    assert (quota and quota.code) == code


def test_a_quota_is_read_from_service_quotas(cloud: Account) -> None:
    quota = quotas.find_quota("g5.xlarge", "spot")
    assert quota
    assert quotas.vcpus(cloud.aws, HOME, quota) is None  # moto has none
    answer = {"Quota": {"Value": 64.0}}
    with mock.patch.object(cloud.aws.quotas(HOME), "get_service_quota", return_value=answer) as ask:
        assert quotas.vcpus(cloud.aws, HOME, quota) == 64
    ask.assert_called_once_with(ServiceCode="ec2", QuotaCode="L-3819A6DF")


def test_a_fleet_that_can_get_no_node_is_reported(cloud: Account) -> None:
    fleet = MINE.model_copy(update={"zones": ["eu-west-1z"]})
    ways = findings(cloud.aws, fleet)["instance types and prices"]
    assert ways.ok is False
    assert "offered in eu-west-1z" in ways.found
    assert "zones" in ways.advice


def test_a_missing_image_is_reported(cloud: Account) -> None:
    fleet = MINE.model_copy(update={"ami": "ami-00000000000000000"})
    image = findings(cloud.aws, fleet)["image for x86_64 in eu-west-1"]
    assert image.ok is False
    assert "ami-00000000000000000" in image.found


def test_permissions_are_found_denied_or_granted(cloud: Account) -> None:
    document = policy.caller_policy(MINE, ACCOUNT)
    with moto_iam.allowed(document) as aws:
        granted = findings(aws)
    for one in document["Statement"]:
        one["Action"] = [a for a in one["Action"] if a not in DENIED] or ["none:Such"]
    with moto_iam.allowed(document, "another") as aws:
        denied = findings(aws)
    changed = {check for check in granted if granted[check].ok and denied[check].ok is False}
    assert changed == {
        "permission to see the role",
        "permission to make a security group in eu-west-1",
    }
    finding = denied["permission to make a security group in eu-west-1"]
    assert "ec2:CreateSecurityGroup" in finding.found
    assert "plan --policy" in finding.advice


def test_the_permission_to_see_prices_is_not_tested_where_aws_gives_none(cloud: Account) -> None:
    check = "permission to see on-demand prices"
    assert check in findings(cloud.aws)
    elsewhere = MINE.model_copy(update={"aws_regions": ["us-gov-west-1"], "zones": []})
    assert check not in findings(cloud.aws, elsewhere)


DENIED = {"iam:GetRole", "ec2:CreateSecurityGroup"}
REFUSED = "User: x is not authorized to perform: {} on resource: y "


@pytest.mark.parametrize(
    ("reason", "attach", "advice"),
    [
        ("because no identity-based policy allows the action", True, "fleet plan --policy"),
        ("with an explicit deny in a service control policy", False, "organization's administr"),
        ("because no service control policy allows the action", False, "organization's admin"),
        ("because no permissions boundary allows the action", False, "ask its author"),
    ],
)
def test_the_policy_is_advised_only_if_it_can_help(
    cloud: Account, reason: str, attach: bool, advice: str
) -> None:
    group, quota = "ec2:CreateSecurityGroup", "servicequotas:GetServiceQuota"
    cloud.faults.refuse(
        "CreateSecurityGroup", "UnauthorizedOperation", REFUSED.format(group) + reason
    )
    cloud.faults.refuse("GetServiceQuota", "AccessDeniedException", REFUSED.format(quota) + reason)
    found = findings(cloud.aws)
    for check in ("permission to make a security group in eu-west-1", "quotas"):
        assert found[check].ok is not True
        assert ("attach the policy" in found[check].advice) == attach
        assert advice in found[check].found


@pytest.mark.parametrize(
    ("aws_region", "host"),
    [
        ("eu-west-1", "console.aws.amazon.com"),
        ("us-gov-west-1", "console.amazonaws-us-gov.com"),
        ("cn-north-1", "console.amazonaws.cn"),
    ],
)
def test_a_quota_is_linked_in_its_partitions_console(aws_region: str, host: str) -> None:
    quota = quotas.find_quota("g5.xlarge", "spot")
    assert quota
    page = quotas.page(aws_region, quota)
    assert page == f"https://{host}/servicequotas/home/services/ec2/quotas/L-3819A6DF"


def test_the_launch_permission_is_checked_if_a_template_exists(cloud: Account) -> None:
    check = "permission to launch in eu-west-1"
    assert findings(cloud.aws)[check].ok is None
    candidates = choice.candidates(cloud.aws, MINE)
    up.prepare(cloud.aws, MINE, moto_account.inputs(), candidates)
    assert findings(cloud.aws)[check].ok is True
    assert cloud.instances() == []
    other = MINE.model_copy(update={"instance_types": ("g5g.xlarge",)})
    assert "no instance type of the fleet fits" in findings(cloud.aws, other)[check].found
    cloud.faults.refuse("RunInstances", "UnauthorizedOperation", "to perform: ec2:RunInstances")
    refused = findings(cloud.aws)[check]
    assert refused.ok is False
    assert "ec2:RunInstances" in refused.found


def test_permissions_that_cannot_be_checked_neither_pass_nor_fail(cloud: Account) -> None:
    found = findings(cloud.aws)
    assert found["permission to write"].ok is None
    assert found["permission to see on-demand prices"].ok is None  # moto has no Pricing API
    with mock.patch.object(prices, "ask", return_value=0.5):
        assert findings(cloud.aws)["permission to see on-demand prices"].ok is True


def test_a_manager_whose_port_answers_passes(port: int) -> None:
    fleet = MINE.model_copy(update={"manager": f"127.0.0.1:{port}"})
    assert manager_checks.examine(fleet)[0].ok is True


def test_a_manager_whose_port_is_shut_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    found = manager_checks.examine(MINE.model_copy(update={"manager": address}))[0]
    assert found.ok is False
    assert found.found == f"nothing listens at {address}: Connection refused"
    assert "manager install" in found.advice


def test_a_manager_without_an_address_is_reported() -> None:
    found = manager_checks.examine(MINE)[0]
    assert found.ok is False
    assert "set `manager:`" in found.found


def test_the_programs_for_fleet_ssh_are_checked_if_the_fleet_allows_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = "programs for fleet ssh"

    def found(**changes: Any) -> list[Finding]:
        findings = manager_checks.examine(MINE.model_copy(update=changes))
        return [one for one in findings if one.check == check]

    monkeypatch.setenv("PATH", str(tmp_path))
    assert found() == []
    (missing,) = found(ssm=True)
    assert missing.ok is None
    assert "session-manager-plugin isn't on PATH: https://docs.aws.amazon.com/" in missing.found
    for name in ("aws", "session-manager-plugin"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert [one.ok for one in found(ssm=True)] == [True]


@pytest.mark.parametrize(
    ("daemons", "ok"), [("25.14.1", True), ("25.14.7", True), ("26.0.3", None)]
)
def test_htcondors_daemons_and_bindings_are_of_one_release(daemons: str, ok: bool | None) -> None:
    with (
        mock.patch.object(htcondor_installation, "managers_version", return_value=daemons),
        mock.patch.object(manager_checks, "version", return_value="25.14.1"),
    ):
        found = manager_checks.examine(MINE)[1]
    assert found.ok is ok
    assert daemons in found.found


def test_a_machine_without_htcondor_is_reported() -> None:
    with mock.patch.object(
        htcondor_installation, "managers_version", side_effect=PoolError("none here")
    ):
        found = manager_checks.examine(MINE)[1]
    assert (found.ok, found.found) == (False, "none here")


def test_a_token_passes_until_its_last_week(tmp_path: Path) -> None:
    assert token_finding(tmp_path, timedelta(days=8)).ok is True
    near = token_finding(tmp_path, timedelta(days=6))
    assert near.ok is None
    assert "manager token" in near.advice
    assert token_finding(tmp_path, -timedelta(days=1)).ok is False


def test_a_missing_token_is_reported() -> None:
    found = manager_checks.examine(MINE)[3]
    assert found.ok is False
    assert "can't be read" in found.found
