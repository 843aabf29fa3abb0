"""The HTCondor that trialfleet finds or unpacks: the machine's own, or a copy in the user's cache.

The copy is made from Debian's package, because PyPI has only HTCondor's Python bindings, and no
package index has HTCondor's relocatable tarball. Debian's archive is mirrored and signed, and apt
finds the packages that the daemons need.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import platformdirs

from trialfleet.errors import PoolError
from trialfleet.files import lock_file, object_or_empty, read_json, write_json
from trialfleet.infra.pool import elf, private_apt
from trialfleet.infra.pool.processes import run_captured

MINIMUM = (25, 14)  # needed for transfer_common_input and the DAG parser
LEAST = ".".join(map(str, MINIMUM))
PACKAGE = "condor"
RECIPE = 1  # part of an unpacked copy's name: increase it when `unpack` changes its result
MASTER = "condor_master"
DAEMONS = (
    MASTER,
    "condor_collector",
    "condor_negotiator",
    "condor_schedd",
    "condor_shadow",
    "condor_startd",
    "condor_starter",
    "condor_procd",
)
INSTALL_GUIDE = "https://htcondor.org/htcondor/download/"
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin")  # often not on a plain user's PATH
LIBEXEC_PLACES = ("libexec/condor", "lib/condor/libexec", "libexec")
NOT_KEPT = ("share/doc", "share/man", "share/locale", "share/info", "share/lintian", "share/bug")

Progress = Callable[[str], None]


def say_nothing(_line: str) -> None:
    """Ignore a line of progress."""


@dataclass(frozen=True)
class Installation:
    """An HTCondor on this machine: the folder of its programs (RELEASE_DIR) and its version.

    `unpacked` is True for a copy in the user's cache, and False for the machine's own HTCondor.
    """

    release: Path
    version: str
    unpacked: bool

    @property
    def bin(self) -> Path:
        """The folder of HTCondor's tools, such as `condor_q`."""
        return self.release / "bin"

    @property
    def sbin(self) -> Path:
        """The folder of the daemons and the administrator's tools."""
        return self.release / "sbin"

    @property
    def libexec(self) -> Path:
        """The folder of the programs that only HTCondor itself calls."""
        places = [self.release / place for place in LIBEXEC_PLACES]
        return next((place for place in places if (place / "condor_chirp").exists()), places[0])


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without a pool's variables `_CONDOR_…` for its jobs."""
    names = (name for name in os.environ if not name.upper().startswith("_CONDOR_"))
    return {name: os.environ[name] for name in names if name != "CONDOR_INHERIT"}


def extended_path(path: str, installation: Installation) -> str:
    """Return `path` with the folders of HTCondor's programs: of a copy first, else last."""
    folders = [str(installation.bin), str(installation.sbin)]
    before = path.split(os.pathsep) if path else []
    if installation.unpacked:
        return os.pathsep.join([*folders, *(folder for folder in before if folder not in folders)])
    return os.pathsep.join([*before, *(folder for folder in folders if folder not in before)])


def find_htcondor(progress: Progress = say_nothing, *, cache: Path | None = None) -> Installation:
    """Return the machine's HTCondor if it is new enough, else a copy in the user's cache.

    A missing copy is unpacked. This downloads about 30 MB, needs 100 MB on disk and takes half a
    minute. Other processes that need the copy wait. PoolError if HTCondor can't be unpacked.
    """
    cache = cache or platformdirs.user_cache_path("trialfleet") / "condor"
    own = usable_installation()
    if own and not own.release.is_relative_to(cache.resolve()):  # a pool's shell finds the copy
        return own
    return newest_unpacked(cache) or unpack(cache, progress)


def release_number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `25.14.1`, for comparisons."""
    return tuple(int(part) for part in version.split("."))


def usable_installation() -> Installation | None:
    """Return the HTCondor on PATH or in SYSTEM_FOLDERS, or None if it is missing or too old."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    found = shutil.which(MASTER, path=search)
    if found is None:
        return None
    release = Path(found).resolve().parent.parent
    version = read_version(release)
    if version is None or release_number(version) < MINIMUM:
        return None
    return Installation(release, version, unpacked=False)


def managers_version() -> str:
    """Return the version of this machine's HTCondor. PoolError if it is missing or too old."""
    found = usable_installation()
    if found is None:
        raise PoolError(
            f"there is no HTCondor {LEAST} or newer on this machine's PATH:"
            " `sudo trialfleet manager install` installs it"
        )
    return found.version


def read_version(release: Path) -> str | None:
    """Return the version that `condor_version` in `release` prints, or None if it can't run."""
    environment = {**os.environ, "CONDOR_CONFIG": os.devnull}
    try:
        done = run_captured([release / "bin" / "condor_version"], env=environment)
    except OSError:
        return None
    found = re.search(r"^\$CondorVersion: (\d+\.\d+\.\d+) ", done.stdout, flags=re.MULTILINE)
    return found[1] if found else None


def newest_unpacked(cache: Path) -> Installation | None:
    """Return the newest usable copy in `cache`, or None if there is none.

    A copy is usable if it is complete, new enough and still in the folder where it was made.
    """
    copies = []
    for note in cache.glob(f"*-{platform.machine()}-r{RECIPE}/installation.json"):
        made = object_or_empty(partial(read_json, note))
        # The programs contain the absolute path of their loader: a moved copy doesn't run.
        if made.get("folder") == str(note.parent) and release_number(made["version"]) >= MINIMUM:
            usr = note.parent / "root" / "usr"
            copies.append(Installation(usr, made["version"], unpacked=True))
    return max(copies, key=lambda copy: release_number(copy.version), default=None)


def unpack(cache: Path, progress: Progress = say_nothing) -> Installation:
    """Unpack Debian's HTCondor into `cache` and return the copy. Other processes wait for it.

    PoolError if this machine lacks apt, patchelf, Debian's keys or a mirror, if its processor is
    unsupported, or if a step fails.
    """
    refuse_where_impossible()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PoolError(f"HTCondor can't be unpacked into {cache}: {error.strerror}") from error
    cache = cache.resolve()
    with lock_file(cache / "lock", wait=True):
        if done_by_another := newest_unpacked(cache):
            return done_by_another
        for left_over in cache.glob(".unpacking-*"):  # of a process that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=cache) as beside:
            return unpack_beside(Path(beside), cache, progress)


def refuse_where_impossible() -> None:
    """Raise PoolError if Debian's package can't be unpacked on this machine."""
    missing = private_apt.missing_programs()
    if missing:
        raise PoolError(
            f"no {MASTER} of HTCondor {LEAST} or newer is on PATH, and trialfleet can't unpack"
            f" HTCondor, because this machine lacks {' and '.join(missing)}; to install HTCondor,"
            f" see {INSTALL_GUIDE}"
        )
    private_apt.machine_architecture()
    private_apt.keyring()
    elf.find_patchelf()


def unpack_beside(beside: Path, cache: Path, progress: Progress) -> Installation:
    """Make a complete copy in the folder `beside`, then move it to its place in `cache`."""
    progress("HTCondor isn't installed here: unpacking Debian's package into the cache")
    apt, packages = plan_from_a_mirror(beside / "apt", progress)
    progress(f"fetching {len(packages)} packages from {apt.mirror}")
    files = apt.download(packages)
    version = re.split(r"[^\d.]", packages[PACKAGE].rpartition(":")[2])[0]
    final = cache / f"{version}-{platform.machine()}-r{RECIPE}"
    made = beside / "made"
    progress(f"unpacking HTCondor {version}")
    private_apt.extract(files, made / "root")
    usr = made / "root" / "usr"
    for name in NOT_KEPT:
        shutil.rmtree(usr / name, ignore_errors=True)
    make_runnable(usr, final / "root" / "usr")
    refuse_incomplete(usr, version)
    write_json(made / "installation.json", {"folder": str(final), "version": version})
    shutil.rmtree(final, ignore_errors=True)  # a copy that was moved and can't run
    made.rename(final)
    return Installation(final / "root" / "usr", version, unpacked=True)


def plan_from_a_mirror(
    folder: Path, progress: Progress
) -> tuple[private_apt.PrivateApt, dict[str, str]]:
    """Return a `PrivateApt` for the first mirror that has HTCondor, and the packages to install.

    The packages map a name to a version. PoolError if no mirror has HTCondor.
    """
    reasons: list[str] = []
    for number, mirror in enumerate(private_apt.mirrors()):
        apt = private_apt.PrivateApt(
            folder / str(number), mirror, private_apt.machine_architecture()
        )
        apt.prepare()
        progress(f"asking {mirror} for Debian {private_apt.RELEASE}")
        try:
            apt.update()
            return apt, apt.closure(PACKAGE)
        except PoolError as error:
            reasons.append(str(error))
    raise PoolError("; ".join(dict.fromkeys(reasons)))


def make_runnable(usr: Path, final: Path) -> None:
    """Make the programs in `usr` use the loader and the libraries in `final`.

    `final` is the folder to which `usr` will be moved.
    """
    elf.relocate(
        elf.dynamic_programs([usr / "bin", usr / "sbin", usr / "libexec" / "condor"]),
        loader=final / find_loader(usr).relative_to(usr),
        libraries=[final / folder.relative_to(usr) for folder in library_folders(usr)],
    )


def find_loader(usr: Path) -> Path:
    """Return the file of the unpacked C library's loader, which starts programs."""
    found = sorted((usr / "lib").glob("*-linux-gnu/ld-linux-*.so.*"))
    if not found:
        raise PoolError(
            f"the unpacked copy of HTCondor is incomplete: {usr / 'lib'} lacks the loader of "
            "Debian's C library"
        )
    return found[0]


def library_folders(usr: Path) -> list[Path]:
    """Return the folders of libraries in `usr`, the folder of an unpacked copy."""
    return [find_loader(usr).parent, usr / "lib", usr / "lib" / "condor"]


def refuse_incomplete(usr: Path, version: str) -> None:
    """Raise PoolError unless the unpacked daemons find all their libraries and a tool runs."""
    loader, folders = find_loader(usr), library_folders(usr)
    # The loader is called by its present path: the programs contain its later path in the cache.
    for daemon in DAEMONS:
        listing = elf.run_unrelocated(folders, ["--list", usr / "sbin" / daemon], loader=loader)
        lines = (listing.stdout + listing.stderr).splitlines()
        missing = sorted({line.split()[0] for line in lines if line.endswith("not found")})
        if missing or listing.returncode != 0:
            libraries = f"it lacks the libraries {', '.join(missing)}" if missing else ""
            why = libraries or listing.stderr.strip()
            raise PoolError(f"HTCondor {version} was unpacked, but {daemon} can't start: {why}")
    tried = elf.run_unrelocated(folders, [usr / "bin" / "condor_version"], loader=loader)
    if f"$CondorVersion: {version} " not in tried.stdout:
        raise PoolError(f"HTCondor {version} was unpacked but can't run: {tried.stderr.strip()}")
