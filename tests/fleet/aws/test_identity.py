"""The nodes' role, instance profile and token, and the identity of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.fleet.mock_aws.moto_account import POLICY, TRUST, Account, fleet
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import identity, own_instance, token_store
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.lifecycle.up import manager_address
from trialfleet.instance_aws import ENDPOINT


def reads_only(calls: list[str]) -> bool:
    return all(call.partition(":")[2].startswith(("Get", "List")) for call in calls)


def test_the_role_has_its_trust_its_policy_and_an_instance_profile(cloud: Account) -> None:
    name = identity.ensure(cloud.aws, fleet(), POLICY, TRUST)
    iam = cloud.client("iam")
    assert iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"] == TRUST
    held = iam.get_role_policy(RoleName=name, PolicyName=identity.POLICY)
    assert held["PolicyDocument"] == POLICY
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == [name]


def test_a_correct_role_is_not_changed(cloud: Account) -> None:
    identity.ensure(cloud.aws, fleet(), POLICY, TRUST)
    cloud.faults.calls.clear()
    identity.ensure(cloud.aws, fleet(), POLICY, TRUST)
    assert reads_only(cloud.faults.calls)


def test_a_changed_policy_and_trust_are_brought_up_to_date(cloud: Account) -> None:
    other = {**POLICY, "Statement": [{**POLICY["Statement"][0], "Action": "s3:PutObject"}]}
    identity.ensure(cloud.aws, fleet(), other, {**TRUST, "Statement": []})
    test_the_role_has_its_trust_its_policy_and_an_instance_profile(cloud)


def test_somebody_elses_role_of_the_same_name_is_neither_used_nor_removed(cloud: Account) -> None:
    cloud.client("iam").create_role(RoleName="trialfleet-f", AssumeRolePolicyDocument="{}")
    with pytest.raises(FleetError, match=r"role trialfleet-f exists already, without the tag"):
        identity.ensure(cloud.aws, fleet(), POLICY, TRUST)
    identity.remove(cloud.aws, fleet())
    assert cloud.holdings()[-1] == "role trialfleet-f"


def test_a_role_that_iam_does_not_know_everywhere_yet_is_waited_for(cloud: Account) -> None:
    cloud.faults.refuse("AddRoleToInstanceProfile", "NoSuchEntity", times=2)
    identity.ensure(cloud.aws, fleet(), POLICY, TRUST)
    assert cloud.pauses == [0.5, 1]
    assert "profile trialfleet-f 1" in cloud.holdings()


def test_removing_leaves_neither_role_nor_profile(cloud: Account) -> None:
    bare = cloud.holdings()
    identity.ensure(cloud.aws, fleet(), POLICY, TRUST)
    identity.remove(cloud.aws, fleet())
    assert cloud.holdings() == bare
    identity.remove(cloud.aws, fleet())


def test_a_missing_permission_is_named(cloud: Account) -> None:
    message = "User: arn:aws:iam::1:user/x is not authorized to perform: iam:CreateRole on resource"
    cloud.faults.refuse("CreateRole", "AccessDenied", message, status=403)
    with pytest.raises(FleetError, match=r"permission iam:CreateRole is denied"):
        identity.ensure(cloud.aws, fleet(), POLICY, TRUST)


def test_the_token_is_encrypted_in_ssm_and_tagged(cloud: Account) -> None:
    name = token_store.ensure(cloud.aws, fleet(tags={"team": "ads"}), "a token")
    ssm = cloud.client("ssm")
    held = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
    assert (name, held["Type"], held["Value"]) == (
        "/trialfleet/f/node-token",
        "SecureString",
        "a token",
    )
    tags = ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=name)["TagList"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"trialfleet:fleet": "f", "team": "ads"}


def test_the_same_token_is_not_written_again_and_a_new_one_is(cloud: Account) -> None:
    for token, version in (("a", 1), ("a", 1), ("b", 2)):
        name = token_store.ensure(cloud.aws, fleet(), token)
        held = cloud.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]
        assert (held["Value"], held["Version"]) == (token, version)


def test_the_token_can_be_removed_twice(cloud: Account) -> None:
    token_store.ensure(cloud.aws, fleet(), "a")
    for _ in range(2):
        token_store.remove(cloud.aws, fleet())
        assert not token_store.exists(cloud.aws, fleet())


class Imds(BaseHTTPRequestHandler):
    """Answers as EC2's metadata service does, to those who show its token."""

    pages = {  # noqa: RUF012
        "/latest/meta-data/instance-id": "i-0123",
        "/latest/meta-data/placement/region": "eu-west-1",
        "/latest/meta-data/local-ipv4": "10.0.0.7",
    }

    def do_PUT(self) -> None:
        asked = self.path == "/latest/api/token"
        asked = asked and 0 < int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
        self._answer(200 if asked else 400, "a-token")

    def do_GET(self) -> None:
        known = self.headers["X-aws-ec2-metadata-token"] == "a-token"
        self._answer(200 if known else 401, self.pages.get(self.path, ""))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def imds() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Imds) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_instance_finds_its_identity_by_imds_version_2(
    imds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, imds + "/")
    assert own_instance.find() == OwnInstance(
        id="i-0123", aws_region="eu-west-1", address="10.0.0.7"
    )
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert own_instance.find() is None


@pytest.mark.parametrize("path", ["", "/nobody"])
def test_a_machine_outside_ec2_is_not_an_instance(
    imds: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv(ENDPOINT, imds + path if path else "http://127.0.0.1:1")
    assert own_instance.find() is None


def test_the_managers_address_is_the_fleets_setting_or_its_instances_address() -> None:
    own = OwnInstance(id="i-0123", aws_region="eu-west-1", address="10.0.0.7")
    assert manager_address(fleet(), own) == "10.0.0.7:9618"
    assert manager_address(fleet(manager="m.example"), own) == "m.example:9618"
    assert manager_address(fleet(manager="m.example:9000"), None) == "m.example:9000"
    with pytest.raises(InputError, match="set `manager:`"):
        manager_address(fleet(), None)
