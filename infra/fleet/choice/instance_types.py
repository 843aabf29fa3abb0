"""The instance types that a fleet lists or, if it lists none, all types that meet its `needs`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from trialfleet.errors import InputError
from trialfleet.infra.fleet.aws.clients import Aws, asking
from trialfleet.infra.fleet.spec.fleet import DEFAULT_AMI, Fleet, Needs
from trialfleet.infra.fleet.spec.machines import InstanceType
from trialfleet.sections import parse_bytes
from trialfleet.spelling import did_you_mean

if TYPE_CHECKING:
    from types_boto3_ec2.literals import LocationTypeType
    from types_boto3_ec2.type_defs import (
        GpuDeviceInfoTypeDef,
        InstanceTypeInfoTypeDef,
        InstanceTypeOfferingTypeDef,
    )

IMAGES = ("x86_64", "arm64")  # architectures of images
OLD = frozenset({"K80", "M60", "V100"})  # GPUs of generations before Turing
# Types other than bare metal that are sold on-demand or as spot.
_SOLD: Any = [
    {"Name": "bare-metal", "Values": ["false"]},
    {"Name": "supported-usage-class", "Values": ["on-demand", "spot"]},
]


def resolve(aws: Aws, fleet: Fleet, aws_region: str) -> list[InstanceType]:
    """List the fleet's instance types that AWS offers in a region, sorted by name.

    InputError if AWS's image lacks a listed type's driver, or if nothing limits the types.
    """
    # The driver of AWS's image does not support older GPUs; the user's own image may.
    too_old = OLD if fleet.ami == DEFAULT_AMI else frozenset()
    if not fleet.instance_types:
        fit = _find_matching(aws, fleet.needs, aws_region)
        return [kind for kind in fit if kind.gpu not in too_old]
    named = [{"Name": "instance-type", "Values": sorted(fleet.instance_types)}]
    found = sorted(map(parse_type, _read_infos(aws, aws_region, named)), key=lambda one: one.name)
    if old := [f"{kind.name} ({kind.gpu})" for kind in found if kind.gpu in too_old]:
        raise InputError(
            f"instance_types: the NVIDIA driver in AWS's image only supports Turing GPUs (T4) and "
            f"newer: choose newer types than {', '.join(old)}, or an image with another driver in "
            "`ami:`"
        )
    return found


def resolve_everywhere(aws: Aws, fleet: Fleet) -> dict[str, list[InstanceType]]:
    """List the fleet's instance types that AWS offers, by AWS region.

    InputError as `resolve` says, and if none of the AWS regions has a type that the fleet lists.
    """
    found = {aws_region: resolve(aws, fleet, aws_region) for aws_region in fleet.aws_regions}
    refuse_unknown(aws, fleet, [kind for types in found.values() for kind in types])
    return found


def refuse_unknown(aws: Aws, fleet: Fleet, offered: Iterable[InstanceType]) -> None:
    """Raise InputError if a type that the fleet lists is not among the `offered` ones."""
    known = {kind.name for kind in offered}
    if missing := [name for name in sorted(fleet.instance_types) if name not in known]:
        sold = {one["InstanceType"] for one in _read_offerings(aws, fleet.home, "region", [])}
        guesses = [f"{name}{did_you_mean(name, sorted(sold))}" for name in missing]
        where = ", ".join(fleet.aws_regions)
        raise InputError(f"instance_types has types not offered in {where}: {', '.join(guesses)}")


def zones(
    aws: Aws, aws_region: str, types: Iterable[str], allowed: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return the zones in which AWS offers each type, by the type's name.

    If `allowed` is not empty, other zones are left out.
    """
    offered: dict[str, list[str]] = {name: [] for name in sorted(set(types))}
    wanted = [{"Name": "instance-type", "Values": list(offered)}]
    for found in _read_offerings(aws, aws_region, "availability-zone", wanted) if offered else ():
        offered[found["InstanceType"]].append(found["Location"])
    return {
        name: sorted(place for place in places if not allowed or place in allowed)
        for name, places in offered.items()
    }


def list_sold(aws: Aws, aws_region: str) -> list[InstanceType]:
    """List the instance types that AWS sells in a region, without bare-metal types."""
    return [parse_type(info) for info in _read_infos(aws, aws_region, _SOLD)]


def parse_type(info: InstanceTypeInfoTypeDef) -> InstanceType:
    """Parse AWS's description of a type. A part of a GPU counts as a GPU."""
    gpus: list[Any] = _gpus(info)
    processors = info["ProcessorInfo"]["SupportedArchitectures"]
    return InstanceType(
        name=info["InstanceType"],
        vcpus=info["VCpuInfo"]["DefaultVCpus"],
        memory_mb=info["MemoryInfo"]["SizeInMiB"],
        gpus=sum(int(gpu.get("Count") or gpu.get("LogicalGpuCount") or 1) for gpu in gpus),
        gpu=gpus[0]["Name"] if gpus else "",
        gpu_memory_mb=min((gpu["MemoryInfo"]["SizeInMiB"] for gpu in gpus), default=0),
        # A processor may have several architectures: the one for which there are images.
        architecture=next((a for a in IMAGES if a in processors), str(processors[0])),
        local_disks_gb=tuple(
            disk["SizeInGB"]
            for disk in info.get("InstanceStorageInfo", {}).get("Disks", [])
            for _ in range(disk["Count"])
        ),
        clusters="cluster" in info.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
        efa=info.get("NetworkInfo", {}).get("EfaSupported", False),
    )


def _find_matching(aws: Aws, needs: Needs, aws_region: str) -> list[InstanceType]:
    if needs.gpus == 0:
        raise InputError(
            "needs.gpus is 0, which hundreds of instance types meet, even very small ones: list "
            "the types to use in `instance_types:`"
        )
    filters = [
        {"Name": "processor-info.supported-architecture", "Values": [needs.architecture]},
        *_SOLD,
    ]
    infos = [info for info in _read_infos(aws, aws_region, filters) if _has_whole_gpus(info)]
    least = mebibytes(needs.gpu_memory)
    fit = [
        kind
        for kind in map(parse_type, infos)
        if kind.gpus == needs.gpus and kind.gpu_memory_mb >= least
    ]
    return sorted(fit, key=lambda kind: kind.name)


def mebibytes(size: str) -> int:
    """Return a size such as `24GB` in MiB. 1 GB is 10^9 bytes, as makers of GPUs count."""
    return int(parse_bytes(size, kilo=1000.0) / 2**20)


def _read_infos(aws: Aws, aws_region: str, filters: Any) -> list[InstanceTypeInfoTypeDef]:
    with asking(f"the instance types of {aws_region}"):
        pages = aws.ec2(aws_region).get_paginator("describe_instance_types")
        return [info for page in pages.paginate(Filters=filters) for info in page["InstanceTypes"]]


def _read_offerings(
    aws: Aws, aws_region: str, by: LocationTypeType, filters: Any
) -> list[InstanceTypeOfferingTypeDef]:
    with asking(f"which zones of {aws_region} offer which instance types"):
        pages = aws.ec2(aws_region).get_paginator("describe_instance_type_offerings")
        found = pages.paginate(LocationType=by, Filters=filters)
        return [offering for page in found for offering in page["InstanceTypeOfferings"]]


def _gpus(info: InstanceTypeInfoTypeDef) -> list[GpuDeviceInfoTypeDef]:
    gpus = info.get("GpuInfo", {}).get("Gpus", [])
    return [gpu for gpu in gpus if gpu["Manufacturer"] == "NVIDIA"]


def _has_whole_gpus(info: InstanceTypeInfoTypeDef) -> bool:
    """Return whether a type has whole GPUs. AWS's image lacks the driver for parts of GPUs."""
    return bool(_gpus(info)) and all(gpu.get("Count", 0) >= 1 for gpu in _gpus(info))
