"""HTCondor's own package repository for Debian and Ubuntu."""

from __future__ import annotations

import platform
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.infra.pool.htcondor_installation import INSTALL_GUIDE

SITE = "https://htcss-downloads.chtc.wisc.edu/repo"
CHANNEL = "25.x"  # the feature channel; the long-term channel has no 25.14
KEY_URL = f"{SITE}/keys/HTCondor-{CHANNEL}-Key"
KEY_BEGINS = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
SUPPORTED = {"debian": ("bookworm", "trixie"), "ubuntu": ("jammy", "noble")}
ARCHITECTURE = "x86_64"  # the only one of its packages for Debian and Ubuntu
SECONDS = 60  # for the key to arrive


@dataclass(frozen=True)
class Distribution:
    """A Linux distribution, with its names in /etc/os-release, such as debian and bookworm."""

    id: str
    codename: str


def distribution(os_release: Path) -> Distribution:
    """Return the distribution that the file `os_release` names. Missing fields are empty."""
    text = os_release.read_text() if os_release.is_file() else ""
    fields = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, flags=re.MULTILINE))
    return Distribution(fields.get("ID", ""), fields.get("VERSION_CODENAME", ""))


def refuse_unsupported(found: Distribution, machine: str = "") -> None:
    """Raise PoolError unless HTCondor's repository supports this distribution and processor.

    `machine` names the processor, such as x86_64. By default, it is this machine's processor.
    """
    machine = machine or platform.machine()
    if found.codename not in SUPPORTED.get(found.id, ()) or machine != ARCHITECTURE:
        known = " or ".join(f"{name} ({', '.join(names)})" for name, names in SUPPORTED.items())
        this = " ".join(word for word in (found.id, found.codename, machine) if word)
        raise PoolError(
            f"HTCondor's repository does not support this machine ({this}); it supports "
            f"{ARCHITECTURE} with {known}. Install HTCondor as {INSTALL_GUIDE} says, then repeat "
            "the command"
        )


def source(found: Distribution, key: Path) -> str:
    """Return apt's line for HTCondor's repository, whose public key is in the file `key`."""
    return f"deb [signed-by={key}] {SITE}/{found.id}/{CHANNEL} {found.codename} main\n"


def fetch_key() -> bytes:
    """Return the repository's public key. PoolError if it can't be fetched."""
    try:
        with urllib.request.urlopen(KEY_URL, timeout=SECONDS) as answer:  # noqa: S310  https, as above
            key: bytes = answer.read()
    except OSError as error:
        raise PoolError(
            f"can't fetch the key of HTCondor's repository, {KEY_URL}: {error}"
        ) from error
    if not key.startswith(KEY_BEGINS):
        raise PoolError(f"{KEY_URL} did not return a key; it returned {key[:40]!r}")
    return key
