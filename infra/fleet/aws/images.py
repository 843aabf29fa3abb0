"""Machine images: the one that the fleet names, or the newest that an SSM parameter names."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import InputError
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec.fleet import Fleet

BY_PARAMETER = "ssm:"
NO_PARAMETER = {"ParameterNotFound", "ParameterVersionNotFound"}
NO_IMAGE = {"InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable"}


@dataclass(frozen=True, kw_only=True)
class Image:
    """A machine image; `root` names its root device, `root_gib` is the root disk's size in GiB."""

    id: str
    root: str
    root_gib: int
    architecture: str


def find(aws: Aws, fleet: Fleet, aws_region: str, architecture: str) -> Image:
    """Find the fleet's machine image for an AWS region and a processor architecture."""
    named = fleet.ami if isinstance(fleet.ami, str) else fleet.ami[aws_region]
    wanted = named.replace("{architecture}", architecture)
    image = _resolve_image(aws, aws_region, wanted)
    with asking(f"the image {image} in {aws_region}"):
        found = _describe(aws, aws_region, image, wanted)
    if found.architecture != architecture:
        raise InputError(
            f"ami: {wanted} is for {found.architecture}, but the instance types are "
            f"{architecture}: choose types with the image's architecture, or name the image by an "
            "`ssm:` parameter with {architecture} in its path"
        )
    return found


def _resolve_image(aws: Aws, aws_region: str, wanted: str) -> str:
    if not wanted.startswith(BY_PARAMETER):
        return wanted
    name = wanted.removeprefix(BY_PARAMETER)
    with asking(f"the image behind {wanted} in {aws_region}"):
        ssm = aws.ssm(aws_region)
        found = or_none(lambda: ssm.get_parameter(Name=name), *NO_PARAMETER)
    if found is None:
        raise InputError(f"ami: the SSM parameter {name} does not exist in {aws_region}")
    return found["Parameter"]["Value"].strip()


def _describe(aws: Aws, aws_region: str, image: str, wanted: str) -> Image:
    ec2 = aws.ec2(aws_region)
    images = or_none(lambda: ec2.describe_images(ImageIds=[image])["Images"], *NO_IMAGE)
    if not images:
        called = wanted if wanted == image else f"{image}, to which {wanted} points,"
        raise InputError(f"ami: {aws_region} has no image {called} that this account may use")
    found = images[0]
    root = found.get("RootDeviceName", "/dev/sda1")
    sizes = [
        disk["Ebs"].get("VolumeSize", 0)
        for disk in found.get("BlockDeviceMappings", [])
        if disk.get("DeviceName") == root and "Ebs" in disk
    ]
    size, architecture = max(sizes, default=0), found["Architecture"]
    return Image(id=image, root=root, root_gib=size, architecture=architecture)
