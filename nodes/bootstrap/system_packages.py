"""Installs packages by apt, on Debian and Ubuntu."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trialfleet.nodes.bootstrap.host import Host, StepError

# On a fresh machine, timers run apt, which locks its files. This makes apt wait for dpkg's lock …
_APT = (
    *("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"),
    *("-o", "Acquire::Retries=3"),  # a mirror that fails for a moment
)
# … and this module waits for the locks of apt's lists and downloads.
BUSY = "Could not get lock"
PATIENCE, INTERVAL = 300.0, 3.0  # seconds
# apt's message if an earlier installation was killed, or was interrupted by a reboot.
INTERRUPTED = "dpkg was interrupted"
_KEEP = ("-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Options::=--force-confdef")


def distribution(host: Host) -> dict[str, str]:
    """Return the fields of /etc/os-release, such as ID and VERSION_CODENAME."""
    words = shlex.split(host.read("/etc/os-release"), comments=True)
    return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def fresh_lists(host: Host) -> Iterator[None]:
    """Update apt's lists of packages for the installations in the `with` block.

    Raise StepError if the machine has no apt. If a repository fails, the error is only logged,
    because the other repositories may have all needed packages. If an installation then fails, its
    StepError ends with the logged error.
    """
    if not host.has("apt-get"):
        name = distribution(host).get("PRETTY_NAME", "this machine")
        raise StepError(f"{name} has no apt-get: use an AMI with Debian or Ubuntu")
    earlier = ""
    try:
        _run_apt(host, "-o", "APT::Update::Error-Mode=any", "update")
    except StepError as error:
        host.say(str(error))
        earlier = f"; before this, the update of apt's lists failed: {error}"
    try:
        yield
    except StepError as error:
        raise StepError(f"{error}{earlier}") from error


def components(host: Host) -> list[str]:
    """Return the components of apt's repositories, such as main and non-free."""
    printed = host.run(
        "apt-get", "indextargets", "--format", "$(COMPONENT)", "Created-By: Packages"
    )
    return list(dict.fromkeys(printed.split()))


def install(host: Host, *packages: str) -> None:
    """Install packages. Raise StepError on failure.

    Configuration files that were changed on this machine are not replaced.
    """
    _run_apt(host, *_KEEP, "install", "--no-install-recommends", *packages)


def try_install(host: Host, *packages: str) -> bool:
    """Install packages and return whether this succeeded. An error is logged."""
    try:
        install(host, *packages)
    except StepError as error:
        host.say(str(error))
        return False
    return True


def _run_apt(host: Host, *arguments: str) -> None:
    """Run apt-get, and raise StepError if it fails.

    If another apt-get is running, wait for its end. If an earlier installation was interrupted,
    complete it first.
    """
    end, repaired = time.monotonic() + PATIENCE, False
    while True:
        try:
            host.run(*_APT, *arguments)
        except StepError as error:
            if INTERRUPTED in str(error) and not repaired:
                repaired = True
                host.try_run("dpkg", "--force-confold", "--force-confdef", "--configure", "-a")
                continue
            if BUSY not in str(error) or time.monotonic() >= end:
                raise
            time.sleep(INTERVAL)
        else:
            return
