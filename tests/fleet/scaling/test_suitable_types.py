"""A fleet's instance types that can hold a trial, by AWS's description of them."""

from __future__ import annotations

import pytest

from tests.fleet.mock_aws import moto_account
from tests.fleet.mock_aws.moto_account import Account
from trialfleet.infra.fleet.scaling.suitable_types import suitable_types
from trialfleet.infra.pool.machines import Room

TYPES = ["g5.xlarge", "g5.2xlarge"]  # 4 and 8 cpus, 16 and 32 GiB, one GPU each


@pytest.mark.parametrize(
    ("need", "types", "expected"),
    [
        (Room(gpus=1, cpus=1, memory_mb=2_048), ["g5.2xlarge", "g5.xlarge"], "g5.2xlarge, g5.xl"),
        (Room(gpus=1, cpus=8, memory_mb=2_048), ["g5.2xlarge"], "can hold one: g5.2xlarge"),
        (
            Room(gpus=1, cpus=1, memory_mb=921_600),
            [],
            "needs 1 GPU, 1 cpu, 921600 MB, and the largest, g5.2xlarge, has 1 GPU, 8 cpus",
        ),
        (Room(gpus=2, cpus=1, memory_mb=1), [], "it needs 2 GPUs, 1 cpu, 1 MB"),
    ],
)
def test_a_trial_is_compared_with_the_fleets_instance_types(
    cloud: Account, need: Room, types: list[str], expected: str
) -> None:
    found = suitable_types(cloud.aws, moto_account.fleet(instance_types=TYPES), need)
    assert found is not None
    assert found.types == types
    assert expected in str(found)


def test_a_gang_needs_room_for_the_jobs_with_which_it_begins(cloud: Account) -> None:
    fleet = moto_account.fleet(instance_types=["g5.xlarge", "g5.12xlarge"], nodes={"max": 3})
    need = Room(gpus=1, cpus=1, memory_mb=1)

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
    found = suitable_types(cloud.aws, fleet, Room(gpus=1, cpus=1, memory_mb=1))
    assert found is not None
    assert found.rooms["g5.xlarge"].gpus == 4
