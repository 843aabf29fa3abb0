"""Imitates apt, which would need the network; standard library only.

It "installs" HTCondor by linking an unpacked copy into /usr and doing what the package's scripts
do: account, folders, configuration, service. Other packages are only recorded as installed.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import stand_in_nvidia, stand_in_systemd
from . import stand_in_units as units

STATE = Path("/var/lib/lab/packages.json")
HARDWARE = Path("/var/lib/lab/hardware.json")
CONDOR = ("condor", "htcondor", "minicondor")
CONDOR_ID = 64
KNOWN = re.compile(
    r"ca-certificates|curl|wget|gnupg\d?|gpg|python3(-[a-z]+)?|nvme-cli|pciutils|kmod|dkms|lsb-release"
    r"|initramfs-tools|software-properties-common|apt-transport-https|xfsprogs|e2fsprogs|mdadm"
    r"|linux-headers-[\w.-]+|ubuntu-drivers-common|jq|util-linux|sudo"
)
DRIVER = re.compile(r"nvidia-(driver|open|headless|utils|kernel|dkms|compute)[\w.-]*|nvidia-smi")
# Folder below /usr: links of its own to each file of the copy's.
LINKED = ("bin", "sbin", "lib/condor", "lib/systemd/system")
FOLDERS = {
    "/var/log/condor": 0o755,
    "/var/spool/condor": 0o755,
    "/var/lib/condor": 0o755,
    "/var/lib/condor/execute": 0o755,
    "/run/condor": 0o755,
    "/run/lock/condor": 0o755,
}
SECRET = ("/etc/condor/passwords.d", "/etc/condor/tokens.d", "/var/lib/condor/cred_dir")


def main(words: list[str]) -> int:
    """Run a command line such as `apt-get install -y condor=25.14.*`."""
    name, *rest = words
    if name == "dpkg-query":
        return query([word for word in rest if not word.startswith("-")])
    verbs = [word for word in rest if not word.startswith("-") and "::" not in word]
    if verbs[:1] == ["indextargets"]:
        print("main\ncontrib\nnon-free")
    if not verbs or verbs[0] != "install":
        return 0
    wanted = verbs[1:]
    for package in wanted:
        if not can_install(*package.partition("=")[::2]):
            return 100
    for package in wanted:
        install(package.partition("=")[0])
    return 0


def query(names: list[str]) -> int:
    """Print the versions of installed packages, as `dpkg-query -W` does."""
    state = json.loads(STATE.read_text())
    missing = [name for name in names if name not in state["installed"]]
    for name in missing:
        print(f"dpkg-query: no packages found matching {name}", file=sys.stderr)
    for name in names:
        if name not in missing:
            print(f"{name}\t{condor_version() if name in CONDOR else '1.0'}")
    return 1 if missing else 0


def can_install(name: str, version: str) -> bool:
    """Return whether a package can be installed; if not, print what apt prints."""
    if name in CONDOR:
        if not version or re.match(
            version.replace(".", r"\.").replace("*", ".*"), condor_version()
        ):
            return True
        print(f"E: Version '{version}' for '{name}' was not found", file=sys.stderr)
        return False
    if KNOWN.fullmatch(name) or (DRIVER.fullmatch(name) and has_gpus()):
        return True
    print(f"E: Unable to locate package {name}", file=sys.stderr)
    return False


def has_gpus() -> bool:
    """Return whether the machine has GPUs for which a driver can be installed."""
    return bool(json.loads(HARDWARE.read_text()).get("gpus"))


def condor_version() -> str:
    """Return the version of HTCondor that can be installed."""
    release = Path(json.loads(STATE.read_text())["condor"])
    done = subprocess.run(
        [release / "bin/condor_version"],
        env={"CONDOR_CONFIG": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"CondorVersion: (\S+)", done.stdout)
    assert found, done.stdout
    return found[1]


def install(name: str) -> None:
    """Record a package as installed; for HTCondor and the driver, also install it."""
    state = json.loads(STATE.read_text())
    if name in state["installed"]:
        print(f"{name} is already the newest version.")
        return
    print(f"Setting up {name} (stand-in) ...", flush=True)
    if name in CONDOR:
        install_condor(Path(state["condor"]))
    elif DRIVER.fullmatch(name):
        hardware = json.loads(HARDWARE.read_text())
        hardware["installed"] = True
        HARDWARE.write_text(json.dumps(hardware))
        stand_in_nvidia.write_smi()
    state["installed"].append(name)
    STATE.write_text(json.dumps(state))


def install_condor(release: Path) -> None:
    """Do what the installation of the package `condor` does."""
    if release != Path("/usr"):
        for folder in LINKED:
            link_all(release / folder, Path("/usr", folder))
        link(release / "libexec/condor", Path("/usr/libexec/condor"))
        shutil.copytree(release.parent / "etc/condor", "/etc/condor", dirs_exist_ok=True)
    add_account()
    for place, mode in FOLDERS.items():
        owned(Path(place), mode, "condor")
    for place in SECRET:
        owned(Path(place), 0o700, "root")
    units.enable("condor")
    if stand_in_systemd.SOCKET.exists():  # not while an image is being made
        stand_in_systemd.ask(["start", "condor"])


def link_all(source: Path, target: Path) -> None:
    """Link HTCondor's own files in a folder; the unpacked copy also has other packages' files."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if "condor" in file.name or target.name == "condor":
            link(file, target / file.name)


def link(source: Path, target: Path) -> None:
    """Make `target` a link to `source`, whatever it was before."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.symlink_to(source)


def add_account() -> None:
    """Add the account and group `condor`."""
    try:
        pwd.getpwnam("condor")
    except KeyError:
        line = f"condor:x:{CONDOR_ID}:{CONDOR_ID}::/var/lib/condor:/usr/sbin/nologin\n"
        append(Path("/etc/passwd"), line)
        append(Path("/etc/group"), f"condor:x:{CONDOR_ID}:\n")


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)


def owned(path: Path, mode: int, owner: str) -> None:
    """Make a folder that belongs to `owner`."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    os.chown(path, pwd.getpwnam(owner).pw_uid, grp.getgrnam(owner).gr_gid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
