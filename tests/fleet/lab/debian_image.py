"""The disk image of a real node: Debian with systemd and cloud-init, and HTCondor's packages.

mmdebstrap makes it once, from the package mirror that this machine uses. It is kept in the user's
cache, in a folder named after its recipe; each node's root is an overlay on it. Nodes can't reach a
mirror. So apt's only source in the image is a folder of packages: HTCondor and all that it needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import platformdirs

from trialfleet.infra.pool import private_apt

PACKAGES = (
    *("systemd-sysv", "libpam-systemd", "systemd-resolved", "dbus", "polkitd", "udev", "kmod"),
    *("cloud-init", "mount", "iproute2", "nftables", "e2fsprogs", "tzdata"),
    *("python3", "ca-certificates", "curl", "sudo", "procps", "passwd", "openssh-server"),
    *("apt-utils", "unattended-upgrades"),
)
FINISH = Path(__file__).with_name("finish_image.sh")
OLD_RELEASES_ARE_FINE = 'Acquire::Check-Valid-Until "false"'  # a mirror may be a snapshot


class ImageError(Exception):
    """The image can't be made."""


def why_none() -> str:
    """Return why no image can be made on this machine; empty if one can be made."""
    if os.geteuid() != 0:
        return "only root can make Debian's image and boot systemd on it"
    if shutil.which("mmdebstrap") is None:
        return "no mmdebstrap on this machine: apt-get install mmdebstrap"
    return ""


def image(condor: str) -> Path:
    """Return the root of the image with packages of HTCondor `condor`; make it if it is missing.

    A second process that needs the image at the same time waits for the first.

    Raises:
        ImageError: the image can't be made; with the output of mmdebstrap.
    """
    recipe = "\0".join([private_apt.RELEASE, condor, *PACKAGES, FINISH.read_text()])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = platformdirs.user_cache_path("trialfleet") / "lab"
    place = folder / f"debian-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make(place, condor)
    return place


def make(place: Path, condor: str) -> None:
    """Make the image next to `place`, from the first mirror that has everything; then rename it."""
    for killed in place.parent.glob("debian-*.part"):
        shutil.rmtree(killed)
    errors = ""
    for mirror in private_apt.mirrors():
        beside = Path(tempfile.mkdtemp(prefix="debian-", suffix=".part", dir=place.parent))
        done = subprocess.run(command(beside, mirror, condor), capture_output=True, text=True)
        if done.returncode == 0:
            beside.rename(place)
            return
        shutil.rmtree(beside)
        errors += f"{mirror}:\n{done.stderr[-2000:]}\n"
    raise ImageError(
        f"mmdebstrap can't make Debian {private_apt.RELEASE} with condor {condor}\n{errors}"
    )


def command(root: Path, mirror: str, condor: str) -> list[str]:
    """Return the command line that makes the image.

    mmdebstrap mounts /sys, /dev and /proc below `root`. In a mount namespace of its own, they are
    gone once it is killed; otherwise, removing `root` would remove files of this machine.
    """
    finish = f'chroot "$1" sh -s {shlex.quote(condor)} < {shlex.quote(str(FINISH))}'
    source = f"deb [signed-by={private_apt.keyring()}] {mirror} {private_apt.RELEASE} main"
    return [
        *(
            "unshare",
            "--mount",
            "mmdebstrap",
            "--mode=root",
            "--variant=apt",
            f"--include={','.join(PACKAGES)}",
        ),
        f"--aptopt={OLD_RELEASES_ARE_FINE}",
        f"--customize-hook={finish}",
        *(private_apt.RELEASE, str(root), source),
    ]
