"""AWS: moto's server with IAM enforced, and with what moto lacks but a fleet would notice.

Everything here changes moto inside its own process: the lab's user, its images, and a default
network for each region. All regions share one bridge, so these networks' addresses don't overlap.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

ACCOUNT = "123456789012"
CALLER = "lab"  # the IAM user who runs `trialfleet fleet`
OPERATOR = "operator"  # has all permissions: tests inspect the account as this user
EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
BARE = "ami-00000000000000bae"  # this machine's system, Ubuntu or another, without HTCondor
PREPARED = "ami-0000000000000c0de"  # the same with HTCondor installed
LEARNING = "ami-00000000000001ea2"  # and with torch, too
IMAGES = {"bare": BARE, "prepared": PREPARED, "learning": LEARNING}
_ENTERED = ExitStack()  # what this process changes in moto, until it ends
DEEP_LEARNING = (  # the parameter in which AWS names its newest image
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)


@dataclass(frozen=True)
class Keys:
    """An IAM user's access key."""

    id: str
    secret: str


def configure(folder: Path) -> None:
    """Set the environment variables and files that moto reads when it is imported."""
    images = [
        {
            "ami_id": number,
            "name": f"lab-{name}",
            "description": f"the lab's image, {name}",
            "owner_id": ACCOUNT,
            "public": True,
            "virtualization_type": "hvm",
            "architecture": "x86_64",
            "state": "available",
            "platform": None,
            "image_type": "machine",
            "hypervisor": "xen",
            "root_device_name": "/dev/sda1",
            "root_device_type": "ebs",
            "sriov": "simple",
        }
        for name, number in IMAGES.items()
    ]
    (folder / "images.json").write_text(json.dumps(images))
    os.environ |= {
        "MOTO_AMIS_PATH": str(folder / "images.json"),
        "MOTO_ENABLE_AMI_VALIDATION": "true",
        "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
        "INITIAL_NO_AUTH_ACTION_COUNT": "0",
        "AWS_ACCESS_KEY_ID": "never-sent",
        "AWS_SECRET_ACCESS_KEY": "never-sent",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def serve(address: str, port: int) -> None:
    """Change moto, and start its server in a thread of this process."""
    from moto.server import ThreadedMotoServer

    repair_policies()
    repair_s3_permissions()
    repair_networks()
    repair_instances()
    repair_fleets()
    add_placement_groups()
    repair_console()
    repair_prices()
    ThreadedMotoServer(address, port, verbose=False).start()


def repair_policies() -> None:
    """Let policy statements with resources or conditions apply where moto can't check them.

    moto tells IAM the resource only for S3. For other services it asks for `*`, which a
    least-privilege policy doesn't grant. It gives IAM no facts about a request with which to check
    a condition.
    """
    from moto.iam.access_control import IAMPolicyStatement

    matches, holds = IAMPolicyStatement._check_element_matches, IAMPolicyStatement._check_conditions

    def check_matches(self: Any, element: str, value: str) -> bool:
        return (element == "Resource" and value == "*") or matches(self, element, value)

    def check_conditions(self: Any, known: dict[str, str] | None) -> bool:
        return known is None or holds(self, known)

    IAMPolicyStatement._check_element_matches = check_matches  # type: ignore
    IAMPolicyStatement._check_conditions = check_conditions  # type: ignore


def repair_s3_permissions() -> None:
    """Check S3's permissions by IAM's names for them, and for each object separately."""
    from moto.s3.responses import ACTION_MAP, S3Response

    bucket: Any = ACTION_MAP["BUCKET"]
    bucket["HEAD"]["DEFAULT"] = "ListBucket"
    for verb, start in (("GET", "Get"), ("PUT", "Put")):
        bucket[verb]["publicAccessBlock"] = f"{start}BucketPublicAccessBlock"
    authorize = S3Response._authenticate_and_authorize_s3_action

    def authorize_each(self: Any, bucket_name: str | None = None, key_name: Any = None) -> None:
        several = self.data["Action"] == "DeleteObject" and not key_name
        for key in re.findall(r"<Key>(.*?)</Key>", str(self.body)) if several else [key_name]:
            authorize(self, bucket_name, key)

    S3Response._authenticate_and_authorize_s3_action = authorize_each  # type: ignore


def repair_networks() -> None:
    """Give the default VPCs of regions addresses that don't overlap."""
    from moto.ec2.models import EC2Backend

    create = EC2Backend.create_vpc

    def create_vpc(self: Any, cidr_block: str, *words: Any, **named: Any) -> Any:
        if named.get("is_default"):
            cidr_block = str(network_of(self.region_name))
        return create(self, cidr_block, *words, **named)

    EC2Backend.create_vpc = create_vpc  # type: ignore[method-assign]


def network_of(region: str) -> IPv4Network:
    """Return the addresses of a region's default VPC, such as 10.35.0.0/16."""
    from moto.ec2.models import ec2_backends

    return IPv4Network(f"10.{1 + sorted(ec2_backends[ACCOUNT].regions).index(region)}.0.0/16")


def repair_instances() -> None:
    """Let instances use two settings of their launch template that moto ignores.

    All instances get the template's profile. Without a subnet in the call they get the zone's
    default subnet, where moto would invent an address.
    """
    from moto.ec2.models import EC2Backend

    run = EC2Backend.run_instances

    def run_instances(self: Any, *words: Any, **named: Any) -> Any:
        if named.get("launch_template"):
            template = self._get_template_from_args(named["launch_template"]).data
            behaviour = template.get("InstanceInitiatedShutdownBehavior")
            named["metadata_options"] = named.get("metadata_options") or template.get(
                "MetadataOptions"
            )
            named["instance_initiated_shutdown_behavior"] = (
                named.get("instance_initiated_shutdown_behavior") or behaviour
            )
        zone = named.get("placement") or f"{self.region_name}a"
        if not named.get("subnet_id") and not named.get("nics"):
            named["subnet_id"] = self.get_default_subnets()[zone].id
        return run(self, *words, **named)

    EC2Backend.run_instances = run_instances  # type: ignore[method-assign]
    associate = EC2Backend.associate_iam_instance_profile

    def associate_all(self: Any, instance_id: str, **profile: Any) -> Any:
        """Give the profile to all instances of one call; moto gives it only to the first."""
        launched = next(
            one.instances
            for one in self.reservations.values()
            if instance_id in {each.id for each in one.instances}
        )
        others = {each.id for each in launched} - {instance_id}
        for other in others - self.iam_instance_profile_associations.keys():
            associate(self, other, **profile)
        return associate(self, instance_id, **profile)

    EC2Backend.associate_iam_instance_profile = associate_all  # type: ignore[assignment, method-assign]


def repair_fleets() -> None:
    """Answer CreateFleet as EC2 does for fleets of type `instant`."""
    from moto.ec2.responses import EC2Response

    from tests.fleet.mock_aws.moto_fleet import create_fleet

    EC2Response.create_fleet = create_fleet  # type: ignore[method-assign]


def add_placement_groups() -> None:
    """Let EC2 have placement groups, which moto lacks: every `fleet down` lists them."""
    from tests.fleet.mock_aws.moto_placement import placement_groups

    _ENTERED.enter_context(placement_groups())


def lack(**pools: Any) -> None:
    """Let pools of capacity have no room for nodes; for the arguments see `Capacity.lack`."""
    from tests.fleet.mock_aws.moto_fleet import CAPACITY

    CAPACITY.lack(**pools)


def restore() -> None:
    """Let every pool of capacity have room again."""
    from tests.fleet.mock_aws.moto_fleet import CAPACITY

    CAPACITY.restore()


CONSOLES: dict[str, Callable[[], bytes]] = {}  # functions that return a machine's console output


def repair_console() -> None:
    """Answer GetConsoleOutput with what the machine's console has printed."""
    from base64 import b64encode

    from moto.core.responses import ActionResult
    from moto.core.utils import utcnow
    from moto.ec2.responses.general import General

    def get_console_output(self: Any) -> ActionResult:
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        text = CONSOLES[instance.id]()[-65_536:] if instance.id in CONSOLES else b""
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": utcnow(),
                "Output": b64encode(text).decode(),
            }
        )

    General.get_console_output = get_console_output  # type: ignore[method-assign]


def repair_prices() -> None:
    """Give spot instances a price: moto has one price for all, which is almost nothing."""
    from moto.core.responses import ActionResult
    from moto.ec2.responses.spot_instances import SpotInstances

    history = SpotInstances.describe_spot_price_history

    def describe_spot_price_history(self: Any) -> ActionResult:
        answer: Any = history(self).result
        for entry in answer["SpotPriceHistory"]:
            entry["SpotPrice"] = spot_price(entry["AvailabilityZone"])
        return ActionResult(answer)

    SpotInstances.describe_spot_price_history = describe_spot_price_history  # type: ignore


def spot_price(zone: str) -> str:
    """Return USD per hour; zone b is more expensive than zone a."""
    return f"0.{40 + 2 * 'abcdef'.find(zone[-1]):02}"


def make_user(name: str, policy: dict[str, Any]) -> Keys:
    """Create an IAM user with the policy `policy`."""
    from moto.iam.models import iam_backends

    iam = iam_backends[ACCOUNT]["global"]
    iam.create_user("us-east-1", name)
    allow(name, policy)
    key = iam.create_access_key(name)
    return Keys(key.access_key_id, key.secret_access_key)


def allow(name: str, policy: dict[str, Any]) -> None:
    """Replace an IAM user's policy."""
    from moto.iam.models import iam_backends

    iam_backends[ACCOUNT]["global"].put_user_policy(name, "lab", json.dumps(policy))


def tell_images(region: str) -> None:
    """Let AWS's public parameter in `region` name the lab's bare image."""
    from moto.core.utils import utcnow
    from moto.ssm.models import Parameter, ssm_backends

    ssm_backends[ACCOUNT][region]._parameters[DEEP_LEARNING] = [
        Parameter(  # type: ignore[abstract]
            account_id=ACCOUNT,
            name=DEEP_LEARNING,
            value=BARE,
            parameter_type="String",
            description=None,
            allowed_pattern=None,
            keyid=None,
            last_modified_date=utcnow(),
            version=1,
            data_type="text",
        )
    ]


def instances() -> Iterator[Any]:
    """Yield every instance that AWS knows, in all regions and states."""
    from moto.ec2.models import ec2_backends

    for backend in list(ec2_backends[ACCOUNT].values()):
        for reservation in list(backend.reservations.values()):
            yield from reservation.instances


def find(instance_id: str) -> Any:
    """Return an instance; KeyError if there is none."""
    for instance in instances():
        if instance.id == instance_id:
            return instance
    raise KeyError(instance_id)


def ended(instance: Any, code: str, message: str) -> None:
    """Record in AWS that an instance has ended, by itself or by AWS."""
    if instance.state in {"terminated", "stopped"}:
        return
    if code.startswith("Client") and instance.instance_initiated_shutdown_behavior == "stop":
        instance.stop()
    else:
        instance.terminate()
    instance.state_reason.code, instance.state_reason.message = code, message


def role_of(instance: Any) -> str:
    """Return the name of the role in the instance's profile; empty without one."""
    association = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
    roles = association.iam_instance_profile.roles if association else []
    return roles[0].name if roles else ""


def assume(role: str, instance_id: str) -> dict[str, str] | None:
    """Return keys of `role`, in the metadata service's form; None if EC2 may not use the role."""
    from moto.iam.models import iam_backends
    from moto.sts.models import sts_backends

    found = iam_backends[ACCOUNT]["global"].get_role(role)
    if "ec2.amazonaws.com" not in json.dumps(found.assume_role_policy_document):
        return None
    assumed = sts_backends[ACCOUNT]["global"].assume_role(
        region_name="us-east-1",
        role_session_name=instance_id,
        role_arn=found.arn,
        policy="",
        duration=3600,
        external_id="",
    )
    return {
        "Code": "Success",
        "LastUpdated": f"{found.create_date:%Y-%m-%dT%H:%M:%SZ}",
        "Type": "AWS-HMAC",
        "AccessKeyId": assumed.access_key_id,
        "SecretAccessKey": assumed.secret_access_key,
        "Token": assumed.session_token,
        "Expiration": f"{assumed.expiration:%Y-%m-%dT%H:%M:%SZ}",
    }
