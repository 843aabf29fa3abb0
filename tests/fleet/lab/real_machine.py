"""The firmware of a machine with a real system: Debian's image as its root, then systemd.

systemd with its network and log-in manager, cloud-init, apt and HTCondor's package are real. Only
the hardware is imitated: GPUs with their driver, and the data that a virtual machine's firmware
gives. `python -m tests.fleet.lab.real_machine SPEC.json` runs it in new namespaces, with only the
standard library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from . import cgroups, mounting
from .machine import HERE, LAB, PROGRAMS, TORCH, Spec, make_dev, make_proc, stand_in, wait_for_cable

INIT = "/sbin/init"
# Units that would reach beyond the machine's namespaces: the one clock and the one kernel.
NOT_ITS_OWN = ("sys_time", "sys_module", "sys_rawio", "syslog", "wake_alarm")
SYSRQ = "proc/sysrq-trigger"
OWN_SYS = ("bus", "block", "hypervisor")  # not the real machine's, where it has them
# A virtual machine's number, by which cloud-init knows EC2's.
EC2_UUID = "ec2e1916-9099-7caf-fd21-012345abcdef\n"


def boot(spec: Spec) -> None:
    """Set the machine up and become its first process; its disk may have been booted before."""
    console = Path(os.ttyname(0))
    cgroups.enter(Path(spec.cgroup))
    disk = Path(spec.disk)
    root = disk / "root"
    mounting.overlay(Path(spec.image), disk / "upper", disk / "work", root)
    make_settings(root, spec)
    make_drivers_programs(root)
    make_dev(root / "dev", console)
    make_proc(root)
    (disk / "boot-id").write_text(f"{uuid.uuid4()}\n")  # the kernel's own is the real machine's
    mounting.bind(disk / "boot-id", root / "proc/sys/kernel/random/boot_id")
    if (root / SYSRQ).exists():
        mounting.bind(root / SYSRQ, root / SYSRQ)
    make_sys(root, disk / "sysfs")
    mounting.bind(Path(spec.hosts), root / "etc/hosts")
    mounting.bind(HERE, root / str(LAB).lstrip("/"))
    if spec.torch:  # runs where the Python of this environment isn't the system's own
        for place in spec.shown:
            mounting.bind(Path(place), root / place.lstrip("/"))
        mounting.write_programs(root, {f"{TORCH}/python3": [spec.torch]})
    mounting.pivot(root)
    environment = {"PYTHONPATH": str(LAB.parent), "PATH": os.environ["PATH"]}
    subprocess.run([*stand_in("nvidia"), "modprobe", "--at-boot"], env=environment, check=True)
    wait_for_cable()
    dropped = ",".join(f"-{name}" for name in NOT_ITS_OWN)
    words = ["setpriv", f"--bounding-set={dropped}", INIT]
    os.execvpe(words[0], words, {"container": "lab", "PATH": os.environ["PATH"]})  # noqa: S606


def make_settings(root: Path, spec: Spec) -> None:
    """Write the lab's settings of this machine: its hardware, and variables for services."""
    variables = " ".join(f'"{name}={value}"' for name, value in spec.environment.items())
    mounting.write_files(
        root,
        {
            "/var/lib/lab/hardware.json": json.dumps(spec.hardware),
            "/etc/systemd/system.conf.d/lab.conf": f"[Manager]\nDefaultEnvironment={variables}\n",
            **spec.files,
        },
    )


def make_drivers_programs(root: Path) -> None:
    """Put the stand-ins for NVIDIA's driver before the image's programs."""
    words = (f"env PYTHONPATH={LAB.parent}", *stand_in("nvidia"))
    for name in PROGRAMS["nvidia"]:
        mounting.write_programs(root, {f"/usr/local/sbin/{name}": [*words, name]})


def make_sys(root: Path, whole: Path) -> None:
    """Mount /sys of the kernel, read-only, without hardware and with separate cgroups."""
    whole.mkdir(exist_ok=True)
    mounting.mount("sysfs", whole, "sysfs", mounting.MS_RDONLY)
    place = root / "sys"
    mounting.memory(place)
    for folder in whole.iterdir():
        if folder.name not in OWN_SYS:
            mounting.bind(folder, place / folder.name)
    mounting.memory(place / "bus")
    (place / "bus/pci/devices").mkdir(parents=True)
    (place / "block").mkdir()
    mounting.write_files(root, {"/sys/hypervisor/uuid": EC2_UUID})
    mounting.make_read_only(place)
    cgroups.mount(place / "fs/cgroup")


if __name__ == "__main__":
    boot(Spec(**json.loads(Path(sys.argv[1]).read_text())))
