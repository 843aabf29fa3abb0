"""Installs NVIDIA's driver, and turns off the driver's slow checks of PCI registers.

By default, drivers up to version 418 check PCI registers at each call. On a virtual machine the
hypervisor must handle each check. This made trainings with many small kernels ten times slower. The
option `NVreg_CheckPCIConfigSpace=0` turns the checks off. Newer drivers ignore the option, so the
bootstrap can always write it.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath

from trialfleet.nodes.bootstrap import system_packages
from trialfleet.nodes.bootstrap.host import HOME, Host, StepError
from trialfleet.nodes.probe.gather import has_device

OPTION = "NVreg_CheckPCIConfigSpace"
FILE = "/etc/modprobe.d/trialfleet-nvidia.conf"
PARAMS = "/proc/driver/nvidia/params"  # options without `NVreg_`, such as CheckPCIConfigSpace: 1
REBOOTED = f"{HOME}/rebooted-for-driver"
MODULE = "nvidia"  # the module's name for modprobe and the kernel; its file may have another name
PATIENCE = 120  # seconds for a program that calls the driver: a sick GPU may hang it for ever
DEBIANS = ("contrib", "non-free")  # components of Debian's repositories that the driver needs
UBUNTU_BRANCHES = ("580-server", "570-server", "550-server", "535-server")

SET = "set"
ALREADY = "already 0"
STILL = "still 1: reboot needed"
NO_LONGER = "driver no longer checks"
NONE = "no driver"


class RebootError(Exception):
    """The machine must reboot once for the driver's option to take effect."""


def prepare(host: Host) -> str:
    """Install the driver if needed, set its option, and return the option's state, such as SET.

    Raise RebootError if the option needs a reboot to take effect, but only once on each machine.
    Raise StepError if the GPU's driver can't be installed.
    """
    module = find_module(host)
    if module is None and has_device(host.root):
        install(host)
        module = find_module(host)
    if module is None:
        return NONE
    verdict = set_option(host, module)
    if verdict == STILL and host.write(REBOOTED, ""):
        raise RebootError
    if host.has("nvidia-smi"):
        # The driver stays loaded between jobs.
        host.try_run("nvidia-smi", "-pm", "1", seconds=PATIENCE)
    return verdict


def find_module(host: Host) -> str | None:
    """Return the name of the driver's kernel module, or None if there is no driver.

    A line with the driver's options in modprobe's configuration needs this name. On Debian it
    depends on the driver's package, such as nvidia-current or nvidia-tesla-535.
    """
    steps = (host.ask("modprobe", "-D", MODULE) or "").splitlines()
    action, *words = steps[-1].split() if steps else [""]  # lines above: dependencies
    if action == "insmod":
        return PurePath(words[0]).name.partition(".ko")[0]
    called = [word for word in words if not word.startswith("-")]
    if action != "install" or called[:1] != ["modprobe"] or len(called) == 1:
        return None
    # Debian's package adds the line `install` at once, but the module must be compiled first.
    return called[1] if host.ask("modinfo", "-F", "filename", called[1]) is not None else None


def install(host: Host) -> None:
    """Install this Linux distribution's NVIDIA driver. Raise StepError on failure."""
    host.say("there is no NVIDIA driver, so the distribution's driver is being installed")
    kernel = os.uname().release
    with system_packages.fresh_lists(host):
        if system_packages.distribution(host).get("ID") == "ubuntu":
            install_ubuntus(host, kernel)
        else:
            install_debians(host, kernel)


def install_debians(host: Host, kernel: str) -> None:
    """Install Debian's NVIDIA driver. Raise StepError if apt's repositories don't have it."""
    found = system_packages.components(host)
    if not set(DEBIANS) <= set(found):
        raise StepError(
            f"Debian's NVIDIA driver needs the components {' and '.join(DEBIANS)}, but this"
            f" machine's apt sources only have {', '.join(found)}: add the missing components in"
            " /etc/apt, or use an image with the driver (the fleet's `ami:`)"
        )
    system_packages.install(host, f"linux-headers-{kernel}", "nvidia-driver", "nvidia-smi")


def install_ubuntus(host: Host, kernel: str) -> None:
    """Install the newest of Ubuntu's NVIDIA drivers that is built for this kernel.

    If none is built for this kernel, install one that is compiled on this machine.
    """
    for branch in UBUNTU_BRANCHES:
        names = (f"nvidia-headless-no-dkms-{branch}", f"nvidia-utils-{branch}")
        if system_packages.try_install(host, f"linux-modules-nvidia-{branch}-{kernel}", *names):
            return
    branch = UBUNTU_BRANCHES[-1]
    names = (f"nvidia-headless-{branch}", f"nvidia-utils-{branch}")
    system_packages.install(host, f"linux-headers-{kernel}", *names)


def set_option(host: Host, module: str) -> str:
    """Set the option that turns off the driver's checks, and return the option's state.

    A driver that is loaded already reads the option at the next boot. The state is a text of this
    module, such as `SET`. `module` is the result of `find_module`.
    """
    found = value(host)
    fresh = host.write(FILE, f"options {module} {OPTION}=0\n")
    if found is None:
        host.try_run("modprobe", MODULE, seconds=PATIENCE)
    if not re.search(rf"^{OPTION}\b", host.run("modinfo", "-p", module), re.M):
        return NO_LONGER
    if fresh and host.has("update-initramfs"):  # the driver may be loaded from there
        host.try_run("update-initramfs", "-u")
    if found == 0 and fresh:
        return ALREADY
    return SET if value(host) == 0 else STILL


def value(host: Host) -> int | None:
    """Return the option's value in the loaded driver, or None without a driver or option."""
    name = OPTION.partition("_")[2]
    found = re.search(rf"^{name}: *(\d+)", host.read(PARAMS), re.M)
    return int(found[1]) if found else None
