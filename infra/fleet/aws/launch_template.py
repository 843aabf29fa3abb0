"""The launch template: what all nodes of a region and an architecture have in common.

Those with an Elastic Fabric Adapter have a template of their own: it names their network interface,
which types without one would refuse.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trialfleet.infra.fleet.aws import tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.aws.images import Image
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.sections import bytes_of

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_ec2.type_defs import LaunchTemplateTypeDef

EFA = "-efa"  # how the name of a template ends whose nodes have an Elastic Fabric Adapter


@dataclass(frozen=True, kw_only=True)
class Template:
    """One version of a launch template.

    Attributes:
        interface: the first network interface, where it names one.
    """

    id: str
    version: str
    interface: Mapping[str, Any] | None = None


def kind_of(fleet: Fleet, architecture: str, *, efa: bool) -> str:
    """Return which of a region's templates a type's nodes are of, the end of its name.

    Args:
        fleet: whose nodes they are.
        architecture: the type's.
        efa: whether the type has an Elastic Fabric Adapter.
    """
    return architecture + (EFA if fleet.efa and efa else "")


def definition(
    fleet: Fleet, image: Image, group: str, user_data: str, *, efa: bool = False
) -> dict[str, Any]:
    """Return what the template says.

    Args:
        fleet: whose nodes they are.
        image: what they boot.
        group: their security group.
        user_data: the script that their first boot runs; no secret is in it.
        efa: whether their first network interface is an Elastic Fabric Adapter.
    """
    wanted: dict[str, Any] = {
        "ImageId": image.id,
        **({"NetworkInterfaces": [adapter(group)]} if efa else {"SecurityGroupIds": [group]}),
        "UserData": base64.b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpProtocolIpv6": "disabled",  # the fence that keeps jobs from it is IPv4's
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [_disk(fleet, image)],
    }
    if fleet.key_pair:
        wanted["KeyName"] = fleet.key_pair
    return wanted


def in_subnet(interface: Mapping[str, Any] | None, subnet: str) -> dict[str, Any]:
    """Return where a request puts a node.

    EC2 takes no subnet beside network interfaces, and an interface of the request in the place of
    the template's: so it has all that the template's has, and the subnet.
    """
    if interface is None:
        return {"SubnetId": subnet}
    return {"NetworkInterfaces": [{**interface, "SubnetId": subnet}]}


def adapter(group: str) -> dict[str, Any]:
    """Return an Elastic Fabric Adapter as the first network interface, a member of a group."""
    return {
        "DeviceIndex": 0,
        "InterfaceType": "efa",
        "Groups": [group],
        "DeleteOnTermination": True,
    }


def ensure(
    aws: Aws, fleet: Fleet, aws_region: str, kind: str, wanted: Mapping[str, Any]
) -> Template:
    """Make the launch template, or a version of it where its newest says something else.

    Raises:
        FleetError: AWS refuses.
    """
    name = f"{names.resource_name(fleet.called)}-{kind}"
    with asking(f"the launch template {name} in {aws_region}"):
        ec2 = aws.ec2(aws_region)
        found = _called(ec2, name)
        if found is None:
            found = _make(ec2, fleet, name, wanted)
            number = found["LatestVersionNumber"]
        elif _digest_of(ec2, found) == digest(wanted):
            number = found["LatestVersionNumber"]
        else:
            number = _another(ec2, found, wanted)
    interface = next(iter(wanted.get("NetworkInterfaces", [])), None)
    return Template(id=found["LaunchTemplateId"], version=str(number), interface=interface)


def digest(wanted: Mapping[str, Any]) -> str:
    """Return what a version's description holds: AWS words the same definition differently."""
    text = json.dumps(wanted, sort_keys=True)
    return "sha256 " + hashlib.sha256(text.encode()).hexdigest()


def templates(aws: Aws, fleet: Fleet, aws_region: str) -> list[LaunchTemplateTypeDef]:
    """List the fleet's launch templates in a region."""
    pages = (
        aws.ec2(aws_region)
        .get_paginator("describe_launch_templates")
        .paginate(Filters=[tags.of(fleet)])
    )
    return [template for page in pages for template in page["LaunchTemplates"]]


def remove(aws: Aws, fleet: Fleet, aws_region: str) -> None:
    """Delete the fleet's launch templates in a region.

    Raises:
        FleetError: AWS refuses.
    """
    with asking(f"the launch templates in {aws_region}"):
        for template in templates(aws, fleet, aws_region):
            _delete(aws.ec2(aws_region), template["LaunchTemplateId"])


def _disk(fleet: Fleet, image: Image) -> dict[str, Any]:
    asked = math.ceil(bytes_of(fleet.disk) / 2**30)  # disks are sold by the GiB
    return {
        "DeviceName": image.root,
        "Ebs": {
            "Encrypted": True,
            "VolumeType": "gp3",
            "VolumeSize": max(asked, image.root_gib, 1),
            "DeleteOnTermination": True,
        },
    }


def _called(ec2: EC2Client, name: str) -> LaunchTemplateTypeDef | None:
    found = ec2.describe_launch_templates(
        Filters=[{"Name": "launch-template-name", "Values": [name]}]
    )
    return found["LaunchTemplates"][0] if found["LaunchTemplates"] else None


def _make(
    ec2: EC2Client, fleet: Fleet, name: str, wanted: Mapping[str, Any]
) -> LaunchTemplateTypeDef:
    data: Any = dict(wanted)
    return ec2.create_launch_template(
        LaunchTemplateName=name,
        VersionDescription=digest(wanted),
        LaunchTemplateData=data,
        TagSpecifications=[tags.specification(fleet, "launch-template")],
    )["LaunchTemplate"]


def _digest_of(ec2: EC2Client, template: LaunchTemplateTypeDef) -> str:
    found = ec2.describe_launch_template_versions(
        LaunchTemplateId=template["LaunchTemplateId"],
        Versions=[str(template["LatestVersionNumber"])],
    )
    return found["LaunchTemplateVersions"][0].get("VersionDescription", "")


def _another(ec2: EC2Client, template: LaunchTemplateTypeDef, wanted: Mapping[str, Any]) -> int:
    data: Any = dict(wanted)
    return ec2.create_launch_template_version(
        LaunchTemplateId=template["LaunchTemplateId"],
        VersionDescription=digest(wanted),
        LaunchTemplateData=data,
    )["LaunchTemplateVersion"]["VersionNumber"]


def _delete(ec2: EC2Client, template: str) -> None:
    or_none(
        lambda: ec2.delete_launch_template(LaunchTemplateId=template),
        "InvalidLaunchTemplateId.NotFound",
    )
