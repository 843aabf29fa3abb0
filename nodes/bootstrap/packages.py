"""Installing packages: apt on Debian and Ubuntu, dnf on Amazon Linux."""

from __future__ import annotations

import shlex

from trialfleet.nodes.bootstrap.machine import Machine, StepError

# A fresh machine's own timers hold apt's lock for a while.
_APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")
_KEEP = ("-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Options::=--force-confdef")


def distribution(machine: Machine) -> dict[str, str]:
    """Return what /etc/os-release says, such as ID and VERSION_CODENAME."""
    words = shlex.split(machine.read("/etc/os-release"), comments=True)
    return dict(word.split("=", 1) for word in words if "=" in word)


def uses_apt(machine: Machine) -> bool:
    """Say whether packages come by apt; else by dnf.

    Raises:
        StepError: the machine has neither.
    """
    if machine.has("apt-get"):
        return True
    if machine.has("dnf"):
        return False
    name = distribution(machine).get("PRETTY_NAME", "this machine")
    raise StepError(f"{name} has neither apt-get nor dnf; Ubuntu, Debian and Amazon Linux do")


def refresh(machine: Machine) -> None:
    """Ask apt's repositories what they have; StepError when none answers."""
    machine.run(*_APT, "update")


def install(machine: Machine, *packages: str) -> None:
    """Install packages, without the recommended ones, keeping configuration that is there.

    Raises:
        StepError: one can't be had.
    """
    if uses_apt(machine):
        machine.run(*_APT, *_KEEP, "install", "--no-install-recommends", *packages)
    else:
        machine.run("dnf", "install", "-q", "-y", *packages)


def installs(machine: Machine, *packages: str) -> bool:
    """Install packages and say whether it went well; if not, the log says why."""
    try:
        install(machine, *packages)
    except StepError as error:
        machine.say(str(error))
        return False
    return True
