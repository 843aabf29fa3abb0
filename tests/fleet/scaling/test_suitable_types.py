"""A fleet's instance types that can hold a trial, by AWS's description of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import classad2
import pytest

from tests.fleet.mock_aws import moto_account
from tests.fleet.mock_aws.moto_account import HOME, Account
from trialfleet.infra.fleet.aws import clients, images
from trialfleet.infra.fleet.choice import instance_types
from trialfleet.infra.fleet.htcondor.demand import read_demand
from trialfleet.infra.fleet.scaling.suitable_types import suitable, suitable_types
from trialfleet.infra.fleet.spec.fleet import DEFAULT_AMI
from trialfleet.infra.pool.machines import Resources
from trialfleet.workflows.control.plan import pool_check
from trialfleet.workflows.control.plan.pool_check import PoolCheck, _suitable_types
from trialfleet.workflows.facts.dagman import access_point
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.slot_matching import Prospects
from trialfleet.workflows.study.spec import Study

TYPES = ["g5.xlarge", "g5.2xlarge"]  # 4 and 8 cpus, 16 and 32 GiB, one GPU each


@pytest.mark.parametrize(
    ("need", "types", "expected"),
    [
        (
            Resources(gpus=1, cpus=1, memory_mb=2_048),
            ["g5.2xlarge", "g5.xlarge"],
            "g5.2xlarge, g5.xl",
        ),
        (Resources(gpus=1, cpus=8, memory_mb=2_048), ["g5.2xlarge"], "can hold one: g5.2xlarge"),
        (
            Resources(gpus=1, cpus=1, memory_mb=921_600),
            [],
            "needs 1 GPU, 1 cpu, 921600 MB, and the largest, g5.2xlarge, has 1 GPU, 8 cpus",
        ),
        (Resources(gpus=2, cpus=1, memory_mb=1), [], "it needs 2 GPUs, 1 cpu, 1 MB"),
    ],
)
def test_a_trial_is_compared_with_the_fleets_instance_types(
    cloud: Account, need: Resources, types: list[str], expected: str
) -> None:
    found = suitable_types(cloud.aws, moto_account.fleet(instance_types=TYPES), need)
    assert found is not None
    assert found.types == types
    assert expected in str(found)


def test_a_gang_needs_room_for_the_jobs_with_which_it_begins(cloud: Account) -> None:
    fleet = moto_account.fleet(instance_types=["g5.xlarge", "g5.12xlarge"], nodes={"max": 3})
    need = Resources(gpus=1, cpus=1, memory_mb=1)

    def answer(least: int) -> tuple[list[str], str]:
        found = suitable_types(cloud.aws, fleet, need, least)
        assert found is not None
        return found.types, str(found)

    assert answer(3)[0] == ["g5.12xlarge", "g5.xlarge"]
    assert answer(12)[0] == ["g5.12xlarge"]
    types, words = answer(13)
    assert types == []
    assert words == (
        "a gang begins with 13 jobs (resources.nodes.min), but the fleet has room for at most "
        "12: nodes.max is 3, and a node holds 4 of them"
    )


def test_a_shared_gpu_counts_once_for_each_trial(cloud: Account) -> None:
    fleet = moto_account.fleet(instance_types=["g5.xlarge"], trials_per_gpu=4)
    found = suitable_types(cloud.aws, fleet, Resources(gpus=1, cpus=1, memory_mb=1))
    assert found is not None
    assert found.rooms["g5.xlarge"].gpus == 4


GIB = 2**30


@pytest.mark.parametrize(
    ("disk", "gib", "types", "expected"),
    [
        ("100GB", 90, ["c5.xlarge", "g5.xlarge"], "can hold one: c5.xlarge, g5.xlarge"),
        ("100GB", 200, ["g5.xlarge"], "can hold one: g5.xlarge"),  # which has a local disk
        ("300GB", 300, ["c5.xlarge"], "can hold one: c5.xlarge"),
        (
            "300GB",
            301,
            [],
            "it needs 301 GB of disk, and the most, of c5.xlarge, is 300 GB (fleet.disk, unless a ",
        ),
    ],
)
def test_a_trials_disk_is_compared_with_the_nodes_disks(
    cloud: Account, disk: str, gib: int, types: list[str], expected: str
) -> None:
    fleet = moto_account.fleet(instance_types=["c5.xlarge", "g5.xlarge"], disk=disk)
    need = Resources(cpus=1, memory_mb=1)
    found = suitable_types(cloud.aws, fleet, need, disk_bytes=gib * GIB)
    assert found is not None
    assert found.types == types
    assert expected in str(found)


def test_the_image_of_a_node_may_have_a_larger_disk_than_the_fleet_asks_for(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = moto_account.fleet(instance_types=["c5.xlarge"], disk="20GB")
    image = images.Image(id="ami-1", root="/dev/sda1", root_gib=60, architecture="x86_64")
    monkeypatch.setattr(images, "find", lambda *_: image)
    for gib, types in ((60, ["c5.xlarge"]), (61, [])):
        found = suitable_types(cloud.aws, fleet, Resources(cpus=1), disk_bytes=gib * GIB)
        assert found is not None
        assert found.types == types


@pytest.mark.parametrize(("ami", "gigabytes"), [(moto_account.IMAGE, 3_800), (DEFAULT_AMI, 7_600)])
def test_jobs_have_one_local_disk_of_a_node_except_on_the_image_that_joins_them(
    cloud: Account, ami: str, gigabytes: int
) -> None:
    fleet = moto_account.fleet(instance_types=["g5.48xlarge"], ami=ami)
    found = suitable_types(cloud.aws, fleet, Resources(gpus=1, cpus=1, memory_mb=1))
    assert found is not None
    assert found.disks == {"g5.48xlarge": gigabytes * 1e9}


def test_the_disk_limits_the_number_of_a_gangs_jobs_on_a_node(cloud: Account) -> None:
    fleet = moto_account.fleet(instance_types=["c5.xlarge"], disk="100GB", nodes={"max": 2})
    for least, types in ((4, ["c5.xlarge"]), (5, [])):
        found = suitable_types(cloud.aws, fleet, Resources(cpus=1), least, disk_bytes=40 * GIB)
        assert found is not None
        assert found.types == types
    assert "nodes.max is 2, and a node holds 2 of them" in str(found)


def test_the_autoscaler_chooses_types_whose_disk_has_room_for_the_waiting_jobs(
    cloud: Account,
) -> None:
    """Jobs of more than any node's disk are left to the check of the plan."""
    fleet = moto_account.fleet(instance_types=["c5.xlarge", "g5.xlarge"], disk="100GB")
    kinds = instance_types.resolve(cloud.aws, fleet, HOME)
    way = moto_account.candidate()
    offers = [replace(way, type=kind) for kind in kinds]

    def chosen(gib: int) -> list[str]:
        ad = {"JobStatus": 1, "RequestCpus": 1, "RequestMemory": 1, "RequestDisk": gib << 20}
        return [one.type.name for one in suitable(fleet, offers, read_demand([ad]).idle)]

    assert chosen(90) == chosen(9_000) == ["c5.xlarge", "g5.xlarge"]
    assert chosen(200) == ["g5.xlarge"]


def test_plan_compares_the_disk_that_a_trial_requests(
    cloud: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "Aws", lambda: cloud.aws)
    study = fleet_study("A")
    for gib, hopeless in ((99, False), (101, True)):
        requests = {"RequestCpus": 1, "RequestMemory": 1, "Files": 0}
        job = classad2.ClassAd(
            requests | {"RequestDisk": classad2.ExprTree(f"{gib << 20} + Files")}
        )
        found = _suitable_types(study, job)
        no_slot = Prospects(slots=0, fit=0, willing=0, concurrency=0, lacking=(), has_fleet=True)
        checked = PoolCheck(prospects=no_slot, has_fleet=True, suitable=found)
        assert ("needs 101 GB of disk" in checked.hopeless) == hopeless


def fleet_study(*regions: str) -> Study:
    return Study.model_validate(
        {
            "name": "demo",
            "regions": list(regions),
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trainer": {"command": ["sh"]},
            "fleet": moto_account.fleet(instance_types=["c5.xlarge"], autoscale="service"),
        }
    )


@pytest.mark.parametrize(("gib", "hopeless"), [(99, ""), (101, "trials of B: no instance type")])
def test_plan_also_compares_the_region_with_the_largest_input(
    cloud: Account, monkeypatch: pytest.MonkeyPatch, gib: int, hopeless: str
) -> None:
    study = fleet_study("A", "B")
    disk = {"A": 1, "B": gib}

    def trial_ad(_folder: object, _run: str, _study: Study, region: RegionGraph) -> object:
        requests = {"RequestCpus": 1, "RequestMemory": 1, "RequestDisk": disk[region.name] << 20}
        return classad2.ClassAd(requests | {"Requirements": True})

    monkeypatch.setattr(clients, "Aws", lambda: cloud.aws)
    for name, stand_in in {
        "load_frozen": lambda _: SimpleNamespace(study=study, run="r"),
        "connect": lambda: None,
        "use": lambda _: None,
        "pool_slots": lambda: SimpleNamespace(whole=[]),
        "trial_ad": trial_ad,
        "list_inputs": lambda _study, _folder, region: [region],
        "_file_bytes": disk.__getitem__,
    }.items():
        monkeypatch.setattr(pool_check, name, stand_in)
    monkeypatch.setattr(access_point, "reasons_closed", list)
    found = pool_check.check_pool(RunFolder(Path("/nowhere")))
    assert found.can_begin
    assert found.hopeless.startswith(hopeless)
    assert bool(found.hopeless) == bool(hopeless)
