"""Installs HTCondor on a node, in the manager's version."""

from __future__ import annotations

import platform
import re
import urllib.request

from trialfleet.instance_aws import NO_ANSWER
from trialfleet.nodes.bootstrap import system_packages
from trialfleet.nodes.bootstrap.host import Host, StepError

REPOSITORY = "https://htcss-downloads.chtc.wisc.edu/repo"
KEY = "/etc/apt/keyrings/htcondor.asc"
SOURCES = "/etc/apt/sources.list.d/htcondor.list"


def prepare(host: Host, version: str) -> str:
    """Install HTCondor `version`, and return a text that names the repository it came from.

    Return "present" if this version was installed already. Raise StepError on failure.
    """
    before = installed_version(host)
    if before == version:
        return "present"
    came_from = install(host, version)
    if (found := installed_version(host)) != version:
        raise StepError(
            f"the manager has HTCondor {version}, but this machine has {found}, installed"
            f" from {came_from}: use an AMI with the manager's version, or update the manager"
        )
    return came_from


def installed_version(host: Host) -> str:
    """Return the version of this machine's HTCondor, or "none" if it is not installed."""
    output = host.ask("condor_version") or ""
    found = re.search(r"^\$CondorVersion: (\d+\.\d+\.\d+) ", output, re.M)
    return found[1] if found else "none"


def channel(version: str) -> str:
    """Return the name of a version's repository: "25.0" for 25.0.4, "25.x" for 25.14.1."""
    major, minor, _ = version.split(".")
    return f"{major}.0" if minor == "0" else f"{major}.x"


def install(host: Host, version: str) -> str:
    """Install HTCondor with apt, and return a text that names the repository it came from.

    HTCondor's own repository is used if the machine's repositories fail. Raise StepError if both
    fail.
    """
    wanted = f"condor={version}*"
    with system_packages.fresh_lists(host):
        if system_packages.try_install(host, "--allow-downgrades", wanted):
            return "the machine's repositories"
    add_apt_repository(host, version)
    with system_packages.fresh_lists(host):
        system_packages.install(host, "--allow-downgrades", wanted)
    return REPOSITORY


def add_apt_repository(host: Host, version: str) -> None:
    """Add HTCondor's own repository to apt. Raise StepError on failure."""
    system = system_packages.distribution(host)
    name, release = system.get("ID"), system.get("VERSION_CODENAME")
    if name not in {"ubuntu", "debian"} or platform.machine() != "x86_64":
        raise StepError(
            f"the repositories of {system.get('PRETTY_NAME')} don't have HTCondor {version}, and"
            f" HTCondor's own repository does not support {name} on {platform.machine()}:"
            f" use an AMI on which HTCondor {version} is installed"
        )
    host.write(KEY, download(f"{REPOSITORY}/keys/HTCondor-{channel(version)}-Key"))
    place = f"{REPOSITORY}/{name}/{channel(version)}"
    host.write(SOURCES, f"deb [signed-by={host.place(KEY)}] {place} {release} main\n")


def download(url: str) -> str:
    """Return the text at `url`. Raise StepError if the download fails."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310
            return str(answer.read(), "utf-8")
    except NO_ANSWER as error:
        raise StepError(f"{url} can't be downloaded: {error}") from error
