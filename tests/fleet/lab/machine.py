"""The firmware of a machine: makes its root and its network, then becomes its first process.

`python -m tests.fleet.lab.machine SPEC.json` runs it in new namespaces, with only the standard
library.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import mounting

HERE = Path(__file__).resolve().parent
LAB = Path("/opt/lab")  # the stand-ins, as the machine sees them
PYTHON = "/usr/bin/python3"  # every image of a cloud has it
TORCH = "/opt/pytorch/bin"  # where AWS's deep-learning images have the Python with torch
LEAST_PYTHON = (3, 10)
USER, USER_ID = "ubuntu", 1000
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FOLDERS = ("etc/systemd/system", "etc/modprobe.d", "etc/apt/sources.list.d", "etc/apt/keyrings",
           "etc/default", "etc/sysctl.d", "var/lib/lab", "var/log", "var/cache", "var/spool",
           "opt", "srv", "mnt", "run/lock", "boot", "root", f"home/{USER}", "usr")  # fmt: skip
# Folders of /usr that programs are written to. They exist above the overlay from the start: a user
# namespace can't copy the machine's own up, because their owner has no number in it.
USR_FOLDERS = ("bin", "sbin", "lib", "lib/condor", "lib/systemd", "lib/systemd/system", "libexec",
               "local", "local/bin", "local/sbin", "local/lib", "share",
               "share/keyrings")  # fmt: skip
FROM_HERE = ("ssl", "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "login.defs",
             "debian_version", "services", "protocols", "pam.d", "security", "profile",
             "bash.bashrc", "ca-certificates", "ca-certificates.conf", "adduser.conf")  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ACCOUNTS = {"root": (0, "/root"), "daemon": (1, "/"), USER: (USER_ID, f"/home/{USER}"),
            "nobody": (65534, "/nonexistent")}  # fmt: skip
GROUPS = {"root": 0, "daemon": 1, "adm": 4, "tty": 5, "sudo": 27, "shadow": 42, USER: USER_ID,
          "nogroup": 65534}  # fmt: skip
# Programs that the machine calls, and their stand-ins.
PROGRAMS = {
    "systemd": ("systemctl", "shutdown", "poweroff", "reboot", "halt"),
    "apt": ("apt-get", "apt", "dpkg-query", "add-apt-repository"),
    "nvidia": ("modprobe", "rmmod", "modinfo", "lsmod", "lspci", "depmod", "update-initramfs"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A machine's settings.

    Attributes:
        id: the EC2 instance's id.
        disk: a folder that becomes the machine's disk.
        hosts: the file that all machines have as /etc/hosts.
        name: the machine's full host name.
        address: the machine's IPv4 address; all others are reached through the router.
        router: the router's IPv4 address.
        router_mac: the router's hardware address.
        shown: folders of the real machine that the machine sees, read-only, at the same paths.
        condor: an unpacked HTCondor's /usr, which apt's stand-in installs.
        installed: packages that the machine's image has.
        hardware: what the stand-ins of GPU and driver read.
        image: the root of Debian's image for a real system; empty: the real machine's programs
            are used, with stand-ins.
        cgroup: the cgroup for a real system, which doesn't exist yet.
        authority: a certificate to trust, besides those that the real machine trusts.
        torch: a Python with torch, which jobs find as in AWS's images; empty for none.
        environment: variables of all its processes, as /etc/environment has them.
        files: more files; those in the home belong to the user.
    """

    id: str
    disk: str
    hosts: str
    name: str
    address: str
    router: str
    router_mac: str
    condor: str
    image: str = ""
    cgroup: str = ""
    authority: str = ""
    torch: str = ""
    shown: list[str] = field(default_factory=list)
    installed: list[str] = field(default_factory=list)
    hardware: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def boot(spec: Spec) -> None:
    """Set the machine up, and become its first process."""
    console = Path(os.ttyname(0))
    root = Path(spec.disk) / "root"
    root.mkdir(parents=True)
    mounting.mount(root, root, flags=mounting.MS_BIND)
    make_folders(root)
    make_usr(root, Path(spec.disk))
    make_etc(root, spec)
    if spec.torch:
        mounting.write_programs(root, {f"{TORCH}/python3": [spec.torch]})
    write_users_files(root, spec.files)
    make_kernel_folders(root, console)
    for place in spec.shown:
        mounting.bind(Path(place), root / place.lstrip("/"))
    mounting.bind(HERE, root / str(LAB).lstrip("/"))
    mounting.pivot(root)
    socket.sethostname(spec.name.partition(".")[0])
    plug_in(spec)
    environment = {"PYTHONPATH": str(LAB.parent)}
    for package in spec.installed:
        subprocess.run([*stand_in("apt"), "apt-get", "install", package], env=environment)
    os.execve(PYTHON, stand_in("systemd"), environment)  # noqa: S606  no shell is the point


def stand_in(name: str) -> list[str]:
    """Return the command of a stand-in on a machine, where $PYTHONPATH names the lab's folder."""
    return [PYTHON, "-m", f"{LAB.name}.stand_in_{name}"]


def make_folders(root: Path) -> None:
    """Make the folders of a fresh disk."""
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir(mode=0o1777)
        (root / name).chmod(0o1777)
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    os.chown(root / "home" / USER, USER_ID, USER_ID)
    for name in LINKS:
        here = Path("/", name)
        if here.is_symlink():
            (root / name).symlink_to(here.readlink())
        elif here.is_dir():
            mounting.bind(here, root / name)


def make_usr(root: Path, disk: Path) -> None:
    """Show the real machine's programs, covered by the stand-ins."""
    upper = disk / "usr"
    for name in USR_FOLDERS:
        if not Path("/usr", name).is_symlink():
            (upper / name).mkdir(parents=True, exist_ok=True)
    mounting.overlay(Path("/usr"), upper, disk / "usr-work", root / "usr")
    for program, names in PROGRAMS.items():
        words = (f"env PYTHONPATH={LAB.parent}", *stand_in(program))
        for name in names:
            for folder in ("/usr/bin", "/usr/sbin"):
                if folder == "/usr/bin" or Path(folder, name).exists():
                    mounting.write_programs(root, {f"{folder}/{name}": [*words, name]})
    if not python_will_do():
        (root / PYTHON.lstrip("/")).unlink(missing_ok=True)
        (root / PYTHON.lstrip("/")).symlink_to(Path(sys.base_prefix) / "bin" / "python3")


def python_will_do() -> bool:
    """Return whether the real machine's Python is new enough for a node."""
    code = f"import sys; sys.exit(sys.version_info < {LEAST_PYTHON})"
    try:
        return subprocess.run([PYTHON, "-I", "-c", code]).returncode == 0
    except FileNotFoundError:
        return False


def make_etc(root: Path, spec: Spec) -> None:
    """Write /etc: new accounts and names, and libraries' settings from the real machine."""
    for name in FROM_HERE:
        here = Path("/etc", name)
        if here.is_dir():
            shutil.copytree(
                here,
                root / "etc" / name,
                symlinks=True,
                ignore=lambda folder, names: [n for n in names if not readable(Path(folder, n))],
            )
        elif readable(here):
            shutil.copy(here, root / "etc" / name)
    mounting.write_files(
        root,
        {
            "/etc/passwd": "".join(
                f"{name}:x:{number}:{number}::{home}:/bin/bash\n"
                for name, (number, home) in ACCOUNTS.items()
            ),
            "/etc/group": "".join(f"{name}:x:{number}:\n" for name, number in GROUPS.items()),
            "/etc/shadow": "".join(f"{name}:*:20000:0:99999:7:::\n" for name in ACCOUNTS),
            "/etc/gshadow": "".join(f"{name}:*::\n" for name in GROUPS),
            "/etc/hostname": spec.name.partition(".")[0] + "\n",
            "/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
            "/etc/resolv.conf": "",
            "/etc/environment": "".join(f"{k}={v}\n" for k, v in spec.environment.items()),
            "/var/lib/lab/hardware.json": json.dumps(spec.hardware),
            "/var/lib/lab/packages.json": json.dumps({"condor": spec.condor, "installed": []}),
        },
    )
    (root / TRUSTED.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    with (root / TRUSTED.lstrip("/")).open("a") as trusted:
        trusted.write(spec.authority)
    for name in ("shadow", "gshadow"):
        (root / "etc" / name).chmod(0o640)
    (root / "etc/os-release").symlink_to("../usr/lib/os-release")
    mounting.bind(Path(spec.hosts), root / "etc/hosts")


def write_users_files(root: Path, files: dict[str, str]) -> None:
    """Write `files`; those in the home belong to its user, and only the user may read them."""
    mounting.write_files(root, files)
    for path in (root / "home" / USER).rglob("*"):
        os.chown(path, USER_ID, USER_ID)
        path.chmod(0o700 if path.is_dir() else 0o600)


def readable(path: Path) -> bool:
    """Return whether `path` exists and this process may read it."""
    return path.is_symlink() or os.access(path, os.R_OK)


def make_kernel_folders(root: Path, console: Path) -> None:
    """Mount /dev, /proc and /sys; only the kernel's network settings can be written."""
    make_dev(root / "dev", console)
    make_proc(root)
    (root / "sys").mkdir()
    mounting.mount("sysfs", root / "sys", "sysfs", mounting.MS_RDONLY)
    # The files of the driver's stand-in; the real machine's hardware is not this one's.
    for place in (root / "sys/bus", root / "sys/block"):
        if place.is_dir():
            mounting.memory(place)
    (root / "sys/bus/pci/devices").mkdir(parents=True)


def make_dev(dev: Path, console: Path) -> None:
    """Fill /dev with the console and the devices that need no hardware."""
    mounting.memory(dev)
    for name in DEVICES:
        mounting.bind(Path("/dev", name), dev / name, read_only=False)
    mounting.bind(console, dev / "console", read_only=False)
    mounting.memory(dev / "shm", 0o1777)
    (dev / "pts").mkdir()
    mounting.mount("devpts", dev / "pts", "devpts", data="newinstance,ptmxmode=0666,mode=0620")
    (dev / "ptmx").symlink_to("pts/ptmx")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")
    (dev / "fd").symlink_to("/proc/self/fd")


def make_proc(root: Path) -> None:
    """Mount /proc with places for the driver's stand-in; kernel settings can't be written."""
    proc = root / "proc"
    proc.mkdir(exist_ok=True)
    mounting.mount("proc", proc, "proc")
    mounting.bind(proc / "sys/net", proc / "sys/net", read_only=False)
    mounting.bind(proc / "sys", proc / "sys")
    if (proc / "driver").is_dir():
        mounting.memory(proc / "driver")
    if (proc / "modules").exists():
        (root / "var/lib/lab/modules").touch()
        mounting.bind(root / "var/lib/lab/modules", proc / "modules", read_only=False)


def plug_in(spec: Spec) -> None:
    """Set the network up once the machine's virtual cable is connected.

    As in a VPC, every packet goes to the router. The router's hardware address is given, so no ARP
    request is needed.
    """
    wait_for_cable()
    commands = f"""
        link set lo up
        link set eth0 up
        addr add {spec.address}/32 dev eth0
        neigh replace {spec.router} lladdr {spec.router_mac} nud permanent dev eth0
        route add default via {spec.router} dev eth0 onlink
    """
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


def wait_for_cable() -> None:
    """Return once the machine's network port exists."""
    while all(name != "eth0" for _, name in socket.if_nameindex()):
        time.sleep(0.01)


if __name__ == "__main__":
    boot(Spec(**json.loads(Path(sys.argv[1]).read_text())))
