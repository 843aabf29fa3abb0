"""The folder for jobs, on a local NVMe disk, or on the root volume if there is no such disk."""

from __future__ import annotations

import shutil

from trialfleet.nodes.bootstrap.host import Host, StepError

DEFAULT = "/var/lib/condor/execute"
MOUNT = "/mnt/trialfleet"
DEEP_LEARNING_AMI = "/opt/dlami/nvme"  # AWS's images mount the local disks here at each boot
LOCAL_DISK = "Amazon EC2 NVMe Instance Storage"
OWNER = "condor"


def prepare(host: Host) -> str:
    """Return the path of the folder for jobs. Mount a local disk for it, if there is one.

    Raise StepError if the disk can't be mounted.
    """
    if is_mounted(host, DEEP_LEARNING_AMI):
        return f"{DEEP_LEARNING_AMI}/trialfleet"
    if not is_mounted(host, MOUNT):
        if (disk := local_disk(host)) is None:
            return DEFAULT
        mount(host, disk)
    return f"{MOUNT}/execute"


def local_disk(host: Host) -> str | None:
    """Return the device of the first unused local disk, or None if there is none."""
    for model in sorted(host.place("/sys/block").glob("nvme*/device/model")):
        block = model.parent.parent
        device = f"/dev/{block.name}"
        used = any(block.glob(f"{block.name}p*")) or any(block.glob("holders/*"))
        if model.read_text().strip() == LOCAL_DISK and not used and not is_mounted(host, device):
            return device
    return None


def is_mounted(host: Host, place: str) -> bool:
    """Return whether `place` is a mounted device or a mount point."""
    return any(place in line.split()[:2] for line in host.read("/proc/mounts").splitlines())


def mount(host: Host, device: str) -> None:
    """Mount a local disk. If that fails, format the disk and try to mount it once more.

    Formatting loses no data, because EC2 empties local disks before an instance starts.
    """
    host.place(MOUNT).mkdir(parents=True, exist_ok=True)
    command = ("mount", "-o", "noatime,discard", device, MOUNT)
    if host.ask(*command) is None:
        host.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,nodiscard", device)
        host.run(*command)


def make_folder(host: Host, path: str) -> None:
    """Make the folder for jobs, and give it to HTCondor's account.

    If this account does not exist, root owns the folder. Raise StepError on failure.
    """
    folder = host.place(path)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.chown(folder, OWNER, OWNER)
    except LookupError:
        host.say(f"there is no account {OWNER!r}, so the folder {path} belongs to root")
    except OSError as error:
        raise StepError(f"the folder for jobs {path} can't be made: {error}") from error
