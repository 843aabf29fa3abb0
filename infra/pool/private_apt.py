"""A Debian package and the packages that it needs, unpacked into a folder.

Unpacking needs no root and changes nothing in the system: apt runs with its own lists, cache,
sources and an empty record of installed packages, and checks signatures with Debian's keyring.
Functions raise PoolError if a step fails. They need all programs that `missing_programs` checks.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.infra.pool.processes import run_captured

RELEASE = "forky"
KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
MIRROR_VARIABLE = "TRIALFLEET_DEBIAN_MIRROR"  # for Debian's derivatives; signatures are checked
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PROGRAMS = ("apt-get", "dpkg-deb")

# Dependencies of the daemons' packages that the daemons never load: interpreters, the init system,
# web pages, disk encryption, tools that configure packages.
NOT_NEEDED = re.compile(
    r"adduser|base-passwd|cryptsetup|debconf|dmsetup|dpkg|init-|jq$|libdate-manip-perl|libjs-"
    r"|libpam-(modules|runtime)|libperl|libpython3|libsystemd-shared|login|media-types|mount"
    r"|net-tools|netbase|node-|passwd|perl|python3|readline-common|systemd|tzdata|udev|util-linux"
    r"|libc-gconv-modules-extra|ca-certificates|libdb5|libsemanage|libsepol|libcap-ng|openssl$"
    r"|gcc-\d+-base|libaudit-common|libdebconfclient|libmd0|libbsd0|libgdbm|libncurses|libreadline"
)
# Index files that a machine's apt may also fetch, besides the lists of packages.
NO_EXTRA_INDEXES = (
    "Acquire::Languages=none",
    "Acquire::PDiffs=false",
    "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
    "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
    "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false",
)
# The machine's settings that would change files outside our folder, or choose other packages.
CLEARED = ("APT::Default-Release", "APT::Update", "DPkg", "Dir::Cache", "APT::NeverAutoRemove")


@dataclass(frozen=True)
class PrivateApt:
    """Runs apt for a release of Debian on a mirror. apt's files are all in `folder` (100 MB).

    `mirror` is the archive's URL. `architecture` is Debian's name of the processor, like `amd64`.
    """

    folder: Path
    mirror: str
    architecture: str
    release: str = RELEASE

    def prepare(self) -> None:
        """Write the sources, the settings and the empty record of installed packages."""
        for name in ("lists/partial", "cache/archives/partial", "packages"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        (self.folder / "clear.conf").write_text("".join(f"#clear {name};\n" for name in CLEARED))
        source = f"deb [signed-by={keyring()}] {self.mirror} {self.release} main\n"
        (self.folder / "sources.list").write_text(source)

    def update(self) -> None:
        """Fetch the release's list of packages and check its signature."""
        self._get("update")

    def closure(self, package: str) -> dict[str, str]:
        """Return the versions of `package` and of all packages that it needs, by package name.

        Packages whose names match `NOT_NEEDED` are left out.
        """
        plan = self._get("install", "--simulate", package)
        planned = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", plan, flags=re.MULTILINE)
        return {name: version for name, version in planned if not NOT_NEEDED.match(name)}

    def download(self, packages: dict[str, str]) -> list[Path]:
        """Fetch the packages' files, and check them against the signed list of `update`."""
        names = [f"{name}={version}" for name, version in packages.items()]
        self._get("download", *names, within=self.folder / "packages")
        return sorted((self.folder / "packages").glob("*.deb"))

    def _get(self, *arguments: str, within: Path | None = None) -> str:
        command = ["apt-get", "-qq", "-c", str(self.folder / "clear.conf"), *self.options()]
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        environment.pop("APT_CONFIG", None)
        done = run_captured([*command, *arguments], cwd=within, env=environment)
        if done.returncode != 0 or "\nE: " in f"\n{done.stderr}":
            raise PoolError(explain(self.mirror, done.stderr))
        return done.stdout

    def options(self) -> Iterator[str]:
        """Yield the options that make apt use only this folder."""
        places = {
            "Dir::State": self.folder,
            "Dir::State::Lists": self.folder / "lists",
            "Dir::State::status": self.folder / "status",
            "Dir::Cache": self.folder / "cache",
            "Dir::Etc::SourceList": self.folder / "sources.list",
        }
        nothing = ("SourceParts", "Preferences", "PreferencesParts", "Trusted", "TrustedParts")
        settings = [
            *(f"{name}={place}" for name, place in places.items()),
            *(f"Dir::Etc::{name}=/dev/null" for name in nothing),
            f"APT::Architecture={self.architecture}",
            f"APT::Architectures={self.architecture}",
            "APT::Install-Recommends=false",
            "APT::Sandbox::User=",  # apt's own user may not enter our folder
            "APT::Update::Error-Mode=any",  # a mirror that can't be reached is an error
            "Acquire::Retries=2",
            "Debug::NoLocking=1",
            *NO_EXTRA_INDEXES,
        ]
        for setting in settings:
            yield from ("-o", setting)


def explain(mirror: str, complaint: str) -> str:
    """Return one line that says why apt failed, from its output `complaint`."""
    lines = [line for line in complaint.splitlines() if line.startswith(("E:", "W:", "Err:"))]
    reason = " ".join(lines[:1]) or complaint.strip()[-300:] or "apt-get failed without a message"
    if re.search(r"NO_PUBKEY|Missing key|not signed|EXPKEYSIG|signature", complaint):
        return (
            f"the signature of Debian {RELEASE} on {mirror} can't be checked, because the package"
            f" debian-archive-keyring is too old: update it ({reason})"
        )
    return f"HTCondor can't be fetched from {mirror}: {reason}"


def machine_architecture() -> str:
    """Return Debian's name of this machine's processor. PoolError if it is unsupported."""
    machine, known = platform.machine(), " or ".join(ARCHITECTURES)
    if machine not in ARCHITECTURES:
        raise PoolError(f"HTCondor can only be unpacked on {known}, not on {machine}")
    return ARCHITECTURES[machine]


def missing_programs() -> list[str]:
    """Return apt's programs that this machine lacks. Debian and its derivatives have all."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def keyring() -> Path:
    """Return the file of keys that sign Debian's archive."""
    for path in KEYRINGS:
        if path.is_file():
            return path
    raise PoolError(
        "the keys of Debian's archive are missing: install the package debian-archive-keyring"
        f" (it brings {KEYRINGS[0]})"
    )


def mirrors() -> list[str]:
    """Return the URLs of Debian's mirrors in this machine's sources.

    If the user named a mirror in the environment variable MIRROR_VARIABLE, that mirror comes first.
    """
    found = _mirrors_of_lists() or _mirrors_of_sources()
    usable = [uri for uri in found if re.fullmatch(r"[^\s\[\]]+", uri) and "security" not in uri]
    named = os.environ.get(MIRROR_VARIABLE, "").rstrip("/")
    if not (mirrors := list(dict.fromkeys(filter(None, [named, *usable])))):
        raise PoolError(
            "can't download HTCondor: apt on this machine has no Debian mirror; set"
            f" {MIRROR_VARIABLE} to a mirror's URL, or install HTCondor as htcondor.org describes"
        )
    return mirrors


def _mirrors_of_lists() -> list[str]:
    fields = "$(REPO_URI)|$(ORIGIN)|$(SITE)"
    listing = _apt_get("indextargets", "--format", fields, "Created-By: Packages")
    found = (line.split("|") for line in listing.splitlines())
    origins = [(uri.rstrip("/"), origin) for uri, origin, _ in found]
    return [u for u, by in origins if by == "Debian" or (not by and u.endswith("/debian"))]


def _mirrors_of_sources() -> list[str]:
    """Return the URLs in apt's sources that look like Debian's. This needs no downloaded lists."""
    asked = _apt_get("update", "--print-uris")
    return re.findall(r"^'(\S+/debian)/dists/[^']+/InRelease'", asked, re.MULTILINE)


def _apt_get(*words: str) -> str:
    return run_captured(["apt-get", *words]).stdout


def extract(packages: list[Path], folder: Path) -> None:
    """Unpack the package files into `folder`, without running their scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        done = run_captured(["dpkg-deb", "--extract", package, folder])
        if done.returncode != 0:
            raise PoolError(f"{package.name} can't be unpacked: {done.stderr.strip()}")
