"""An AWS account inside this process, and what is needed to raise a fleet in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import boto3
from cryptography.hazmat.primitives.asymmetric import rsa
from moto import mock_aws
from moto.core import responses
from moto.core.utils import method_names_from_class
from moto.ec2.models import amis

from tests.fleet.mock_aws.moto_faults import Faults
from tests.fleet.mock_aws.moto_fleet import Capacity, instant_fleets
from tests.fleet.mock_aws.moto_placement import placement_groups
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.nodes.bundle import Bundle
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate, InstanceType, Lifecycle

ACCOUNT = "123456789012"
HOME, AWAY = "eu-west-1", "us-east-1"
IMAGE, ARM_IMAGE = "ami-0123456789abcdef0", "ami-0123456789abcdef1"
_IMAGES = [
    {
        "ami_id": image,
        "name": f"ours-{architecture}",
        "architecture": architecture,
        "root_device_name": "/dev/sda1",
        "virtualization_type": "hvm",
        "owner_id": "123456789012",
    }
    for image, architecture in ((IMAGE, "x86_64"), (ARM_IMAGE, "arm64"))
]
TRUST: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}
POLICY: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}],
}
SECRET = "the-pool's-token-for-nodes"


@dataclass
class Account:
    """An account of its own for each test.

    Attributes:
        aws: the clients of the code under test.
        faults: what goes wrong with them.
        capacity: which pools have no room for nodes.
        pauses: how long anybody would have slept, in seconds; nobody does.
    """

    aws: Aws
    faults: Faults
    capacity: Capacity
    pauses: list[float]

    def client(self, service: str, aws_region: str = HOME) -> Any:
        """Return a client without faults, for looking at what there is."""
        return _plain_client(service, aws_region)

    def subnet(self, zone: str) -> str:
        """Return the default subnet of a zone."""
        found = self.client("ec2", zone[:-1]).describe_subnets(
            Filters=[{"Name": "availability-zone", "Values": [zone]}]
        )
        return str(found["Subnets"][0]["SubnetId"])

    def holdings(self) -> list[str]:
        """List all that the account has, by AWS's own lists and not by the code under test."""
        return sorted([*self._global(), *self._regional(HOME), *self._regional(AWAY)])

    def instances(self, aws_region: str = HOME) -> list[dict[str, Any]]:
        """List the living instances."""
        return _living(aws_region)

    def _global(self) -> Iterator[str]:
        iam, s3, ssm = self.client("iam"), self.client("s3"), self.client("ssm")
        for role in iam.list_roles()["Roles"]:
            yield f"role {role['RoleName']}"
        for profile in iam.list_instance_profiles()["InstanceProfiles"]:
            yield f"profile {profile['InstanceProfileName']} {len(profile['Roles'])}"
        for bucket in s3.list_buckets()["Buckets"]:
            yield f"bucket {bucket['Name']}"
            for entry in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
                yield f"object {entry['Key']}"
        for parameter in ssm.describe_parameters()["Parameters"]:
            yield f"parameter {parameter['Name']}"

    def _regional(self, aws_region: str) -> Iterator[str]:
        ec2 = self.client("ec2", aws_region)
        for group in ec2.describe_security_groups()["SecurityGroups"]:
            yield f"group {aws_region} {group['GroupName']}"
        for template in ec2.describe_launch_templates()["LaunchTemplates"]:
            yield f"template {aws_region} {template['LaunchTemplateName']}"
        for placed in ec2.describe_placement_groups()["PlacementGroups"]:
            yield f"placement group {aws_region} {placed['GroupName']}"
        for instance in self.instances(aws_region):
            groups = sorted(group["GroupName"] for group in _card(instance)["Groups"])
            yield f"instance {aws_region} {instance['InstanceType']} {groups}"


@contextmanager
def account() -> Iterator[Account]:
    """Give an empty account; nothing in it sleeps.

    What this machine keeps of its fleets is in a folder of its own, unless a test names one.
    """
    aws, faults = _under_test()
    pauses: list[float] = []
    asleep = mock.patch("time.sleep", pauses.append)
    with (
        _state_of_its_own(),
        _few_images(),
        _work_done_once(),
        placement_groups(),
        instant_fleets() as capacity,
        mock_aws(),
        asleep,
    ):
        faults.reset()
        faults.refuse("DeleteSecurityGroup", "DependencyViolation", when=_has_members)
        yield Account(copy(aws), faults, capacity, pauses)  # which has asked nothing yet


@contextmanager
def _state_of_its_own() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        state = {"XDG_STATE_HOME": os.environ.get("XDG_STATE_HOME", folder)}
        with mock.patch.dict("os.environ", state):
            yield


@contextmanager
def _few_images() -> Iterator[None]:
    """Let moto's accounts begin with our images alone; it takes long to load its own."""
    ours = mock.patch.object(amis, "AMIS", _IMAGES)
    with mock.patch.dict("os.environ", {"MOTO_AMIS_PATH": "ours"}), ours:
        yield


@contextmanager
def _work_done_once() -> Iterator[None]:
    """Let moto do once what it repeats for each account or call, and what takes long."""
    with (
        mock.patch.object(rsa, "generate_private_key", _generate_key),
        mock.patch.object(responses, "method_names_from_class", _method_names),
    ):
        yield


_generate_key = cache(rsa.generate_private_key)
_method_names = cache(method_names_from_class)


def fleet(**changes: Any) -> Fleet:
    """Return a small fleet."""
    return Fleet.model_validate({"name": "f", "aws_regions": [HOME], "ami": IMAGE, **changes})


def candidate(
    zone: str = HOME + "a",
    name: str = "g5.xlarge",
    *,
    price: float = 0.4,
    lifecycle: Lifecycle = "spot",
    architecture: str = "x86_64",
    clusters: bool = False,
    efa: bool = False,
) -> Candidate:
    """Return one way to get a node."""
    kind = InstanceType(
        name=name,
        vcpus=4,
        memory_mb=16_384,
        gpus=1,
        gpu="A10G",
        gpu_memory_mb=24_576,
        architecture=architecture,
        clusters=clusters,
        efa=efa,
    )
    return Candidate(type=kind, aws_region=zone[:-1], zone=zone, lifecycle=lifecycle, price=price)


def inputs(**changes: Any) -> up.NodeInputs:
    """Return what nodes are given."""
    usual: dict[str, Any] = {
        "manager": "manager.example:9618",
        "own": None,
        "token": SECRET,
        "bundle": Bundle(b"a bundle", "ab12"),
        "condor_version": "25.14.1",
    }
    return up.NodeInputs(**{**usual, **changes})


def manager_instance(account: Account, aws_region: str = HOME) -> OwnInstance:
    """Start an instance for the manager."""
    made = account.client("ec2", aws_region).run_instances(
        ImageId=IMAGE, InstanceType="t3.small", MinCount=1, MaxCount=1
    )["Instances"][0]
    return OwnInstance(
        id=made["InstanceId"], aws_region=aws_region, address=made["PrivateIpAddress"]
    )


def _has_members(body: dict[str, Any]) -> bool:
    """Tell what AWS knows and moto doesn't mind: that a security group is in use."""
    return any(
        body["GroupId"] in {group["GroupId"] for group in _card(instance)["Groups"]}
        for aws_region in (HOME, AWAY)
        for instance in _living(aws_region)
    )


def _living(aws_region: str) -> list[dict[str, Any]]:
    pages = _plain_client("ec2", aws_region).describe_instances()["Reservations"]
    every = [instance for page in pages for instance in page["Instances"]]
    return [i for i in every if i["State"]["Name"] not in {"terminated", "shutting-down"}]


def _card(instance: dict[str, Any]) -> Any:
    return instance["NetworkInterfaces"][0]


@cache
def _under_test() -> tuple[Aws, Faults]:
    """Make clients once: that takes longer than a test."""
    session = boto3.Session("testing", "testing")
    return Aws(session), Faults(session)


@cache
def _plain_client(service: str, aws_region: str) -> Any:
    return boto3.Session("testing", "testing").client(service, region_name=aws_region)  # type: ignore[call-overload]
