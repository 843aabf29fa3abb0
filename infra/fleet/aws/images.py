"""Machine images, which the fleet names by their ids or by an SSM parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trialfleet.errors import InputError
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec.fleet import Fleet

BY_PARAMETER = "ssm:"
NO_PARAMETER = {"ParameterNotFound", "ParameterVersionNotFound"}
NO_IMAGE = {"InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable"}


@dataclass(frozen=True, kw_only=True)
class Image:
    """A machine image.

    Attributes:
        root: name of the root device.
        kept: size in GiB of each further disk that the image tells AWS to keep after the instance's
            end, by device name.
    """

    id: str
    root: str
    root_gib: int
    architecture: str
    kept: Mapping[str, int] = field(default_factory=dict)


def find(aws: Aws, fleet: Fleet, aws_region: str, architecture: str) -> Image:
    """Find the fleet's image for an AWS region and an architecture. InputError if none fits."""
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
    listed = found.get("BlockDeviceMappings", [])
    disks = {disk.get("DeviceName", ""): disk["Ebs"] for disk in listed if "Ebs" in disk}
    size = disks.pop(root, {}).get("VolumeSize", 0)
    kept = {
        name: disk.get("VolumeSize", 0)
        for name, disk in disks.items()
        if disk.get("DeleteOnTermination") is False
    }
    architecture = found["Architecture"]
    return Image(id=image, root=root, root_gib=size, architecture=architecture, kept=kept)
