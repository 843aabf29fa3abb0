"""Instance types that a fleet may use: listed ones, or all that meet its needs."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.fleet.mock_aws import moto_account
from tests.fleet.mock_aws.moto_account import AWAY, HOME, Account
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types
from trialfleet.infra.fleet.spec.fleet import DEFAULT_AMI
from trialfleet.infra.fleet.spec.machines import InstanceType


def resolved(cloud: Account, aws_region: str = HOME, **changes: Any) -> list[InstanceType]:
    return instance_types.resolve(cloud.aws, moto_account.fleet(**changes), aws_region)


def everywhere(cloud: Account, **changes: Any) -> dict[str, list[InstanceType]]:
    return instance_types.resolve_everywhere(cloud.aws, moto_account.fleet(**changes))


def test_a_listed_type_has_the_properties_that_aws_lists(cloud: Account) -> None:
    (kind,) = resolved(cloud, instance_types=["g5.12xlarge"])
    assert kind == InstanceType(
        name="g5.12xlarge",
        vcpus=48,
        memory_mb=196_608,
        gpus=4,
        gpu="A10G",
        gpu_memory_mb=22_888,
        architecture="x86_64",
        local_disks_gb=(3_800,),
        clusters=True,
        efa=True,
    )


@pytest.mark.parametrize(
    ("name", "clusters", "efa"),
    [("g5.xlarge", True, False), ("p4d.24xlarge", True, True), ("t3.small", False, False)],
)
def test_a_type_has_flags_for_cluster_placement_and_efa(
    cloud: Account, name: str, clusters: bool, efa: bool
) -> None:
    (kind,) = resolved(cloud, instance_types=[name])
    assert (kind.clusters, kind.efa) == (clusters, efa)


def test_gpus_of_another_maker_do_not_count() -> None:
    info: Any = {
        "InstanceType": "g4ad.xlarge",
        "VCpuInfo": {"DefaultVCpus": 4},
        "MemoryInfo": {"SizeInMiB": 16_384},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "GpuInfo": {
            "Gpus": [
                {
                    "Name": "Radeon Pro V520",
                    "Manufacturer": "AMD",
                    "Count": 1,
                    "MemoryInfo": {"SizeInMiB": 8_192},
                }
            ]
        },
    }
    kind = instance_types.parse_type(info)
    assert (kind.gpus, kind.gpu, kind.gpu_memory_mb) == (0, "", 0)


def test_a_type_without_gpus_has_none(cloud: Account) -> None:
    (kind,) = resolved(cloud, instance_types=["m5.large"])
    assert (kind.gpus, kind.gpu_memory_mb, kind.local_disks_gb) == (0, 0, ())


def test_a_fractional_gpu_of_a_listed_type_counts_as_one(cloud: Account) -> None:
    (kind,) = resolved(cloud, AWAY, aws_regions=[AWAY], instance_types=["g6f.xlarge"])
    assert (kind.gpus, kind.gpu_memory_mb) == (1, 2_861)


def test_an_unknown_type_is_reported_with_a_similar_one(cloud: Account) -> None:
    with pytest.raises(InputError) as error:
        everywhere(cloud, instance_types=["g5.xlarge", "g5.xlagre"])
    assert str(error.value) == (
        "instance_types has types not offered in eu-west-1: g5.xlagre (did you mean 'g5.xlarge'?)"
    )


def test_a_listed_type_may_be_missing_in_some_regions(cloud: Account) -> None:
    ask = instance_types._read_infos  # moto has every type everywhere

    def only_away(aws: Aws, aws_region: str, filters: Any) -> list[Any]:
        found = ask(aws, aws_region, filters)
        return [i for i in found if aws_region == AWAY or i["InstanceType"] != "g6.xlarge"]

    images = {HOME: moto_account.IMAGE, AWAY: moto_account.IMAGE}
    kinds = ["g6.xlarge", "g5.xlarge"]
    with mock.patch.object(instance_types, "_read_infos", only_away):
        found = everywhere(cloud, aws_regions=[HOME, AWAY], ami=images, instance_types=kinds)
        assert [kind.name for kind in found[AWAY]] == ["g5.xlarge", "g6.xlarge"]
        assert [kind.name for kind in found[HOME]] == ["g5.xlarge"]
        with pytest.raises(InputError, match=r"types not offered in eu-west-1: g6\.xlarge"):
            everywhere(cloud, instance_types=kinds)


def test_needs_find_the_types_that_meet_them(cloud: Account) -> None:
    found = resolved(cloud, needs={"gpus": 1, "gpu_memory": "24GB"})
    names = {kind.name for kind in found}
    assert {"g5.xlarge", "g6.xlarge", "g6e.xlarge"} <= names  # 24 GB as their makers count them
    assert not names & {"g4dn.xlarge", "g5.12xlarge", "g5g.xlarge", "m5.large"}
    assert all(kind.gpus == 1 and kind.gpu_memory_mb >= 22_888 for kind in found)


def test_needs_of_another_architecture_find_other_types(cloud: Account) -> None:
    found = resolved(cloud, AWAY, aws_regions=[AWAY], needs={"architecture": "arm64"})
    assert {kind.architecture for kind in found} == {"arm64"}
    assert "g5g.xlarge" in {kind.name for kind in found}


def test_needs_select_neither_fractional_gpus_nor_bare_metal(cloud: Account) -> None:
    small = resolved(cloud, AWAY, aws_regions=[AWAY], needs={"gpu_memory": "2GB"})
    assert not any(kind.name.startswith(("g6f", "gr6f")) for kind in small)
    eight = {kind.name for kind in resolved(cloud, needs={"gpus": 8, "gpu_memory": "16GB"})}
    assert "g5.48xlarge" in eight
    assert "g4dn.metal" not in eight


def test_gpus_without_a_driver_in_awss_image_are_not_chosen(cloud: Account) -> None:
    needs = {"gpus": 8, "gpu_memory": "32GB"}
    assert "p3dn.24xlarge" in {kind.name for kind in resolved(cloud, needs=needs)}
    images = {kind.name for kind in resolved(cloud, needs=needs, ami=DEFAULT_AMI)}
    assert "p4d.24xlarge" in images
    assert "p3dn.24xlarge" not in images
    with pytest.raises(InputError, match=r"choose newer types than p3dn\.24xlarge \(V100\), or"):
        resolved(cloud, instance_types=["p3dn.24xlarge", "g5.xlarge"], ami=DEFAULT_AMI)


def test_needs_without_gpus_are_refused(cloud: Account) -> None:
    with pytest.raises(
        InputError, match=r"needs\.gpus is 0, .* list the types to use in `instance_types:`"
    ):
        resolved(cloud, needs={"gpus": 0})


def test_zones_are_those_that_offer_the_type(cloud: Account) -> None:
    found = instance_types.zones(cloud.aws, HOME, ["p4d.24xlarge", "g5.xlarge"])
    assert found == {
        "g5.xlarge": ["eu-west-1a", "eu-west-1b", "eu-west-1c"],
        "p4d.24xlarge": ["eu-west-1c"],
    }
    assert instance_types.zones(cloud.aws, HOME, []) == {}


def test_a_denied_permission_is_reported_by_name(cloud: Account) -> None:
    cloud.faults.refuse("DescribeInstanceTypes", "UnauthorizedOperation")
    with pytest.raises(FleetError, match="permission to call DescribeInstanceTypes is denied"):
        resolved(cloud, instance_types=["g5.xlarge"])


@pytest.mark.parametrize(
    ("size", "mebibytes"), [("24GB", 22_888), ("16 GB", 15_258), ("0.5TB", 476_837), ("900MB", 858)]
)
def test_gpu_memory_is_counted_as_its_makers_do(size: str, mebibytes: int) -> None:
    assert instance_types.mebibytes(size) == mebibytes
