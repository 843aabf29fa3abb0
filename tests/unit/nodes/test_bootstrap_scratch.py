from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_stand_ins import Bench
from trialfleet.nodes.bootstrap import scratch
from trialfleet.nodes.bootstrap.host import Host, StepError

ROOT_DISK = "/dev/nvme0n1p1 / ext4 rw 0 0\n"
# Like mount: fails on a disk without a file system, and is seen in /proc/mounts after that.
MOUNT = """
test -e "$ROOT/formatted" || { echo "mount: wrong fs type, bad superblock" >&2; exit 32; }
echo "$3 $4 ext4 rw 0 0" >> "$ROOT/proc/mounts"
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path / "bench")
    bench.program("mount", MOUNT)
    bench.program("mkfs.ext4", 'touch "$ROOT/formatted"')
    bench.file("proc/mounts", ROOT_DISK)
    bench.file("sys/block/nvme0n1/device/model", "Amazon Elastic Block Store              \n")
    monkeypatch.setenv("PATH", bench.path)
    return bench


def local_disk(bench: Bench, name: str = "nvme1n1") -> None:
    bench.file(f"sys/block/{name}/device/model", "Amazon EC2 NVMe Instance Storage        \n")


def prepare(bench: Bench) -> str:
    return scratch.prepare(Host(bench.root))


def test_without_a_disk_of_its_own_jobs_run_on_the_root_volume(bench: Bench) -> None:
    assert prepare(bench) == "/var/lib/condor/execute"
    assert bench.calls == []


def test_an_empty_local_disk_is_formatted_and_mounted(bench: Bench) -> None:
    local_disk(bench)
    assert prepare(bench) == "/mnt/trialfleet/execute"
    assert bench.calls[1].endswith(" /dev/nvme1n1")
    assert bench.calls[1].startswith("mkfs.ext4")
    assert (bench.root / "mnt/trialfleet").is_dir()


def test_a_disk_keeps_its_file_system_over_a_reboot(bench: Bench) -> None:
    local_disk(bench)
    bench.file("formatted")
    assert prepare(bench) == "/mnt/trialfleet/execute"
    assert not any(call.startswith("mkfs") for call in bench.calls)


def test_a_second_run_of_the_scratch_step_changes_nothing(bench: Bench) -> None:
    local_disk(bench)
    prepare(bench)
    before = bench.calls
    assert prepare(bench) == "/mnt/trialfleet/execute"
    assert bench.calls == before


@pytest.mark.parametrize("use", ["nvme1n1p1/size", "holders/dm-0"])
def test_a_local_disk_that_something_uses_is_left_alone(bench: Bench, use: str) -> None:
    local_disk(bench)
    bench.file(f"sys/block/nvme1n1/{use}")
    assert prepare(bench) == "/var/lib/condor/execute"


def test_a_local_disk_that_is_mounted_elsewhere_is_left_alone(bench: Bench) -> None:
    local_disk(bench)
    bench.file("proc/mounts", ROOT_DISK + "/dev/nvme1n1 /data ext4 rw 0 0\n")
    assert prepare(bench) == "/var/lib/condor/execute"


def test_disks_joined_by_aws_images_are_used_in_place(bench: Bench) -> None:
    bench.file("proc/mounts", ROOT_DISK + "/dev/mapper/vg-lv /opt/dlami/nvme ext4 rw 0 0\n")
    assert prepare(bench) == "/opt/dlami/nvme/trialfleet"


def test_a_disk_that_cannot_be_formatted_is_an_error(bench: Bench) -> None:
    local_disk(bench)
    bench.program("mkfs.ext4", 'echo "mkfs.ext4: I/O error" >&2; exit 1')
    with pytest.raises(StepError, match=r"mkfs\.ext4: I/O error"):
        prepare(bench)


def test_the_folder_for_jobs_is_made_with_the_parents_it_needs(bench: Bench) -> None:
    messages: list[str] = []
    scratch.make_folder(Host(bench.root, messages.append), "/mnt/trialfleet/execute")
    folder = bench.root / "mnt/trialfleet/execute"
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_cannot_be_made_is_an_error(bench: Bench) -> None:
    bench.file("mnt", "a file, not a folder")
    with pytest.raises(StepError, match="for jobs /mnt/trialfleet/execute can't be made"):
        scratch.make_folder(Host(bench.root), "/mnt/trialfleet/execute")
