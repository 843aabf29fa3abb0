"""The EC2 launch templates, one for each AWS region and processor architecture.

Nodes with an Elastic Fabric Adapter (EFA) have templates of their own, because EC2 does not launch
types without EFA from a template that requests one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trialfleet.infra.fleet.aws import tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.aws.images import Image
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.sections import parse_bytes

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import LaunchTemplateTypeDef

EFA = "-efa"  # suffix of the name of a template for nodes with an Elastic Fabric Adapter


@dataclass(frozen=True, kw_only=True)
class Template:
    """One version of an EC2 launch template."""

    id: str
    version: str


def name_suffix(fleet: Fleet, architecture: str, *, efa: bool) -> str:
    """Return the suffix of a launch template's name.

    `efa` is True if the template's instance types can have an Elastic Fabric Adapter. If the fleet
    also uses these adapters, the suffix ends with `EFA`.
    """
    return architecture + (EFA if fleet.efa and efa else "")


def definition(
    fleet: Fleet, image: Image, group: str, profile: str, user_data: str, *, efa: bool = False
) -> dict[str, Any]:
    """Return the content of a launch template.

    Nodes get the security group with the id `group`, and the instance profile named `profile`.
    `user_data` is in base64, and must not contain a secret. With `efa` the nodes get an Elastic
    Fabric Adapter.
    """
    asked = math.ceil(parse_bytes(fleet.disk) / 2**30)  # disks are sold by the GiB
    disk = {
        "Encrypted": True,
        "VolumeType": "gp3",
        "VolumeSize": max(asked, image.root_gib, 1),
        "DeleteOnTermination": True,
    }
    wanted: dict[str, Any] = {
        "ImageId": image.id,
        "IamInstanceProfile": {"Name": profile},
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpProtocolIpv6": "disabled",  # the rule that keeps jobs from it is for IPv4 only
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [
            {"DeviceName": image.root, "Ebs": disk},
            *(
                {"DeviceName": name, "Ebs": {"VolumeSize": gib, "DeleteOnTermination": True}}
                for name, gib in image.kept.items()
            ),
        ],
    }
    if efa:
        card = {"DeviceIndex": 0, "InterfaceType": "efa", "Groups": [group]}
        wanted["NetworkInterfaces"] = [card | {"DeleteOnTermination": True}]
    else:
        wanted["SecurityGroupIds"] = [group]
    if fleet.key_pair:
        wanted["KeyName"] = fleet.key_pair
    return wanted


def ensure(
    aws: Aws, fleet: Fleet, aws_region: str, kind: str, wanted: Mapping[str, Any]
) -> Template:
    """Return the version of a launch template that has the content `wanted`.

    The template, or a new version of it, is created if necessary. `kind` is the suffix of the
    template's name.
    """
    name = f"{names.resource_name(fleet.full_name)}-{kind}"
    content: Any = {"VersionDescription": digest(wanted), "LaunchTemplateData": dict(wanted)}
    with asking(f"the launch template {name} in {aws_region}"):
        ec2 = aws.ec2(aws_region)
        named: Any = [{"Name": "launch-template-name", "Values": [name]}]
        listed = ec2.describe_launch_templates(Filters=named)["LaunchTemplates"]
        if listed:
            id_, number = listed[0]["LaunchTemplateId"], listed[0]["LatestVersionNumber"]
            newest = ec2.describe_launch_template_versions(
                LaunchTemplateId=id_, Versions=[str(number)]
            )["LaunchTemplateVersions"][0]
            if newest.get("VersionDescription") != content["VersionDescription"]:
                made = ec2.create_launch_template_version(LaunchTemplateId=id_, **content)
                number = made["LaunchTemplateVersion"]["VersionNumber"]
        else:
            its = [tags.specification(fleet, "launch-template")]
            new = ec2.create_launch_template(
                LaunchTemplateName=name, TagSpecifications=its, **content
            )["LaunchTemplate"]
            id_, number = new["LaunchTemplateId"], new["LatestVersionNumber"]
    return Template(id=id_, version=str(number))


def digest(wanted: Mapping[str, Any]) -> str:
    """Return a hash of a template's content, by which contents are compared.

    AWS returns contents in another form, so they can't be compared directly.
    """
    text = json.dumps(wanted, sort_keys=True)
    return "sha256 " + hashlib.sha256(text.encode()).hexdigest()


def templates(aws: Aws, fleet: Fleet, aws_region: str) -> list[LaunchTemplateTypeDef]:
    """List the fleet's launch templates in an AWS region."""
    paginator = aws.ec2(aws_region).get_paginator("describe_launch_templates")
    pages = paginator.paginate(Filters=[tags.fleet_filter(fleet)])
    return [template for page in pages for template in page["LaunchTemplates"]]


def remove(aws: Aws, fleet: Fleet, aws_region: str) -> None:
    """Delete the fleet's launch templates in an AWS region."""
    ec2 = aws.ec2(aws_region)
    with asking(f"the launch templates in {aws_region}"):
        for template in templates(aws, fleet, aws_region):
            delete = partial(
                ec2.delete_launch_template, LaunchTemplateId=template["LaunchTemplateId"]
            )
            or_none(delete, "InvalidLaunchTemplateId.NotFound")
