"""`fleet ssh`: the choice of the node, and the command that opens a shell on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.fleet.mock_aws.moto_account import (
    ACCOUNT,
    AWAY,
    HOME,
    IMAGE,
    Account,
    candidate,
    fleet,
    inputs,
)
from tests.fleet.mock_aws.nodes_at_hand import instance
from tests.moto_server import moto_server
from trialfleet.errors import InputError, TrialfleetError
from trialfleet.infra.fleet.aws import policy
from trialfleet.infra.fleet.commands import shell
from trialfleet.infra.fleet.lifecycle.up import up

NODES = [instance("i-0aa1"), instance("i-0aa2"), instance("i-0bb1")]
ENDED = instance("i-0cc1", state="terminated", ended="Server.SpotInstanceTermination: no room")
MACHINES = {"ip-10-0-0-7.ec2.internal": "i-0bb1"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AWS's programs, which can't exist here: the one that is called prints its words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in shell.GUIDES:
        (folder / name).write_text('#!/bin/sh\necho called: "$0" "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    return folder


@pytest.mark.parametrize(
    ("word", "found"),
    [("i-0aa1", "i-0aa1"), ("i-0b", "i-0bb1"), ("ip-10-0-0-7.ec2.internal", "i-0bb1")],
)
def test_a_node_is_known_by_its_id_the_beginning_of_it_or_its_machine(
    word: str, found: str
) -> None:
    assert shell.node_called(word, [*NODES, ENDED], MACHINES).id == found


def test_an_ended_node_does_not_make_an_id_ambiguous() -> None:
    later = instance("i-0cc2")
    assert shell.node_called("i-0cc", [*NODES, ENDED, later], {}) == later


@pytest.mark.parametrize(
    ("word", "nodes", "words"),
    [
        (
            "i-0aa3",
            NODES,
            "no node 'i-0aa3' (did you mean 'i-0aa2'?): the fleet's nodes are i-0aa1",
        ),
        ("ip-10-0-0-8.ec2.internal", NODES, "(did you mean 'ip-10-0-0-7.ec2.internal'?)"),
        ("", NODES, "no node ''"),
        ("i-0aa", NODES, "'i-0aa' matches several nodes: i-0aa1, i-0aa2"),
        ("i-0aa1", [], "no node 'i-0aa1': the fleet has no node"),
        ("i-0cc1", [ENDED], "i-0cc1 has ended: Server.SpotInstanceTermination: no room"),
        ("i-0dd1", [instance("i-0dd1", state="pending")], "i-0dd1 isn't running: it is pending"),
    ],
)
def test_a_node_without_a_shell_is_reported(word: str, nodes: Any, words: str) -> None:
    with pytest.raises(TrialfleetError) as error:
        shell.node_called(word, nodes, MACHINES if nodes == NODES else {})
    assert words in str(error.value)


def test_a_fleet_without_shells_says_how_to_allow_them(cloud: Account, programs: Path) -> None:
    with pytest.raises(InputError, match="set `ssm: true` in the fleet"):
        shell.session(cloud.aws, fleet(), "i-1")


@pytest.mark.parametrize("name", shell.GUIDES)
def test_a_missing_program_is_named_with_its_installation_guide(
    cloud: Account, programs: Path, name: str
) -> None:
    (programs / name).unlink()
    with pytest.raises(TrialfleetError) as error:
        shell.session(cloud.aws, fleet(ssm=True), "i-1")
    assert str(error.value) == f"{name} isn't on PATH: {shell.GUIDES[name]} says how to get it"


def test_a_node_in_an_earlier_region_is_found(cloud: Account, programs: Path) -> None:
    before = fleet(ssm=True, aws_regions=[HOME, AWAY], ami={HOME: IMAGE, AWAY: IMAGE})
    up(cloud.aws, before, inputs(), [candidate(AWAY + "a")], 1)
    (node,) = (found["InstanceId"] for found in cloud.instances(AWAY))
    now = fleet(ssm=True)
    assert shell.session(cloud.aws, now, node)[-3:] == [node, "--region", AWAY]
    cloud.faults.refuse("DescribeInstances", "AuthFailure", aws_region=AWAY)
    with pytest.raises(InputError, match=f"has no node; the instances in {AWAY}: AWS refused"):
        shell.session(cloud.aws, now, node)


def test_a_node_that_only_the_pool_knows_by_name_is_reported_with_the_pools_silence(
    cloud: Account, programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIALFLEET_POOL", str(tmp_path / "none"))
    monkeypatch.delenv("CONDOR_CONFIG", raising=False)
    with pytest.raises(InputError) as error:
        shell.session(cloud.aws, fleet(ssm=True), "ip-10-0-0-7.ec2.internal")
    assert "the fleet has no node; nodes are known by their instance ids alone: " in str(
        error.value
    )
    assert "is not up" in str(error.value)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """AWS as the command sees it; a client of its EC2."""
    with moto_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
        yield boto3.client("ec2", region_name=HOME)


def test_fleet_ssh_executes_awss_ssm_command(server: Any, programs: Path, tmp_path: Path) -> None:
    tag = {"Key": "trialfleet:fleet", "Value": "f"}
    image = server.describe_images()["Images"][0]["ImageId"]
    made = server.run_instances(
        ImageId=image,
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": [tag]}],
    )["Instances"][0]["InstanceId"]
    text = {"name": "f", "aws_regions": [HOME], "ami": IMAGE, "ssm": True}
    (tmp_path / "fleet.yaml").write_text(json.dumps(text))
    done = subprocess.run(
        [Path(sys.prefix) / "bin" / "trialfleet", "fleet", "ssh", made[:8], "fleet.yaml"],
        cwd=tmp_path,
        env={**os.environ, "TRIALFLEET_POOL": str(tmp_path / "none"), "CONDOR_CONFIG": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == (
        f"called: {programs}/aws ssm start-session --target {made} --region {HOME}\n"
    ), done.stderr


def test_policies_have_shell_permissions_only_if_the_fleet_allows_shells() -> None:
    def actions(document: dict[str, Any]) -> set[str]:
        return {action for one in document["Statement"] for action in one["Action"]}

    open_, shut = fleet(ssm=True), fleet()
    for policy_of in (policy.caller_policy, policy.daily_policy):
        more = actions(policy_of(open_, ACCOUNT)) - actions(policy_of(shut, ACCOUNT))
        assert more == {policy.START_SHELL, *policy.OWN_SHELLS}
    more = actions(policy.node_policy(open_, ACCOUNT)) - actions(policy.node_policy(shut, ACCOUNT))
    assert more == {*policy.SSM_AGENT}
    assert not actions(policy.reap_policy(open_, ACCOUNT)) & {policy.START_SHELL}


def test_a_user_can_open_shells_only_on_the_fleets_nodes_and_end_own_ones() -> None:
    document = policy.caller_policy(fleet(ssm=True), ACCOUNT)
    on_nodes, by_document = (
        one
        for one in document["Statement"]
        if {policy.START_SHELL, *policy.OWN_SHELLS} & {*one["Action"]}
    )
    assert f"arn:aws:ec2:*:{ACCOUNT}:instance/*" in on_nodes["Resource"]
    assert on_nodes["Condition"] == {"StringEquals": {"aws:ResourceTag/trialfleet:fleet": "f"}}
    assert by_document["Resource"] == [
        f"arn:aws:ssm:*:{ACCOUNT}:{what}"
        for what in (
            "document/SSM-SessionManagerRunShell",
            "session/${aws:userid}-*",
            "session/${aws:username}-*",
        )
    ]
